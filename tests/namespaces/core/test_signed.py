"""Tokens of the control plane to routers, of each kind: what opens, and that nothing else does."""

from __future__ import annotations

import base64
from typing import Any
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from namespaces.core import keyring
from namespaces.core.check import ORDERS, Order
from namespaces.core.probe import PROBES, Claims
from namespaces.core.signed import MAX_LIFE_S, Kind, TokenRefused

SEED = bytes(range(32))
PUBLIC = keyring.publish_public_key(SEED)
NOW_S = 1_700_000_000.0
IDS = [UUID(int=number) for number in range(1, 5)]
KINDS: dict[str, Kind[Any]] = {"probe": PROBES, "order": ORDERS}
kinds = pytest.mark.parametrize("kind", list(KINDS))


def held(kind: str, exp: float = NOW_S + 30) -> Claims | Order:
    if kind == "probe":
        return Claims(tenant=IDS[0], endpoint=IDS[1], replica=IDS[2], scope="A", run=IDS[3], exp=exp, nonce="n1")
    return Order(tenant=IDS[0], check=IDS[1], url="http://10.0.0.1:8000", engine="vllm", exp=exp, nonce="n1", credential=b"\xff\x00sealed")


def token(kind: str, exp: float = NOW_S + 30) -> str:
    return KINDS[kind].sign(held(kind, exp), SEED)


@kinds
def test_what_was_signed_opens(kind: str) -> None:
    """As it was, to the last moment before its end and from the first at which it may be so far ahead."""
    for now_s in (NOW_S, NOW_S + 29.9, NOW_S + 30 - MAX_LIFE_S):
        assert KINDS[kind].verify(token(kind), PUBLIC, now_s=now_s) == held(kind)


@pytest.mark.parametrize("kind", list(KINDS))
@given(data=st.data())
def test_no_changed_character_opens(kind: str, data: st.DataObject) -> None:
    """Every position counts, the last bits of the encoding too."""
    text = token(kind)
    position = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([c for c in "ABCDabcd0189-_.=" if c != text[position]]))
    with pytest.raises(TokenRefused):
        KINDS[kind].verify(text[:position] + other + text[position + 1 :], PUBLIC, now_s=NOW_S)


@kinds
@pytest.mark.parametrize("expires_s", [NOW_S, NOW_S - 1, NOW_S + MAX_LIFE_S + 1, float("nan"), float("inf")])
def test_expired_or_too_long_lived(kind: str, expires_s: float) -> None:
    with pytest.raises(TokenRefused):
        KINDS[kind].verify(token(kind, expires_s), PUBLIC, now_s=NOW_S)


@kinds
@pytest.mark.parametrize("text", ["", ".", "a", "a.b", "a.b.c", "é.é", "\0"])
def test_what_is_no_token(kind: str, text: str) -> None:
    with pytest.raises(TokenRefused):
        KINDS[kind].verify(text, PUBLIC, now_s=NOW_S)


@kinds
def test_another_key_does_not_open(kind: str) -> None:
    with pytest.raises(TokenRefused):
        KINDS[kind].verify(token(kind), keyring.publish_public_key(bytes(32)), now_s=NOW_S)


@kinds
def test_a_signature_for_another_purpose_does_not_open(kind: str) -> None:
    """The publish key signs snapshots too, and tokens of the other kind: what is held may be the same to the byte."""
    held_by = Kind(type(held(kind)), purpose=b"saltroute/another/v1\0", max_characters=4096)
    assert held_by.verify(held_by.sign(held(kind), SEED), PUBLIC, now_s=NOW_S) == held(kind)
    payload = msgspec.json.encode(held(kind))
    bare = ".".join(_text(part) for part in (payload, Ed25519PrivateKey.from_private_bytes(SEED).sign(payload)))
    for text in (held_by.sign(held(kind), SEED), bare):
        with pytest.raises(TokenRefused):
            KINDS[kind].verify(text, PUBLIC, now_s=NOW_S)


@kinds
def test_a_token_that_is_too_long_is_not_looked_at(kind: str) -> None:
    """However good it is: one that has room for it opens it."""
    made = Kind(type(held(kind)), purpose=b"saltroute/test/v1\0", max_characters=4096)
    text = made.sign(held(kind), SEED)
    wide, narrow = (Kind(type(held(kind)), purpose=b"saltroute/test/v1\0", max_characters=len(text) - less) for less in (0, 1))
    assert wide.verify(text, PUBLIC, now_s=NOW_S) == held(kind)
    with pytest.raises(TokenRefused):
        narrow.verify(text, PUBLIC, now_s=NOW_S)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
