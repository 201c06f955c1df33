"""Messages between the router and a worker: four bytes of length, then msgpack. A request is [operation, arguments...], an answer [status, value]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

HEAD_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class FrameError(Exception):
    """Not a frame that the other side may send."""


def pack(value: Any) -> bytes:
    """A frame.

    Raises:
        OverflowError, TypeError: the value holds what msgpack cannot express, such as an integer beyond 64 bits.
    """
    body = _encode(value)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def around(values: Sequence[Any], content: bytes) -> tuple[bytes, bytes]:
    """The frame of a list of ``values`` (14 at most) and ``content``, in two parts: a large content is not copied."""
    body = bytes((0x90 | len(values) + 1,)) + b"".join(map(_encode, values)) + b"\xc6" + len(content).to_bytes(4, "big")
    return (len(body) + len(content)).to_bytes(HEAD_BYTES, "big") + body, content


def unpack(body: bytes) -> Any:
    """A frame's value.

    Raises:
        FrameError: not msgpack.
    """
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise FrameError from None


def read(source: BinaryIO) -> Any:
    """The next frame of a blocking stream; None at its end."""
    head = source.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    return unpack(source.read(int.from_bytes(head, "big")))
