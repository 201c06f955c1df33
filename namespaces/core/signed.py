"""What the control plane tells a router's internal door in its own name: a short-lived token, signed, of one kind for each purpose.

Token = b64url(payload) "." b64url(Ed25519 over purpose + payload), without padding; the payload is the JSON of a struct with a field ``exp``, unix
seconds. The signature covers the bytes as sent, so nothing has to be encoded again to be verified. The purpose ends with a zero byte and is of one
kind alone, so none passes for another, nor for a snapshot, which the same key signs. Routers know the publisher's public key already.
"""

from __future__ import annotations

import base64
import binascii
from typing import Generic, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_LIFE_S = 60.0


class TokenRefused(Exception):
    """The token is not ours, was changed, has expired, or lives longer than allowed. One error for all, with one text."""

    def __init__(self) -> None:
        super().__init__("token refused")


class Expires(Protocol):
    """What a token holds; a frozen struct that forbids unknown fields, since an older router must not pass over a condition that it does not know."""

    @property
    def exp(self) -> float:
        """When it ends, unix s."""
        ...


Held = TypeVar("Held", bound=Expires)


class Kind(Generic[Held]):
    """Tokens of one kind: what they hold, the bytes that go before what is signed, and how long one may be."""

    def __init__(self, held: type[Held], *, purpose: bytes, max_characters: int) -> None:
        self._decoder = msgspec.json.Decoder(held)
        self._purpose = purpose
        self._max_characters = max_characters

    def sign(self, held: Held, publish_key: bytes) -> str:
        """The token. ``publish_key`` is the publisher's Ed25519 seed (32 bytes)."""
        payload = msgspec.json.encode(held)
        signature = Ed25519PrivateKey.from_private_bytes(publish_key).sign(self._purpose + payload)
        return f"{_text(payload)}.{_text(signature)}"

    def verify(self, token: str, publish_public_key: bytes, *, now_s: float) -> Held:
        """Read a token. Its nonce is the caller's to remember, if a repeat must be refused.

        Raises:
            TokenRefused: anything at all is wrong with it.
        """
        if len(token) > self._max_characters:
            raise TokenRefused
        head, _, tail = token.partition(".")
        try:
            payload, signature = _bytes(head), _bytes(tail)
            Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, self._purpose + payload)
            held = self._decoder.decode(payload)
        except (InvalidSignature, ValueError, binascii.Error, msgspec.MsgspecError):
            raise TokenRefused from None
        if not now_s < held.exp <= now_s + MAX_LIFE_S:
            raise TokenRefused
        return held


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Strict: one spelling for each value, so that a token cannot be varied."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(raw) != text:
        raise ValueError("not canonical")
    return raw
