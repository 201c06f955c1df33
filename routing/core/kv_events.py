"""KV events as engines publish them, read into one form.

A payload is MessagePack: ``[unix seconds, events, data-parallel rank]``. vLLM and SGLang send each event as a map with its ``type``; older versions
of both send an array that begins with it and may end early. vLLM shows a prompt's salt among the extra keys of its first block, SGLang in a field of
its own (in arrays: a map at the end). Engines outside our control write these bytes: sizes are bounded, what is not known is counted and passed over,
what is malformed raises :class:`EventError`. Token ids come out packed (:func:`routing.core.blocks.pack`), so that nothing is kept for each token.

Sources: recordings of vLLM 0.32.0 (tests/vectors). SGLang (its pull requests 18205, 30827 and 37482) and older vLLM from their published field order,
unproven against a live engine.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from routing.core.blocks import TOKEN_BYTES

Hash = int | bytes
ExtraKeys = tuple[tuple[Any, ...] | None, ...]

SALT_PREFIX: Final = "sr1-"
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
MAX_EVENTS = 65_536
MAX_BLOCKS = 65_536  # of one event
MAX_NAME_CHARACTERS = 256
_METADATA_AT = 6  # of an array's fields: where SGLang puts a map, and vLLM the adapter's name
_U64 = 2**64


class EventError(ValueError):
    """A payload that is no batch of KV events. The text names the place, never a content."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Consecutive blocks of one chain became findable (or, with no tokens, reached another tier).

    ``tokens`` holds ``len(hashes) * block_tokens`` packed ids, or nothing. ``extra_keys`` has one entry for each block, or is None: then no block has
    any. ``parent`` is the engine's hash of the block before the first; None: the first is a prompt's first.
    """

    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: bytes
    block_tokens: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: ExtraKeys | None = None
    group: int = 0
    spec_kind: str | None = None
    sliding_window_tokens: int | None = None
    locality: str | None = None
    ownership: str | None = None
    cache_salt: str | None = None


class Removed(msgspec.Struct, frozen=True, gc=False):
    """One copy of each of these blocks was evicted from ``medium``; other copies may remain."""

    hashes: tuple[Hash, ...]
    medium: str | None = None
    group: int = 0
    locality: str | None = None
    ownership: str | None = None


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """The whole cache was reset."""


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """An event that this version does not read. ``tag`` comes from the engine: cut, and never a label."""

    tag: str


Event = Stored | Removed | Cleared | Unknown


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One message. ``timestamp_s`` is the engine's clock. ``unknown_fields`` counts fields that were passed over."""

    timestamp_s: float
    events: tuple[Event, ...]
    rank: int | None = None
    unknown_fields: int = 0


class _StoredWire(msgspec.Struct, tag_field="type", tag="BlockStored", forbid_unknown_fields=True, gc=False):
    block_hashes: tuple[Hash, ...]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: ExtraKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None


class _RemovedWire(msgspec.Struct, tag_field="type", tag="BlockRemoved", forbid_unknown_fields=True, gc=False):
    block_hashes: tuple[Hash, ...]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class _ClearedWire(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", forbid_unknown_fields=True, gc=False):
    pass


class _BatchWire(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    timestamp_s: float
    events: tuple[_StoredWire | _RemovedWire | _ClearedWire, ...]
    rank: int | None = None


_STORED_FIELDS: Final = tuple(field for field in _StoredWire.__struct_fields__)
_REMOVED_FIELDS: Final = tuple(field for field in _RemovedWire.__struct_fields__)
_maps = msgspec.msgpack.Decoder(_BatchWire)
_anything = msgspec.msgpack.Decoder()


def decode(payload: bytes) -> Batch:
    """Read one message's payload.

    Raises:
        EventError: it is too large, no batch, or one of its known events is malformed.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise EventError(f"a message of {len(payload)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    try:
        wire = _maps.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_anything(payload)
    if len(wire.events) > MAX_EVENTS:
        raise EventError(f"events: {len(wire.events)} in one message; at most {MAX_EVENTS} are read")
    return Batch(wire.timestamp_s, tuple([_event(event) for event in wire.events]), wire.rank)


def salt_of(stored: Stored) -> str | None:
    """The salt of the prompt whose first block this event's first block is; None for another prompt's continuation and without a salt.

    vLLM lists what enters a block's hash untagged: the adapter's name first, then media, the salt last. So an adapter named like a salt is taken
    away before anything is believed.
    """
    if stored.parent is not None:
        return None
    if stored.cache_salt is not None:
        return stored.cache_salt
    if not stored.extra_keys:
        return None
    return split_keys(stored.extra_keys[0], stored.lora_name)[0]


def split_keys(entry: Sequence[Any] | None, lora_name: str | None) -> tuple[str | None, int]:
    """One first block's extra keys: its salt, and how many keys are neither salt nor adapter (media, embeddings, unknown)."""
    if not entry:
        return None, 0
    keys = list(entry)
    if lora_name is not None and lora_name in keys:
        keys.remove(lora_name)
    if keys and isinstance(keys[-1], str):
        return keys[-1], len(keys) - 1
    strings = [position for position, key in enumerate(keys) if isinstance(key, str)]
    return (keys[strings[-1]], len(keys) - 1) if strings else (None, len(keys))


def _event(wire: _StoredWire | _RemovedWire | _ClearedWire) -> Event:
    if isinstance(wire, _StoredWire):
        return _stored(wire)
    if isinstance(wire, _RemovedWire):
        return Removed(_hashes(wire.block_hashes), wire.medium, wire.group_idx or 0, wire.locality, wire.ownership)
    return Cleared()


def _stored(wire: _StoredWire) -> Stored:
    hashes, token_ids, block_tokens = wire.block_hashes, wire.token_ids, wire.block_size
    if token_ids and (block_tokens < 1 or len(token_ids) != len(hashes) * block_tokens):
        raise EventError(f"token_ids: {len(token_ids)} ids for {len(hashes)} blocks of {block_tokens}")
    if wire.extra_keys is not None and len(wire.extra_keys) != len(hashes):
        raise EventError(f"extra_keys: {len(wire.extra_keys)} entries for {len(hashes)} blocks")
    try:
        tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise EventError("token_ids: an id is not an integer from 0 to 2**32 - 1") from error
    parent = wire.parent_block_hash
    return Stored(
        _hashes(hashes),
        parent if parent is None else _hashes((parent,))[0],
        tokens,
        max(0, block_tokens),
        wire.medium,
        wire.lora_name,
        wire.extra_keys,
        wire.group_idx or 0,
        wire.kv_cache_spec_kind,
        wire.kv_cache_spec_sliding_window,
        wire.locality,
        wire.ownership,
        wire.cache_salt,
    )


def _hashes(hashes: tuple[Hash, ...]) -> tuple[Hash, ...]:
    """Bounded; signed 64-bit hashes become unsigned, so that one block has one name."""
    if len(hashes) > MAX_BLOCKS:
        raise EventError(f"block_hashes: {len(hashes)} in one event; at most {MAX_BLOCKS} are read")
    for hash_ in hashes:
        if isinstance(hash_, int):
            if hash_ < 0:
                return tuple([value % _U64 if isinstance(value, int) else value for value in hashes])
        elif len(hash_) > MAX_NAME_CHARACTERS:
            raise EventError("block_hashes: a hash is too long")
    return hashes


def _decode_anything(payload: bytes) -> Batch:
    """Arrays, fields and events that the typed decoder does not know: slower, and forgiving only of what is new."""
    try:
        batch = _anything.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventError("not MessagePack") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list) or not isinstance(batch[0], int | float):
        raise EventError("not [time, events, rank]")
    timestamp, events, rank = float(batch[0]), batch[1], batch[2] if len(batch) > 2 else None
    if len(events) > MAX_EVENTS:
        raise EventError(f"events: {len(events)} in one message; at most {MAX_EVENTS} are read")
    if rank is not None and not isinstance(rank, int):
        raise EventError("rank: not an integer")
    read: list[Event] = []
    unknown = max(0, len(batch) - 3)
    for event in events:
        fields, tag, more = _fields(event)
        unknown += more
        read.append(_known(tag, fields))
    return Batch(timestamp, tuple(read), rank, unknown)


def _fields(event: Any) -> tuple[Mapping[str, Any], str, int]:
    """An event's known fields, its tag, and how many unknown fields it has."""
    if isinstance(event, dict):
        tag = event.get("type")
        known = _STORED_FIELDS if tag == "BlockStored" else _REMOVED_FIELDS if tag == "BlockRemoved" else ()
        fields = {name: event[name] for name in known if name in event}
        return fields, str(tag)[:MAX_NAME_CHARACTERS], max(0, len(event) - 1 - len(fields)) if known or tag == "AllBlocksCleared" else 0
    if isinstance(event, list) and event and isinstance(event[0], str):
        tag = event[0]
        known = _STORED_FIELDS if tag == "BlockStored" else _REMOVED_FIELDS if tag == "BlockRemoved" else ()
        values = event[1:]
        if len(values) == _METADATA_AT + 1 and isinstance(values[-1], dict):
            salt = values.pop().get("cache_salt")
            return {**dict(zip(known, values, strict=False)), "cache_salt": salt}, tag, 0
        fields = dict(zip(known, values, strict=False))
        return fields, tag[:MAX_NAME_CHARACTERS], max(0, len(event) - 1 - len(fields)) if known or tag == "AllBlocksCleared" else 0
    raise EventError("events: an event is neither a map with a type nor an array that begins with one")


def _known(tag: str, fields: Mapping[str, Any]) -> Event:
    try:
        if tag == "BlockStored":
            ids = fields.get("token_ids")
            if isinstance(ids, list) and ids and isinstance(ids[0], list):
                return Unknown("BlockStored of pairs")  # speculative decoding's pairs of tokens: no plain chain
            return _stored(msgspec.convert(fields, _StoredFields))
        if tag == "BlockRemoved":
            return _event(msgspec.convert(fields, _RemovedFields))
    except (msgspec.ValidationError, OverflowError) as error:
        raise EventError(f"{tag}: {_place(error)}") from error
    return Cleared() if tag == "AllBlocksCleared" else Unknown(tag)


class _StoredFields(_StoredWire, tag=False, forbid_unknown_fields=False, gc=False):
    pass


class _RemovedFields(_RemovedWire, tag=False, forbid_unknown_fields=False, gc=False):
    pass


def _place(error: Exception) -> str:
    """Where a typed decoder stumbled. Its own texts name types and paths, no values."""
    return str(error)[:MAX_NAME_CHARACTERS]


def blocks_of(stored: Stored) -> int:
    """How many blocks carry tokens."""
    return len(stored.tokens) // (stored.block_tokens * TOKEN_BYTES) if stored.block_tokens else 0
