"""Probe tokens: what opens, and that nothing else does."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.core import keyring, probe
from namespaces.core.probe import Claims, ProbeError

SEED = bytes(range(32))
PUBLIC = keyring.publish_public_key(SEED)
NOW_S = 1_700_000_000.0
IDS = [UUID(int=number) for number in range(1, 5)]


def claims(**more: Any) -> Claims:
    values: dict[str, Any] = {"tenant": IDS[0], "endpoint": IDS[1], "replica": IDS[2], "scope": "A", "run": IDS[3], "exp": NOW_S + 30, "nonce": "n1"}
    return Claims(**{**values, **more})


@given(st.sampled_from(["A", "B"]), st.text(max_size=81), st.none() | st.text(min_size=1, max_size=200), st.uuids())
def test_what_was_signed_opens(scope: Any, suffix: str, adapter: str | None, run: UUID) -> None:
    """Any claims within the bounds come back equal."""
    sent = claims(scope=scope, salt_suffix=suffix, adapter=adapter, run=run)
    token = probe.sign(sent, SEED)
    if len(token) <= probe.MAX_TOKEN_CHARACTERS:
        assert probe.verify(token, PUBLIC, now_s=NOW_S) == sent


@given(st.data())
def test_no_changed_character_opens(data: st.DataObject) -> None:
    """Every position counts, the last bits of the encoding too."""
    token = probe.sign(claims(), SEED)
    position = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from([c for c in "ABCDabcd0189-_.=" if c != token[position]]))
    with pytest.raises(ProbeError):
        probe.verify(token[:position] + other + token[position + 1 :], PUBLIC, now_s=NOW_S)


@pytest.mark.parametrize("expires_s", [NOW_S, NOW_S - 1, NOW_S + probe.MAX_LIFE_S + 1, float("nan"), float("inf")])
def test_expired_or_too_long_lived(expires_s: float) -> None:
    with pytest.raises(ProbeError):
        probe.verify(probe.sign(claims(exp=expires_s), SEED), PUBLIC, now_s=NOW_S)


@pytest.mark.parametrize("token", ["", ".", "a", "a.b", "a.b.c", "é.é", "x" * 5000, "\0"])
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(ProbeError):
        probe.verify(token, PUBLIC, now_s=NOW_S)


def test_another_key_does_not_open() -> None:
    with pytest.raises(ProbeError):
        probe.verify(probe.sign(claims(), bytes(32)), PUBLIC, now_s=NOW_S)


def test_a_signature_for_another_purpose_does_not_open() -> None:
    """The publish key signs snapshots too; neither can pass for the other."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    payload = msgspec.json.encode(claims())
    signature = Ed25519PrivateKey.from_private_bytes(SEED).sign(payload)
    token = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (payload, signature))
    with pytest.raises(ProbeError):
        probe.verify(token, PUBLIC, now_s=NOW_S)


@dataclass
class Wrong:
    """Claims that ours never are, signed with the right key."""

    values: dict[str, Any]

    def token(self) -> str:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        payload = msgspec.json.encode({**msgspec.to_builtins(claims()), **self.values})
        signature = Ed25519PrivateKey.from_private_bytes(SEED).sign(probe.PURPOSE + payload)
        return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (payload, signature))


BEYOND: list[dict[str, Any]] = [
    {"scope": "C"},
    {"salt_suffix": "x" * 82},
    {"salt_prefix": "x" * 41, "salt_suffix": "x" * 41},
    {"adapter": ""},
    {"nonce": ""},
    {"salt": "x"},
    {"tenant": "acme"},
    {"exp": "x"},
]


@pytest.mark.parametrize("values", BEYOND)
def test_claims_beyond_the_bounds(values: dict[str, Any]) -> None:
    """An unknown claim is refused too: an older router must not pass over a condition that it does not know."""
    with pytest.raises(ProbeError):
        probe.verify(Wrong(values).token(), PUBLIC, now_s=NOW_S)


def test_what_is_added_to_a_salt_stays_around_it() -> None:
    assert claims(salt_prefix="ada", salt_suffix="-1").engine_salt("sr1-x") == "adasr1-x-1"
    assert claims().engine_salt("sr1-x") == "sr1-x"


def test_synthetic_scopes_differ_by_run_and_letter() -> None:
    made = {probe.scope_id(run, letter) for run in IDS for letter in ("A", "B")}
    assert len(made) == 8
