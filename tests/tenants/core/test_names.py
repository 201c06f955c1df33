"""What people may call things."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.core import names
from tenants.core.errors import Invalid


@pytest.mark.parametrize("value", ["a", "a-b", "0", "a" * 63, "9-9"])
def test_slugs(value: str) -> None:
    """Lower-case letters, digits and inner hyphens."""
    assert names.slug(value, field="slug") == value


@pytest.mark.parametrize("value", ["", "-a", "a-", "A", "a_b", "a.b", "a b", "ä", "a" * 64, "a\n", None, 1])
def test_what_is_no_slug(value: object) -> None:
    """Also not with a line break at the end."""
    with pytest.raises(Invalid):
        names.slug(value, field="slug")


@pytest.mark.parametrize("value", ["", " a", "a ", "a\nb", "a\0", "a\u200bb", "a\ud800", "a\u202eb", "e\u0301", "\ue000", "x" * 201, None, 1])
def test_what_is_no_label(value: object) -> None:
    """Invisible, directional, unassigned, decomposed, too long."""
    with pytest.raises(Invalid) as refusal:
        names.label(value, field="name")
    assert refusal.value.field == "name"


@given(st.text(min_size=1, max_size=50))
def test_a_label_is_kept_as_it_is_or_refused(text: str) -> None:
    """Never changed, and what passes is already normal."""
    try:
        assert names.label(text, field="name") == text
    except Invalid:
        return
    assert unicodedata.normalize("NFC", text) == text == text.strip()


@pytest.mark.parametrize("value", ["sr1-x", "SR1-x", "sr1-"])
def test_a_model_name_never_looks_like_a_salt(value: str) -> None:
    """In any case."""
    with pytest.raises(Invalid):
        names.model_name(value, field="model")
    assert names.model_name("meta/llama:8b", field="model") == "meta/llama:8b"
