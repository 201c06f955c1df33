"""The order to look at an engine, from the control plane to a router's internal door: which address, for whom, with which sealed credential.

The same form as a probe's token (:mod:`namespaces.core.probe`) under a purpose of its own, so that neither passes for the other. The credential
inside is sealed to the routers: whoever carries the order cannot read it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PURPOSE = b"saltroute/check/v1\0"
MAX_LIFE_S = 60.0
MAX_ORDER_CHARACTERS = 16 * 1024


class CheckError(Exception):
    """The order is not ours, was changed, has expired, or lives longer than allowed. One error for all, with one text."""

    def __init__(self) -> None:
        super().__init__("check refused")


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``check`` is what the credential is bound to, as a replica's is to its id. ``endpoint``: whose artifacts tokens are compared with."""

    tenant: UUID
    check: UUID
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    engine: Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
    exp: float  # unix s
    nonce: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    served_model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    endpoint: UUID | None = None
    credential: bytes | None = None


_decoder = msgspec.json.Decoder(Order)


def sign(order: Order, publish_key: bytes) -> str:
    """The order as text. ``publish_key`` is the publisher's Ed25519 seed (32 bytes)."""
    payload = msgspec.json.encode(order)
    signature = Ed25519PrivateKey.from_private_bytes(publish_key).sign(PURPOSE + payload)
    return f"{base64.b64encode(payload).decode()}.{base64.b64encode(signature).decode()}"


def verify(text: str, publish_public_key: bytes, *, now_s: float) -> Order:
    """Read an order. Its nonce is the caller's to remember.

    Raises:
        CheckError: anything at all is wrong with it.
    """
    if len(text) > MAX_ORDER_CHARACTERS:
        raise CheckError
    head, _, tail = text.partition(".")
    try:
        payload, signature = base64.b64decode(head, validate=True), base64.b64decode(tail, validate=True)
        Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, PURPOSE + payload)
        order = _decoder.decode(payload)
    except (InvalidSignature, ValueError, binascii.Error, msgspec.MsgspecError):
        raise CheckError from None
    if not now_s < order.exp <= now_s + MAX_LIFE_S:
        raise CheckError
    return order
