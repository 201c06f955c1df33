"""KV events in vLLM's wire format, without any socket."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

EventHash = int | bytes


class BlockStored(msgspec.Struct, frozen=True, tag=True, tag_field="type", kw_only=True):
    """Blocks that became findable: consecutive, one chain, ``len(token_ids) == len(block_hashes) * block_size``."""

    block_hashes: tuple[EventHash, ...]
    parent_block_hash: EventHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: tuple[tuple[str, ...] | None, ...]
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"
    session_id: str | UnsetType = UNSET


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, tag_field="type", kw_only=True):
    """One copy of a block was evicted; others with the same hash may remain."""

    block_hashes: tuple[EventHash, ...]
    medium: str
    group_idx: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, tag_field="type", kw_only=True):
    """The cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared

MEDIUM = "GPU"
_encoder = msgspec.msgpack.Encoder()


def short_hash(digest: bytes) -> int:
    """The integer form of a block hash: the last 8 bytes, unsigned, big-endian."""
    return int.from_bytes(digest[-8:], "big")


def encode_batch(timestamp_s: float, events: Sequence[KvEvent], data_parallel_rank: int = 0, *, arrays: bool = False) -> bytes:
    """One message payload: ``[unix seconds, [event map, ...], rank]`` in MessagePack.

    ``arrays``: events as older vLLM wrote them, ``[tag, value, ...]`` in the order of the map's keys, without what came later.
    """
    written = [_as_array(event) for event in events] if arrays else events
    return _encoder.encode([timestamp_s, written, data_parallel_rank])


def _as_array(event: KvEvent) -> list[object]:
    tag = type(event).__name__
    if isinstance(event, BlockStored):
        parent, medium = event.parent_block_hash, event.medium
        return [tag, event.block_hashes, parent, event.token_ids, event.block_size, event.lora_id, medium, event.lora_name, event.extra_keys]
    if isinstance(event, BlockRemoved):
        return [tag, event.block_hashes, event.medium]
    return [tag]
