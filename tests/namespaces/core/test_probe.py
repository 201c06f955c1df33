"""Probe tokens: which claims open. What holds of every token of the control plane's is in ``test_signed.py``."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from namespaces.core import keyring, probe
from namespaces.core.probe import Claims
from namespaces.core.signed import TokenRefused

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


@dataclass
class Wrong:
    """Claims that ours never are, signed with the right key."""

    values: dict[str, Any]

    def token(self) -> str:
        payload = msgspec.json.encode({**msgspec.to_builtins(claims()), **self.values})
        signature = Ed25519PrivateKey.from_private_bytes(SEED).sign(b"saltroute/probe/v1\0" + payload)
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
    with pytest.raises(TokenRefused):
        probe.verify(Wrong(values).token(), PUBLIC, now_s=NOW_S)


def test_what_is_added_to_a_salt_stays_around_it() -> None:
    assert claims(salt_prefix="ada", salt_suffix="-1").engine_salt("sr1-x") == "adasr1-x-1"
    assert claims().engine_salt("sr1-x") == "sr1-x"


def test_synthetic_scopes_differ_by_run_and_letter() -> None:
    made = {probe.scope_id(run, letter) for run in IDS for letter in ("A", "B")}
    assert len(made) == 8
