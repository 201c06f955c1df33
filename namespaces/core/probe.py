"""The short-lived token of an audit's probe: what one request through a router's internal door may do, signed by the control plane.

Token = b64url(payload) "." b64url(Ed25519 over ``saltroute/probe/v1\\0`` + payload), without padding; the payload is the JSON of :class:`Claims`.
The signature covers the bytes as sent, so nothing has to be encoded again to be verified. Routers know the publisher's public key already.

A token carries no salt and no credential: it names a tenant, an endpoint, a replica and one of two synthetic audit scopes, and the router derives
the rest as it does for everybody. Who holds one for its sixty seconds can send prompts of his own in namespaces that no client can reach.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal
from uuid import UUID, uuid5

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SCHEME = "Probe"  # Authorization: Probe <token>
PURPOSE = b"saltroute/probe/v1\0"
MAX_LIFE_S = 60.0
MAX_TOKEN_CHARACTERS = 2048
MAX_ADDED_SALT_CHARACTERS = 81  # 128, the most an engine takes, less the 47 of a salt
Letter = Literal["A", "B"]


class ProbeError(Exception):
    """The token is not ours, was changed, has expired, or lives longer than allowed. One error for all, with one text."""

    def __init__(self) -> None:
        super().__init__("probe token refused")


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the probe is.

    ``adapter`` is the served name that the engine gets in place of the endpoint's own. It does *not* enter the identity: base model and adapter
    are sent under one salt, since the engine's own key is what is tried. What the engine gets as salt is ``salt_prefix + salt + salt_suffix``;
    they change nothing else. They let an audit meet engines that join texts, or that read only a part of the salt.
    """

    tenant: UUID
    endpoint: UUID
    replica: UUID
    scope: Letter
    run: UUID  # of the audit; enters the synthetic scope, so that every run starts cold
    exp: float  # unix s
    nonce: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    adapter: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    salt_prefix: Annotated[str, msgspec.Meta(max_length=MAX_ADDED_SALT_CHARACTERS)] = ""
    salt_suffix: Annotated[str, msgspec.Meta(max_length=MAX_ADDED_SALT_CHARACTERS)] = ""

    def engine_salt(self, salt: str) -> str:
        """What to send in place of the derived ``salt``."""
        return f"{self.salt_prefix}{salt}{self.salt_suffix}"


_decoder = msgspec.json.Decoder(Claims)


def scope_id(run: UUID, letter: Letter) -> UUID:
    """The id of an audit's synthetic scope; its segment is ``audit-a`` or ``audit-b``, its version 1. No tenant can have a scope of this id."""
    return uuid5(run, letter)


def sign(claims: Claims, publish_key: bytes) -> str:
    """The token. ``publish_key`` is the publisher's Ed25519 seed (32 bytes)."""
    payload = msgspec.json.encode(claims)
    signature = Ed25519PrivateKey.from_private_bytes(publish_key).sign(PURPOSE + payload)
    return f"{_text(payload)}.{_text(signature)}"


def verify(token: str, publish_public_key: bytes, *, now_s: float) -> Claims:
    """Read a token. Its nonce is the caller's to remember, if a repeat must be refused.

    Raises:
        ProbeError: anything at all is wrong with it.
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise ProbeError
    head, dot, tail = token.partition(".")
    try:
        payload, signature = _bytes(head), _bytes(tail)
        Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, PURPOSE + payload)
        claims = _decoder.decode(payload)
    except (InvalidSignature, ValueError, binascii.Error, msgspec.MsgspecError):
        raise ProbeError from None
    added_characters = len(claims.salt_prefix) + len(claims.salt_suffix)
    if not dot or not now_s < claims.exp <= now_s + MAX_LIFE_S or added_characters > MAX_ADDED_SALT_CHARACTERS:
        raise ProbeError
    return claims


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Strict: one spelling for each value, so that a token cannot be varied."""
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(raw) != text:
        raise ValueError("not canonical")
    return raw
