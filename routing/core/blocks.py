"""A prompt's token ids as a chain of keyed digests, cut where an engine cuts its KV blocks.

The digest of a block covers all tokens up to its end and starts from the namespace's index seed: equal prefixes of one namespace have equal digests
in every router and for every engine family, and nobody outside the namespace can match or guess one. An engine's own block hashes are never
compared between replicas: each belongs to its engine's process.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from hashlib import sha256

DIGEST_BYTES = 16
TOKEN_BYTES = 4
_NATIVE = "I" if array("I", [1]).tobytes() == b"\x01\0\0\0" else ""  # an array of this type is in wire form as it is


def root(seed: bytes) -> bytes:
    """The parent (16 bytes) of block 0 under a namespace's index seed."""
    return sha256(b"saltroute/blocks/v1" + seed).digest()[:DIGEST_BYTES]


def child(parent: bytes, tokens_le32: bytes) -> bytes:
    """The digest (16 bytes) of one whole block. ``tokens_le32``: its token ids, each an unsigned 32-bit little-endian integer."""
    return sha256(parent + tokens_le32).digest()[:DIGEST_BYTES]


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as unsigned 32-bit little-endian integers.

    Raises:
        ValueError: an id is no integer from 0 to 2**32 - 1.
    """
    if isinstance(token_ids, array) and token_ids.typecode == _NATIVE:
        return token_ids.tobytes()
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise ValueError("a token id is not an integer from 0 to 2**32 - 1") from error


def token_chain(seed: bytes, token_ids: Sequence[int], block_tokens: int) -> tuple[bytes, ...]:
    """Digests of the whole blocks of ``block_tokens`` ids each; what does not fill a block has none (about 0.6 us a block of 16).

    Raises:
        ValueError: an id is no integer from 0 to 2**32 - 1, or ``block_tokens`` is below 1.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
    blocks = len(token_ids) // block_tokens
    packed = pack(token_ids[: blocks * block_tokens])
    width = block_tokens * TOKEN_BYTES
    digests = []
    parent = root(seed)
    for start in range(0, len(packed), width):
        parent = sha256(parent + packed[start : start + width]).digest()[:DIGEST_BYTES]
        digests.append(parent)
    return tuple(digests)
