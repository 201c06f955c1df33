"""TensorRT-LLM's KV cache events, read into the form of :mod:`routing.core.kv_events`.

They are polled over HTTP as a JSON list. Each event has its own number, a ``data`` object that its ``type`` describes (created, stored, removed,
updated), the attention window it belongs to and, with attention data parallelism, a rank. A stored block lists its tokens, its cache level (0 is GPU
memory, 1 the host's) and its salt. The last block of a prompt may be partial: it, and what continues it, is no whole block and left out. How many
tokens a whole block has is not told; every block that another follows is whole, so the first of those tells (:class:`BlockSize`).

Source: the serialiser in TensorRT-LLM's repository (``tensorrt_llm/_utils.py``), with salts since its pull request 13051; unproven on a live engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from routing.core import blocks
from routing.core.kv_events import (
    MAX_BLOCKS,
    MAX_EVENTS,
    MAX_NAME_CHARACTERS,
    Batch,
    Cleared,
    Event,
    EventError,
    Hash,
    Removed,
    Stored,
    Unknown,
)

MAX_ANSWER_BYTES = 4 * 1024 * 1024
MAX_EVENT_BYTES = 2 * 1024 * 1024  # 30,000 tokens: each is an object of its own
LEVELS: Final = ("GPU", "CPU")
_WireHash = int | str


@dataclass(frozen=True, slots=True)
class Numbered:
    """One event as a batch of its own. ``seq`` counts from 0 with the engine's process."""

    seq: int
    batch: Batch


class _Token(msgspec.Struct, gc=False):
    token_id: int
    token_extra_id: int = 0


class _StoredBlock(msgspec.Struct, gc=False):
    block_hash: _WireHash
    tokens: list[_Token]
    cache_level: int = 0
    mm_keys: msgspec.Raw = msgspec.Raw()  # only whether there are any counts: what they hold is not built
    cache_salt: str | None = None


class _StoredData(msgspec.Struct, tag_field="type", tag="stored", gc=False):
    parent_hash: _WireHash | None
    blocks: list[_StoredBlock]


class _RemovedData(msgspec.Struct, tag_field="type", tag="removed", gc=False):
    block_hashes: list[_WireHash]


class _Difference(msgspec.Struct, gc=False):
    old_value: int | None = None
    new_value: int | None = None


class _UpdatedData(msgspec.Struct, tag_field="type", tag="updated", gc=False):
    block_hash: _WireHash
    cache_level: _Difference | None = None


class _CreatedData(msgspec.Struct, tag_field="type", tag="created", gc=False):
    pass


class _Tagged(msgspec.Struct, gc=False):
    type: str


class _Event(msgspec.Struct, gc=False):
    event_id: int
    data: msgspec.Raw
    window_size: int | None = None
    attention_dp_rank: int | None = None


MAX_WAITING = 1024  # events that wait until the size of a block is known
MAX_WAITING_BYTES = 1024 * 1024

_Data = _StoredData | _RemovedData | _UpdatedData | _CreatedData
_events = msgspec.json.Decoder(list[_Event])
_data: msgspec.json.Decoder[_Data] = msgspec.json.Decoder(_Data)
_tagged = msgspec.json.Decoder(_Tagged)
_NONE: Final = (b"", b"null", b"[]", b"[ ]")
_TAGS: Final = frozenset({"stored", "removed", "updated", "created"})


class BlockSize:
    """How many tokens a block of one engine has, once that showed. Events that cannot be read before wait here.

    Another process may have another size: numbers that go back begin anew. A restart that no number shows takes a new object.
    """

    def __init__(self, tokens: int | None = None) -> None:
        self.tokens = tokens
        self._last_id = -1
        self._waiting: list[_Event] = []
        self._waiting_bytes = 0
        self._single: dict[_WireHash, int] = {}  # tokens of blocks that came alone, by hash

    def _learn(self, event: _Event) -> list[_Event]:
        """The events that can be read now, in order."""
        restarted = not event.attention_dp_rank and event.event_id <= self._last_id
        if restarted:
            self.tokens = None
            self._forget()
        if not event.attention_dp_rank:  # other ranks may count for themselves
            self._last_id = event.event_id
        if self.tokens is None:
            self.tokens = self._shown_by(event)
        if self.tokens is None and not restarted:  # that it was restarted must not wait, even if the one block is lost for it
            self._waiting.append(event)
            self._waiting_bytes += len(bytes(event.data))
            if len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
                self._forget()  # their numbers will be missing
            return []
        ready = [*self._waiting, event]
        self._forget()
        return ready

    def _forget(self) -> None:
        self._waiting, self._waiting_bytes, self._single = [], 0, {}

    def _shown_by(self, event: _Event) -> int | None:
        if _tagged.decode(event.data).type != "stored":
            return None
        data = _data.decode(event.data)
        if not isinstance(data, _StoredData) or not data.blocks:
            return None
        if len(data.blocks) > 1:
            return len(data.blocks[0].tokens) or None
        self._single[data.blocks[0].block_hash] = len(data.blocks[0].tokens)
        return None if data.parent_hash is None else self._single.get(data.parent_hash) or None


def decode(payload: bytes, size: BlockSize) -> Iterator[Numbered]:
    """Read one answer, an event at a time: whoever shares a thread rests in between.

    Raises:
        EventError: it is too large, no list of events, or one of its known events is malformed; what came before is good.
    """
    if len(payload) > MAX_ANSWER_BYTES:
        raise EventError(f"an answer of {len(payload)} bytes; at most {MAX_ANSWER_BYTES} are read")
    try:
        events = _events.decode(payload)
        if len(events) > MAX_EVENTS:
            raise EventError(f"{len(events)} events in one answer; at most {MAX_EVENTS} are read")
        for event in events:
            if len(bytes(event.data)) > MAX_EVENT_BYTES:
                continue  # its number will be missing
            for ready in size._learn(event):
                read = _read(ready.data, ready.window_size or 0, size.tokens or 0)
                yield Numbered(ready.event_id, Batch(0.0, read, ready.attention_dp_rank))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventError(f"not a list of events: {str(error)[:MAX_NAME_CHARACTERS]}") from error


def _read(raw: msgspec.Raw, group: int, block_tokens: int) -> tuple[Event, ...]:
    tag = _tagged.decode(raw).type
    if tag not in _TAGS:
        return (Unknown(tag[:MAX_NAME_CHARACTERS]),)
    data = _data.decode(raw)
    if isinstance(data, _StoredData):
        return _stored(data, group, block_tokens)
    if isinstance(data, _RemovedData):
        hashes = tuple([_hash(hash_) for hash_ in data.block_hashes[: MAX_BLOCKS + 1]])
        if len(hashes) > MAX_BLOCKS:
            raise EventError(f"block_hashes: more than {MAX_BLOCKS} in one event")
        return tuple(Removed(hashes, level, group) for level in LEVELS)  # from wherever it was
    if isinstance(data, _UpdatedData):
        return _moved(data, group)
    return (Cleared(),)  # a cache was created: an empty one


def _stored(data: _StoredData, group: int, block_tokens: int) -> tuple[Event, ...]:
    """Runs of whole blocks on one level, each continuing the one before."""
    if len(data.blocks) > MAX_BLOCKS:
        raise EventError(f"blocks: {len(data.blocks)} in one event; at most {MAX_BLOCKS} are read")
    events: list[Event] = []
    parent = None if data.parent_hash is None else _hash(data.parent_hash)
    for block in data.blocks:
        if len(block.tokens) != block_tokens:
            break
        own = _hash(block.block_hash)
        try:
            tokens = blocks.pack([token.token_id for token in block.tokens])
        except ValueError as error:
            raise EventError(f"tokens: {error}") from error
        plain = bytes(block.mm_keys) in _NONE and not any(token.token_extra_id for token in block.tokens)
        keys = None if plain else ((("media",),),)
        events.append(
            Stored((own,), parent, tokens, block_tokens, medium=_level(block.cache_level), extra_keys=keys, group=group, cache_salt=block.cache_salt)
        )
        parent = own
    return tuple(events)


def _moved(data: _UpdatedData, group: int) -> tuple[Event, ...]:
    change = data.cache_level
    if change is None or change.new_value is None or change.new_value == change.old_value:
        return ()
    own = _hash(data.block_hash)
    reached = Stored((own,), None, b"", 0, medium=_level(change.new_value), group=group)
    return (reached,) if change.old_value is None else (reached, Removed((own,), _level(change.old_value), group))


def _level(level: int) -> str:
    return LEVELS[level] if 0 <= level < len(LEVELS) else f"LEVEL_{level}"


def _hash(hash_: _WireHash) -> Hash:
    if isinstance(hash_, int):
        return hash_ % 2**64
    if len(hash_) > MAX_NAME_CHARACTERS:
        raise EventError("block_hashes: a hash is too long")
    return hash_.encode()
