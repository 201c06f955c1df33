"""A trace written as Mooncake's JSON lines with our additions: what ``routing.traces.formats`` reads back to the same requests."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from routing.traces.request import Trace

_encoder = msgspec.json.Encoder()


def mooncake_lines(trace: Trace) -> Iterator[bytes]:
    """One line of JSON for each request, with its line feed; times are whole milliseconds, and what is not known is left out."""
    for one in trace.requests:
        line: dict[str, object] = {
            "timestamp": round(one.at_s * 1000),
            "input_length": one.prompt_tokens,
            "output_length": one.output_tokens,
            "hash_ids": one.blocks,
            "block_tokens": trace.block_tokens,
        }
        if one.session:
            line["session"] = one.session
        if one.scope:
            line["scope"] = one.scope
        if one.kind:
            line["class"] = one.kind
        if one.after_s is not None:
            line["after"] = round(one.after_s * 1000)
        yield _encoder.encode(line) + b"\n"
