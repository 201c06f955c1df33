"""Keys: two kinds that are never taken for one another, recognisable but not guessable from what is stored."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid

entropy = st.binary(min_size=32, max_size=32)
visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=20, max_size=256)


@given(entropy, entropy)
def test_composed_keys_are_well_formed_and_as_distinct_as_their_entropy(one: bytes, other: bytes) -> None:
    assume(one != other)
    made = [api_key.compose(kind, raw) for kind in Kind for raw in (one, other)]
    assert len(set(made)) == len({api_key.digest(key) for key in made}) == 4
    for key in made:
        assert re.fullmatch(r"(sk-sr-|srct-)[A-Za-z0-9_-]{43}", key)
        assert api_key.check_own(key, field="secret") == key


@given(entropy)
def test_kinds_differ_in_prefix_so_neither_is_taken_for_the_other(raw: bytes) -> None:
    inference, control = (api_key.compose(kind, raw) for kind in (Kind.INFERENCE, Kind.CONTROL))
    assert inference.startswith("sk-sr-")
    assert control.startswith("srct-")
    assert api_key.digest(inference) != api_key.digest(control)


@given(visible)
def test_what_is_shown_is_a_prefix_and_at_most_a_quarter(key: str) -> None:
    shown = api_key.shown(key)
    assert key.startswith(shown)
    assert 4 * len(shown) <= len(key)
    assert len(shown) <= 12


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_whatever_a_header_holds_has_a_digest(key: str) -> None:
    assert len(api_key.digest(key)) == 32


@given(visible)
def test_an_own_key_of_visible_characters_is_taken_as_it_is(key: str) -> None:
    assert api_key.check_own(key, field="secret") == key


@given(visible, st.sampled_from(" \t\n\0\x7f\u00e9\u200b"))
def test_an_own_key_that_no_header_can_carry_is_refused(key: str, bad: str) -> None:
    with pytest.raises(Invalid):
        api_key.check_own(key[:10] + bad + key[10:200], field="secret")


@pytest.mark.parametrize("key", ["", "x" * 19, "x" * 257, None, 12345678901234567890, b"x" * 32])
def test_an_own_key_of_another_length_or_type_is_refused_without_being_repeated(key: object) -> None:
    with pytest.raises(Invalid) as refused:
        api_key.check_own(key, field="keys[0].secret")
    assert refused.value.field == "keys[0].secret"
    assert not key or str(key) not in refused.value.message


@pytest.mark.parametrize("size", [0, 31, 33])
def test_entropy_of_another_size_is_a_mistake_of_ours(size: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        api_key.compose(Kind.INFERENCE, bytes(size))
