"""A batch of KV events cut into pieces that are quick to apply, one after the other to the same end.

Engines write batches as large as they like (a full report of a long prompt, thousands of removals); whoever shares a thread with others applies
them piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from routing.core.blocks import TOKEN_BYTES
from routing.core.kv_events import NO_HASHES, Batch, Event, Hash, Removed, Stored


def cut(batch: Batch, most_blocks: int) -> list[Batch]:
    """Pieces of at most ``most_blocks`` blocks each, in order; at least one. Applying all of them is applying ``batch``.

    Two differences remain: bounds are kept after each piece and not only at the end, and where an engine contradicts itself or renames its blocks
    inside one event, that may show at another place than in the whole, and what the pieces before it stored is forgotten.
    """
    pieces: list[list[Event]] = [[]]
    room = most_blocks
    for event in batch.events:
        for part, blocks in _parts(event, most_blocks):
            if blocks > room and pieces[-1]:
                pieces.append([])
                room = most_blocks
            pieces[-1].append(part)
            room -= blocks
    if len(pieces) == 1:
        return [batch]
    return [Batch(batch.timestamp_s, tuple(events), batch.rank, batch.unknown_fields if number == 0 else 0) for number, events in enumerate(pieces)]


def _parts(event: Event, most: int) -> Iterator[tuple[Event, int]]:
    """The event, or its parts, each with how many blocks it is; an event without any counts as one."""
    if not isinstance(event, Stored | Removed) or len(event.hashes) <= most:
        yield event, max(1, len(event.hashes)) if isinstance(event, Stored | Removed) else 1
        return
    whole = frozenset(event.hashes) if isinstance(event, Stored) and (event.tokens or event.sparse) else NO_HASHES
    for start in range(0, len(event.hashes), most):
        hashes = event.hashes[start : start + most]
        yield (msgspec.structs.replace(event, hashes=hashes) if isinstance(event, Removed) else _part(event, start, hashes, whole)), len(hashes)


def _part(event: Stored, start: int, hashes: tuple[Hash, ...], whole: frozenset[Hash]) -> Stored:
    width = event.block_tokens * TOKEN_BYTES
    end = start + len(hashes)
    return msgspec.structs.replace(
        event,
        hashes=hashes,
        parent=event.hashes[start - 1] if start and event.tokens else event.parent,
        tokens=event.tokens[start * width : end * width],
        extra_keys=None if event.extra_keys is None else event.extra_keys[start:end],
        continued=whole if end < len(event.hashes) else NO_HASHES,
    )
