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


def encode_batch(timestamp_s: float, events: Sequence[KvEvent], data_parallel_rank: int = 0) -> bytes:
    """One message payload: ``[unix seconds, [event map, ...], rank]`` in MessagePack."""
    return _encoder.encode([timestamp_s, events, data_parallel_rank])
