"""The ``traceparent`` that an engine receives: always well formed, never with a client's ``tracestate`` or baggage.

A valid parent is continued with a span id of ours; anything else (malformed, repeated, version ff, zero ids) starts a new root.
Source: W3C Trace Context, sections 3.2 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Parent:
    """A span that a caller named: ids in hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool


def read(presented: Sequence[str]) -> Parent | None:
    """The valid parent among the headers presented, or None."""
    match = _PARENT.fullmatch(presented[0]) if len(presented) == 1 else None
    if match is None or set(match[1]) == {"0"} or set(match[2]) == {"0"}:
        return None
    return Parent(match[1], match[2], bool(int(match[3], 16) & 1))


def child(presented: Sequence[str], *, trace_id: str, span_id: str) -> str:
    """The header to send on. ``trace_id`` (32 hexadecimal digits) is used for a new root, ``span_id`` (16) always."""
    parent = read(presented)
    if parent is None:
        return f"00-{trace_id}-{span_id}-00"
    return f"00-{parent.trace_id}-{span_id}-0{int(parent.sampled)}"


def span_id(header: str) -> str:
    """The span id of a header that :func:`child` made."""
    return header.split("-")[2]
