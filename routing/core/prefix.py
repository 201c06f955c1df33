"""A prompt's prefix as a chain of keyed digests: what the router can compare without the engine's tokens.

The prompt is written out as bytes in the order an engine's template reads it (tools, then messages), cut into blocks of ``BLOCK_BYTES``, and each
block gets the digest of everything up to its end, keyed by the namespace's index seed. Nobody outside the namespace can match or guess a digest.
An edit anywhere changes every later digest and no earlier one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

BLOCK_BYTES = 128
DIGEST_BYTES = 16
MAX_BLOCKS = 65_536  # 8 MiB of prompt; what lies beyond is not matched, only sent
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


def chain(seed: bytes, prompt: bytes) -> tuple[bytes, ...]:
    """Digests (16 bytes each) of every whole block of ``prompt``, each covering all bytes up to its end (about 0.5 us a block)."""
    running = hashlib.sha256(seed)
    update, copy = running.update, running.copy
    digests = []
    for start in range(0, min(len(prompt), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        update(prompt[start : start + BLOCK_BYTES])
        digests.append(copy().digest()[:DIGEST_BYTES])
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
