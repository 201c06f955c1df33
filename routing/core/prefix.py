"""A prompt's prefix as a chain of keyed digests: what the router can compare without the engine's tokens.

The prompt is written out as bytes in the order an engine's template reads it (tools, then messages), cut into blocks, and each block gets the digest
of everything up to its end, keyed by the namespace's index seed. Nobody outside the namespace can match or guess a digest. An edit anywhere changes
every later digest and no earlier one.

The first :data:`FINE_BLOCKS` blocks have :data:`BLOCK_BYTES`, those after them :data:`WIDE_BYTES`, however long the prompt is, so that a longer one
extends a shorter. A match is thus short by less than 128 bytes in a short prompt and by less than an eighth of itself in a long one, and a prompt
of 100 KB has 219 blocks and not 781: blocks are what digesting, remembering and telling siblings of a prompt cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

BLOCK_BYTES = 128
WIDE_BYTES = 512
FINE_BLOCKS = 32
DIGEST_BYTES = 16
MAX_BYTES = 8 * 1024 * 1024  # of a prompt; what lies beyond is not matched, only sent
_FINE_BYTES = FINE_BLOCKS * BLOCK_BYTES
_WIDTH = WIDE_BYTES // BLOCK_BYTES
MAX_BLOCKS = FINE_BLOCKS + (MAX_BYTES - _FINE_BYTES) // WIDE_BYTES
_encoder = msgspec.json.Encoder(order="deterministic")


def chat_bytes(messages: Sequence[Any], tools: object = None) -> bytes:
    """Write a chat prompt as bytes: equal conversations give equal bytes whatever their key order or white space; a longer one extends a shorter."""
    parts = [_encoder.encode(tools) if tools else b""]
    parts.extend(_encoder.encode(message) for message in messages)
    return b"\x1e".join(parts)


def prompt_bytes(prompt: object) -> bytes:
    """Write the ``prompt`` of a completion as bytes: text, a list of texts, token ids, or a list of lists of token ids."""
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt):
        return b"".join(int(token).to_bytes(4, "little", signed=False) for token in prompt if 0 <= token < 2**32)
    return _encoder.encode(prompt)


def prompt_units(body: Mapping[str, Any]) -> bytes:
    """The bytes of any supported request body: ``messages`` (with ``tools``) or ``prompt``."""
    if "messages" in body:
        return chat_bytes(body["messages"], body.get("tools"))
    return prompt_bytes(body.get("prompt", ""))


def extent(blocks: int) -> int:
    """How much of a prompt its first ``blocks`` blocks cover, in units of ``BLOCK_BYTES``."""
    return blocks if blocks <= FINE_BLOCKS else FINE_BLOCKS + (blocks - FINE_BLOCKS) * _WIDTH


def covered_bytes(blocks: int) -> int:
    """How many bytes of a prompt its first ``blocks`` blocks cover."""
    return extent(blocks) * BLOCK_BYTES


def whole_blocks(size_bytes: int) -> int:
    """How many whole blocks a prompt of ``size_bytes`` has, at most ``MAX_BLOCKS``."""
    if size_bytes <= _FINE_BYTES:
        return size_bytes // BLOCK_BYTES
    return min(MAX_BLOCKS, FINE_BLOCKS + (size_bytes - _FINE_BYTES) // WIDE_BYTES)


def widest_bytes(size_bytes: int) -> int:
    """The largest block of a prompt of ``size_bytes``: how far a place in it may be from the end of a block."""
    return BLOCK_BYTES if size_bytes <= _FINE_BYTES else WIDE_BYTES


def marks(digests: Sequence[bytes]) -> Sequence[bytes]:
    """Of a chain, the digest at the end of each ``WIDE_BYTES``: an even measure of how much there is."""
    return (*digests[_WIDTH - 1 : FINE_BLOCKS : _WIDTH], *digests[FINE_BLOCKS:])


def chain(seed: bytes, prompt: bytes) -> tuple[bytes, ...]:
    """Digests (16 bytes each) of every whole block of ``prompt``, each covering all bytes up to its end (0.5 us a block, 0.8 us a wide one)."""
    running = hashlib.sha256(seed)
    update, copy = running.update, running.copy
    digests = []
    place = 0
    for blocks, width in ((FINE_BLOCKS, BLOCK_BYTES), (MAX_BLOCKS - FINE_BLOCKS, WIDE_BYTES)):
        for start in range(place, place + min(blocks, (len(prompt) - place) // width) * width, width):
            update(prompt[start : start + width])
            digests.append(copy().digest()[:DIGEST_BYTES])
        place += blocks * width
    return tuple(digests)


def rank_stem(seed: bytes, digests: Sequence[bytes]) -> bytes:
    """What the ranks of all replicas for one namespace and its first two blocks have in common."""
    return seed + b"".join(digests[:2])


def rank(stem: bytes, replica_id: bytes) -> bytes:
    """A rank for (namespace, first two blocks, replica): routers with different views agree on the same cold replica."""
    return hashlib.sha256(stem + replica_id).digest()[:8]


def rendezvous(seed: bytes, digests: Sequence[bytes], replica_id: bytes) -> bytes:
    """As :func:`rank`, where one replica is asked for."""
    return rank(rank_stem(seed, digests), replica_id)
