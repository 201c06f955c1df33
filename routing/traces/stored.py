"""Requests of a trace as bytes: what is kept of a trace that was sent, and what a worker is given. Numbers only.

Block ids, sessions and scopes are numbered anew, densely and in the order in which they are first seen; classes are left out. So nothing is kept
of what an id, a session or a scope was called. A chunk is :data:`CHUNK_REQUESTS` requests as msgpack, compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import msgspec

from routing.traces.numbering import Numbers
from routing.traces.request import TraceRequest

CHUNK_REQUESTS = 500
_HEAD_BYTES = 4
_Row = tuple[float, int, int, tuple[int, ...], int, int, float | None]  # time, prompt, output, blocks, session, scope (0: none), after
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Row]).decode


def pack(requests: Iterable[TraceRequest]) -> Iterator[bytes]:
    """Chunks of requests whose blocks, sessions and scopes are numbers already (``s1``, ``n1``: the first letter is dropped)."""
    waiting = iter(requests)
    while batch := list(islice(waiting, CHUNK_REQUESTS)):
        rows: list[_Row] = [
            (one.at_s, one.prompt_tokens, one.output_tokens, one.blocks, _number(one.session), _number(one.scope), one.after_s) for one in batch
        ]
        yield zlib.compress(_encode(rows), 1)


def unpack(chunk: bytes) -> list[TraceRequest]:
    """The requests of one chunk."""
    return [
        TraceRequest(at_s, prompt, output, blocks, session=f"s{session}" if session else "", scope=f"n{scope}" if scope else "", after_s=after_s)
        for at_s, prompt, output, blocks, session, scope, after_s in _decode(zlib.decompress(chunk))
    ]


def join(chunks: Iterable[bytes]) -> bytes:
    """Chunks one after the other, each behind its length."""
    return b"".join(part for chunk in chunks for part in (len(chunk).to_bytes(_HEAD_BYTES, "big"), chunk))


def split(content: bytes) -> Iterator[bytes]:
    """The chunks of :func:`join`."""
    place = 0
    while place < len(content):
        begin = place + _HEAD_BYTES
        place = begin + int.from_bytes(content[place:begin], "big")
        yield content[begin:place]


def nameless(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """The same requests with numbers for blocks, sessions and scopes, and without classes. Memory is bounded but for sessions and scopes."""
    waiting, blocks = iter(requests), Numbers()
    sessions: dict[str, int] = {"": 0}
    scopes: dict[str, int] = {"": 0}
    try:
        while batch := list(islice(waiting, CHUNK_REQUESTS)):
            block = blocks.of([one for request in batch for one in request.blocks])
            for one in batch:
                session, scope = sessions.setdefault(one.session, len(sessions)), scopes.setdefault(one.scope, len(scopes))
                yield replace(
                    one,
                    blocks=tuple([block[number] for number in one.blocks]),
                    session=f"s{session}" if session else "",
                    scope=f"n{scope}" if scope else "",
                    kind="",
                )
    finally:
        blocks.close()


def apart(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """The same requests with blocks that only their own scope has: engines share between equal prompts of one scope alone."""
    scopes: dict[str, int] = {"": 0}
    for one in requests:
        scope = scopes.setdefault(one.scope, len(scopes))
        yield replace(one, blocks=tuple([scope << 64 | block for block in one.blocks])) if scope else one


def _number(name: str) -> int:
    return int(name[1:]) if name else 0
