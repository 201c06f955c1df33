"""What a trace capture keeps of one request: when, how long, and which blocks it began with, as ids under the capture's key.

No content, no token ids, no digest that somebody without the key could make.

An id is the first 63 bits of a chain of HMAC-SHA256 under the capture's key (``namespaces.core.captures``): block *i* is
``HMAC(key, state of the block before | its tokens)``, so an id stands for the block and everything before it, and equal ids are equal prefixes within
one capture. Blocks have 512 tokens, as in Mooncake's traces; the last may be partial.

Where the exact tokens of a prompt are known they are what is cut. Else the prompt written out as bytes is, in pieces of 2048: four bytes a token, and
the prompt's length is counted by the same measure, so that blocks and lengths agree; ``exact`` says which of the two it was. Ids of the two kinds
never match.

The stream's form is msgpack without names, authenticated as decision records are (:func:`routing.core.record.authenticate`).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from uuid import UUID

import msgspec

from routing.core import blocks
from routing.core.record import RecordError

BLOCK_TOKENS = 512
TEXT_BYTES_PER_TOKEN = 4
MAX_BLOCKS = 2048  # of one request, a million tokens; what lies beyond has no ids
ID_BYTES = 8
_DIGEST = "sha256"
_TOKENS, _TEXT, _SCOPE, _SESSION, _SAMPLE, _CUT = (label.ljust(32, b"\0") for label in (b"tokens", b"text", b"scope", b"session", b"sample", b"cut"))
_SPACE = 1 << 64


class CaptureRecord(msgspec.Struct, frozen=True, array_like=True):
    """One captured request. ``session`` and ``scope`` are ids under the capture's key too; 0 is not known."""

    id: UUID
    tenant_id: UUID
    capture_id: UUID
    at: float  # unix s
    prompt_tokens: int
    output_tokens: int
    blocks: bytes  # ids of 8 bytes, big-endian, each below 2**63
    exact: bool  # tokens as the engine's; else four bytes each
    session: int  # the conversation it belongs to
    named: bool  # by the client's own word; else by how the user opened it
    turn: int  # answers that the prompt holds already
    scope: int  # the namespace whose blocks it can share
    kind: str  # its workload class, as the router has it
    duration_ms: int  # from its first line to its last
    router_id: str
    boot_ms: int  # unix ms of the router's start; with it, ``serial`` counts what this process captured for the capture, losses included
    serial: int


_decoder = msgspec.msgpack.Decoder(CaptureRecord)


def stream_key(records_key: bytes) -> bytes:
    """What authenticates captured requests in their stream, apart from decision records: neither passes for the other."""
    return hmac.digest(records_key, b"captures", _DIGEST)


def with_blocks(record: CaptureRecord, packed: bytes) -> CaptureRecord:
    return msgspec.structs.replace(record, blocks=packed)


def encode(record: CaptureRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> CaptureRecord:
    """Decode a record.

    Raises:
        RecordError: malformed, or its ids are.
    """
    try:
        record = _decoder.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError):
        raise RecordError("malformed") from None
    if len(record.blocks) % ID_BYTES or len(record.blocks) > MAX_BLOCKS * ID_BYTES:
        raise RecordError("malformed")
    return record


def token_blocks(key: bytes, token_ids: Sequence[int]) -> bytes:
    """Ids of a prompt's blocks by its exact tokens, 8 bytes each.

    Raises:
        ValueError: an id is no integer from 0 to 2**32 - 1.
    """
    return _chain(key, _TOKENS, blocks.pack(token_ids[: MAX_BLOCKS * BLOCK_TOKENS]), BLOCK_TOKENS * blocks.TOKEN_BYTES)


def text_blocks(key: bytes, prompt: bytes) -> bytes:
    """Ids of a prompt's blocks by its bytes, 8 bytes each; as many as :func:`text_tokens` asks for."""
    size = BLOCK_TOKENS * TEXT_BYTES_PER_TOKEN
    return _chain(key, _TEXT, prompt[: min(text_tokens(prompt) * TEXT_BYTES_PER_TOKEN, MAX_BLOCKS * size)], size)


def text_tokens(prompt: bytes) -> int:
    """The length of a prompt whose tokens are not known: four bytes each, at least one."""
    return max(1, len(prompt) // TEXT_BYTES_PER_TOKEN)


def _chain(key: bytes, start: bytes, content: bytes, size: int) -> bytes:
    state, found = start, []
    for place in range(0, len(content), size):
        piece = content[place : place + size]
        # A partial block is marked as one: it must not look like the beginning of a whole one.
        state = hmac.digest(key, state + piece + (b"" if len(piece) == size else _CUT), _DIGEST)
        found.append(_id(state).to_bytes(ID_BYTES, "big"))
    return b"".join(found)


def _id(state: bytes) -> int:
    return int.from_bytes(state[:ID_BYTES], "big") >> 1


def ids(packed: bytes) -> tuple[int, ...]:
    """The ids of a record, as numbers."""
    return tuple(int.from_bytes(packed[place : place + ID_BYTES], "big") for place in range(0, len(packed), ID_BYTES))


def session_id(key: bytes, conversation: bytes) -> int:
    """A conversation's name in a capture, never 0."""
    return _id(hmac.digest(key, _SESSION + conversation, _DIGEST)) or 1


def scope_id(key: bytes, namespace: bytes) -> int:
    """A namespace's name in a capture, never 0."""
    return _id(hmac.digest(key, _SCOPE + namespace, _DIGEST)) or 1


def sampled(key: bytes, conversation: bytes, share: float) -> bool:
    """Whether a conversation is among the captured share: the same answer for each of its turns, in every router."""
    return int.from_bytes(hmac.digest(key, _SAMPLE + conversation, _DIGEST)[:8], "big") < share * _SPACE
