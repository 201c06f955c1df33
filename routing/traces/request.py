"""One request of a trace, whatever file it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What a trace says of one request.

    ``blocks`` names its leading blocks of the trace's block size: an id stands for a block *and everything before it*: equal ids are equal prefixes.
    The last one may be partial; tokens that no block covers are the request's own. ``at_s`` counts from the trace's beginning; where ``after_s`` is
    given the request also keeps that distance from the end of its session's previous answer.
    """

    at_s: float
    prompt_tokens: int  # >= 1
    output_tokens: int  # >= 1
    blocks: tuple[int, ...]
    session: str = ""  # "": not known
    scope: str = ""
    kind: str = ""  # a class that the trace declares
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace being read: requests in the order of the file, once. ``timed``: its times are recorded ones and not made up by the reader."""

    name: str
    block_tokens: int
    timed: bool
    requests: Iterator[TraceRequest]


def tokens_in(request: TraceRequest, blocks: int, block_tokens: int) -> int:
    """Tokens in the first ``blocks`` blocks of a request; the last block may be partial."""
    return min(blocks * block_tokens, request.prompt_tokens)


def in_own_scope(request: TraceRequest) -> TraceRequest:
    """The request with blocks that no other scope has, whatever ids the trace gave them: engines share within one scope alone."""
    if not request.scope:
        return request
    scope = hashlib.blake2b(request.scope.encode(), digest_size=32).digest()
    ids = (hashlib.blake2b(block.to_bytes(8, "big"), key=scope, digest_size=8).digest() for block in request.blocks)
    return replace(request, blocks=tuple([int.from_bytes(one, "big") >> 1 for one in ids]))


def coarsen(trace: Trace, block_tokens: int) -> Trace:
    """The same requests in larger blocks: of every group of blocks its last id stands for the whole of it.

    What a group shares only in part is no longer shared, as in an engine with blocks of that size.

    Raises:
        ValueError: ``block_tokens`` is no multiple of the trace's.
    """
    factor, rest = divmod(block_tokens, trace.block_tokens)
    if rest or factor < 1:
        raise ValueError(f"blocks of {trace.block_tokens} tokens cannot be put together into blocks of {block_tokens}")
    if factor == 1:
        return trace

    def larger() -> Iterator[TraceRequest]:
        for one in trace.requests:
            whole = one.blocks[factor - 1 :: factor]
            blocks = whole if len(one.blocks) % factor == 0 else (*whole, one.blocks[-1])
            yield TraceRequest(
                one.at_s, one.prompt_tokens, one.output_tokens, blocks, session=one.session, scope=one.scope, kind=one.kind, after_s=one.after_s
            )

    return Trace(trace.name, block_tokens, trace.timed, larger())
