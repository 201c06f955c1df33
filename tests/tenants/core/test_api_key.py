"""The text form of keys."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid


@given(st.binary(min_size=32, max_size=32), st.sampled_from(Kind))
def test_a_key_can_travel_in_a_header_and_shows_little(entropy: bytes, kind: Kind) -> None:
    """Visible ASCII, acceptable as an own key too; its first characters tell at most 6 of 43 random ones."""
    key = api_key.compose(kind, entropy)
    assert api_key.check_own(key, field="secret") == key
    assert key.startswith(api_key.shown(key))
    assert len(api_key.shown(key)) <= 12
    assert api_key.digest(key) == hashlib.sha256(key.encode()).digest()


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_other_entropy_is_another_key(one: bytes, other: bytes) -> None:
    """And the two kinds never meet."""
    assert (api_key.compose(Kind.CONTROL, one) == api_key.compose(Kind.CONTROL, other)) == (one == other)
    assert api_key.compose(Kind.CONTROL, one) != api_key.compose(Kind.INFERENCE, one)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_too_little_entropy_is_a_mistake(size: int) -> None:
    """Never a weaker key."""
    with pytest.raises(ValueError, match="32 random bytes"):
        api_key.compose(Kind.INFERENCE, b"x" * size)


@given(st.text())
def test_any_text_has_a_digest(text: str) -> None:
    """Whatever a header brings, also lone surrogates, is compared and never crashes."""
    assert len(api_key.digest(text)) == 32
    assert len(api_key.shown(text)) <= len(text) / 4


@pytest.mark.parametrize("key", ["x" * 19, "x" * 257, "x" * 30 + " ", "é" * 30, "x" * 30 + "\x7f", None, 7, b"x" * 30])
def test_an_own_key_is_checked(key: object) -> None:
    """20 to 256 visible ASCII characters."""
    with pytest.raises(Invalid) as refusal:
        api_key.check_own(key, field="secret")
    assert refusal.value.field == "secret"
