"""Block hashes: the chain by which vLLM names the blocks of its prefix cache."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence

import cbor2

from routing.simulator.config import TRUNCATED_SALT_CHARACTERS, Adapter, HashAlgorithm, SaltMode

ExtraKeys = tuple[tuple[str, ...], ...] | None
_SEED = "vllm-none-hash"


def _dump(value: object, algorithm: HashAlgorithm) -> bytes:
    if algorithm == "sha256":
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return cbor2.dumps(value, canonical=True)


def root_hash(algorithm: HashAlgorithm) -> bytes:
    """The parent of every first block: 32 bytes, the same in every replica and after every restart."""
    return hashlib.sha256(_dump(_SEED, algorithm)).digest()


def block_hash(parent: bytes, token_ids: Sequence[int], extra: ExtraKeys, algorithm: HashAlgorithm) -> bytes:
    """Hash one full block onto its parent.

    Args:
        parent: the digest before it, or ``root_hash``.
        token_ids: exactly one block of them.
        extra: what else names this block, tagged: ``(("lora", name, path), ("cache_salt", salt))``, or None.

    Returns:
        32 bytes. KV events carry the last 8 as an unsigned big-endian integer.

    Source: recomputed outside vLLM 0.32.0 and equal to its recorded events (tests/vectors/vllm-0.32).
    """
    return hashlib.sha256(_dump((parent, tuple(token_ids), extra), algorithm)).digest()


def extra_keys(block_index: int, *, salt: str | None, adapter: Adapter | None, mode: SaltMode) -> ExtraKeys:
    """What enters the hash of a block besides its tokens: the adapter in every block, the salt in block 0 alone.

    Children inherit the salt through their parent's hash. The three broken modes are engines that a router must
    find out about: one that never reads the salt, one that keeps its first characters, one that glues adapter and
    salt together so that ("a", "bc") and ("ab", "c") share.
    """
    if mode == "ignore_salt":
        salt = None
    elif mode == "truncate_salt" and salt is not None:
        salt = salt[:TRUNCATED_SALT_CHARACTERS]
    elif mode == "concat_salt_with_adapter":
        glued = (adapter.name if adapter else "") + (salt or "")
        return (("cache_salt", glued),) if glued and block_index == 0 else None
    keys: list[tuple[str, ...]] = []
    if adapter is not None:
        keys.append(("lora", adapter.name, adapter.path))
    if salt is not None and block_index == 0:
        keys.append(("cache_salt", salt))
    return tuple(keys) or None


def shown_extra_keys(extra: ExtraKeys) -> tuple[str, ...] | None:
    """The same keys as a KV event shows them: untagged, the adapter by name only."""
    return tuple(key[1] for key in extra) if extra else None
