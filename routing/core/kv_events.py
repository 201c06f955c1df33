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
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from routing.core.blocks import TOKEN_BYTES

Hash = int | bytes
ExtraKeys = tuple[tuple[Any, ...] | None, ...]
NO_HASHES: Final[frozenset[Hash]] = frozenset()

SALT_PREFIX: Final = "sr1-"
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
STEP_BYTES = 32 * 1024  # of events that are read in one go, or one event
STEP_EVENTS = 1000  # however small
MAX_EVENTS = 65_536
MAX_BLOCKS = 65_536  # of one event
MAX_FIELDS = 64  # of one event
MAX_KEYS_BYTES = 64 * 1024  # of one event's extra keys, each counted once: thousands of little lists would hold up others
MAX_NAME_CHARACTERS = 256
MAX_HASH_BYTES = 32  # a SHA-256; longer ones would take more memory than is counted
_METADATA_AT = 6  # of an array's fields: where SGLang puts a map, and vLLM the adapter's name
_U64 = 2**64


class EventError(ValueError):
    """A payload that is no batch of KV events. The text names the place, never a content."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Consecutive blocks of one chain became findable (or, with no tokens, reached another tier: only the hashes of such an event are read).

    ``tokens`` holds ``len(hashes) * block_tokens`` packed ids, or nothing. ``extra_keys`` has one entry for each block, or is None: then no block has
    any. ``parent`` is the engine's hash of the block before the first; None: the first is a prompt's first. ``sparse``: the engine keeps some of
    these blocks alone and names those, not which they are, so there are no tokens. ``continued``, never from the wire: this is a piece of a larger
    event (:mod:`routing.core.kv_pieces`), others follow, and these are all hashes of that event.
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
    sparse: bool = False
    continued: frozenset[Hash] = NO_HASHES


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


_NIL: Final = b"\xc0"


class _StoredWire(msgspec.Struct, tag_field="type", tag="BlockStored", forbid_unknown_fields=True, gc=False):
    block_hashes: tuple[Hash, ...]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = msgspec.Raw(_NIL)
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


class _OuterWire(msgspec.Struct, array_like=True, gc=False):
    timestamp_s: float
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_EVENTS)]
    rank: int | None = None


_maps = msgspec.msgpack.Decoder(_BatchWire)
_outer = msgspec.msgpack.Decoder(_OuterWire)
_one_map = msgspec.msgpack.Decoder(_StoredWire | _RemovedWire | _ClearedWire)
_fields_of_map = msgspec.msgpack.Decoder(Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=MAX_FIELDS)])
_fields_of_array = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_FIELDS)])
_text = msgspec.msgpack.Decoder(str | None)
_entries = msgspec.msgpack.Decoder(list[msgspec.Raw] | None)
_entry = msgspec.msgpack.Decoder(tuple[Any, ...] | None)
_WIRES: Final[dict[str, type[_StoredWire | _RemovedWire]]] = {"BlockStored": _StoredWire, "BlockRemoved": _RemovedWire}
_fields_of: Final[dict[str, dict[str, msgspec.msgpack.Decoder[Any]]]] = {
    tag: {field.encode_name: msgspec.msgpack.Decoder(field.type) for field in msgspec.structs.fields(wire)} for tag, wire in _WIRES.items()
}
_CLEARED: Final = "AllBlocksCleared"


def decode(payload: bytes) -> Batch:
    """Read one message's payload, whole.

    Raises:
        EventError: it is too large, no batch, or one of its known events is malformed.
    """
    parts = list(decode_in_steps(payload))
    if len(parts) == 1:
        return parts[0]
    events = tuple([event for part in parts for event in part.events])
    return Batch(parts[0].timestamp_s, events, parts[0].rank, sum(part.unknown_fields for part in parts))


def decode_in_steps(payload: bytes) -> Iterator[Batch]:
    """Read one message's payload, about ``STEP_BYTES`` or one event at a time: whoever shares a thread rests in between. The parts, applied one after
    the other, are the batch; at least one comes.

    Raises:
        EventError: as :func:`decode`, when it comes to it: the parts before are good.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise EventError(f"a message of {len(payload)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    if len(payload) <= STEP_BYTES:
        try:
            wire = _maps.decode(payload)
        except (msgspec.MsgspecError, RecursionError):
            pass  # older arrays, something new, or nothing good: looked at one by one
        else:
            yield Batch(wire.timestamp_s, tuple([_event(event) for event in wire.events]), wire.rank)
            return
    try:
        outer = _outer.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventError(f"not [time, events, rank]: {_place(error)}") from error
    yield from _steps(outer, unknown=max(0, _array_length(payload) - 3))


def _steps(outer: _OuterWire, unknown: int) -> Iterator[Batch]:
    read: list[Event] = []
    size = 0
    for raw in outer.events:
        event, more = _read(bytes(raw))
        read.append(event)
        unknown += more
        size += len(bytes(raw))
        if size >= STEP_BYTES or len(read) >= STEP_EVENTS:
            yield Batch(outer.timestamp_s, tuple(read), outer.rank, unknown)
            read, size, unknown = [], 0, 0
    if read or unknown or not outer.events:
        yield Batch(outer.timestamp_s, tuple(read), outer.rank, unknown)


def salt_of(stored: Stored) -> str | None:
    """The salt of the prompt whose first block this event's first block is; None for another prompt's continuation and without a salt.

    vLLM lists what enters a block's hash untagged: the adapter's name first, then media, the salt last. So an adapter named like a salt is taken
    away before anything is believed.
    """
    if stored.parent is not None:
        return None
    if stored.sparse:  # the first that is kept need not be the prompt's first
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


def _stored(wire: _StoredWire) -> Event:
    hashes, token_ids, block_tokens = wire.block_hashes, wire.token_ids, wire.block_size
    if not _in_gpu(wire):
        group, size = wire.group_idx or 0, max(0, block_tokens)
        return Stored(_hashes(hashes), None, b"", size, wire.medium, group=group, locality=wire.locality, ownership=wire.ownership)
    if token_ids and (block_tokens < 1 or len(token_ids) % block_tokens or len(token_ids) < len(hashes) * block_tokens):
        raise EventError(f"token_ids: {len(token_ids)} ids for {len(hashes)} blocks of {block_tokens}")
    sparse = len(token_ids) > len(hashes) * max(0, block_tokens)
    try:
        extra_keys = _extra_keys(bytes(wire.extra_keys), len(hashes))
    except _TooManyKeys:
        return Unknown("BlockStored with very many keys")  # credited to nobody
    try:
        tokens = b"" if sparse else struct.pack(f"<{len(token_ids)}I", *token_ids)
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
        extra_keys,
        wire.group_idx or 0,
        wire.kv_cache_spec_kind,
        wire.kv_cache_spec_sliding_window,
        wire.locality,
        wire.ownership,
        wire.cache_salt,
        sparse,
    )


def _in_gpu(wire: _StoredWire) -> bool:
    """Whether blocks were stored where the engine computes. Of other places hashes alone are of use: connectors cut tokens and keys at will."""
    return wire.locality != "REMOTE" and (wire.medium is None or wire.medium.upper() == "GPU")


def _hashes(hashes: tuple[Hash, ...]) -> tuple[Hash, ...]:
    """Bounded; signed 64-bit hashes become unsigned, so that one block has one name."""
    if len(hashes) > MAX_BLOCKS:
        raise EventError(f"block_hashes: {len(hashes)} in one event; at most {MAX_BLOCKS} are read")
    for hash_ in hashes:
        if isinstance(hash_, int):
            if hash_ < 0:
                return tuple([value % _U64 if isinstance(value, int) else value for value in hashes])
        elif len(hash_) > MAX_HASH_BYTES:
            raise EventError("block_hashes: a hash is too long")
    return hashes


def _read(raw: bytes) -> tuple[Event, int]:
    """One event, and how many of its fields are not known."""
    try:
        return _event(_one_map.decode(raw)), 0
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        fields, tag, unknown = _fields(raw)
    if tag == _CLEARED:
        return Cleared(), unknown
    if tag not in _WIRES:
        return Unknown(tag[:MAX_NAME_CHARACTERS]), 0
    if _is_array_of_arrays(bytes(fields.get("token_ids", _NIL))):
        return Unknown("BlockStored of pairs"), 0  # speculative decoding's pairs of tokens: no plain chain
    name = ""
    try:
        values = {}
        for name, value in fields.items():
            values[name] = _fields_of[tag][name].decode(value)
        return _event(_WIRES[tag](**values)), unknown
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError, OverflowError) as error:
        raise EventError(f"{tag}: {name} {_place(error)}") from error


def _fields(raw: bytes) -> tuple[dict[str, msgspec.Raw], str, int]:
    """An event's known fields, its tag, and how many unknown fields it has."""
    try:
        if _is_map(raw):
            found = _fields_of_map.decode(raw)
            tag = _text.decode(found.pop("type")) if "type" in found else None
            known = _fields_of.get(tag or "", {})
            fields = {name: found[name] for name in known if name in found}
            return fields, str(tag), len(found) - len(fields)
        parts = _fields_of_array.decode(raw)
        tag = _text.decode(parts.pop(0)) if parts else None
        if tag is None:
            raise EventError("events: an array without a tag")
        known = _fields_of.get(tag, {})
        more: dict[str, msgspec.Raw] = {}
        if len(parts) == _METADATA_AT + 1 and _is_map(bytes(parts[-1])):
            salt = _fields_of_map.decode(parts.pop()).get("cache_salt")
            more = {} if salt is None else {"cache_salt": salt}
        return {**dict(zip(known, parts, strict=False)), **more}, tag, max(0, len(parts) - len(known))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventError("events: an event is neither a map with a type nor an array that begins with one") from error


# MessagePack's first byte tells what follows: reading it spares building what is not wanted.


def _is_map(raw: bytes) -> bool:
    return bool(raw) and (0x80 <= raw[0] <= 0x8F or raw[0] in (0xDE, 0xDF))


def _array_header(raw: bytes) -> int:
    """How many bytes announce an array; 0: it is none."""
    if not raw:
        return 0
    return 1 if 0x90 <= raw[0] <= 0x9F else {0xDC: 3, 0xDD: 5}.get(raw[0], 0)


def _array_length(raw: bytes) -> int:
    header = _array_header(raw)
    return raw[0] & 15 if header == 1 else int.from_bytes(raw[1:header], "big")


def _is_array_of_arrays(raw: bytes) -> bool:
    header = _array_header(raw)
    return bool(header) and bool(_array_header(raw[header : header + 1]))


def _extra_keys(raw: bytes, blocks: int) -> ExtraKeys | None:
    """The entries of an event. Most are alike (none, or an adapter's name), so each is read once.

    Raises:
        _TooManyKeys: they are more than is worth reading.
    """
    if raw == _NIL:
        return None
    if _array_header(raw) and _array_length(raw) != blocks:
        raise EventError(f"extra_keys: {_array_length(raw)} entries for {blocks} blocks")
    try:
        entries = [bytes(entry) for entry in _entries.decode(raw) or ()]
        distinct = dict.fromkeys(entries)
        if sum(map(len, distinct)) > MAX_KEYS_BYTES:
            raise _TooManyKeys
        read = {entry: _entry.decode(entry) for entry in distinct}
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventError(f"extra_keys: no list with an entry for each block: {_place(error)}") from error
    return tuple([read[entry] for entry in entries])


class _TooManyKeys(Exception):
    pass


def _place(error: Exception) -> str:
    """Where a typed decoder stumbled. Its own texts name types and paths, no values."""
    return str(error)[:MAX_NAME_CHARACTERS]


def blocks_of(stored: Stored) -> int:
    """How many blocks carry tokens."""
    return len(stored.tokens) // (stored.block_tokens * TOKEN_BYTES) if stored.block_tokens else 0
