"""Names: what cannot be told apart by eye or by an engine is refused, and nothing is changed silently."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.core import names
from tenants.core.errors import Invalid


def _refused(check: Callable[..., str], value: object) -> bool:
    """Whether the check refuses the value, naming the field; a value that is accepted must come back as it was."""
    try:
        accepted = check(value, field="name")
    except Invalid as refusal:
        return refusal.field == "name"
    assert accepted == value
    return False


@given(st.text(max_size=20) | st.integers() | st.none() | st.binary(max_size=3))
@pytest.mark.parametrize("check", [names.slug, names.label, names.model_name])
def test_a_name_is_returned_as_it_was_or_refused(check: Callable[..., str], value: Any) -> None:
    assert _refused(check, value) in (True, False)


@given(st.text("aé\u1e69\u01fb한ガ", min_size=1, max_size=6))
def test_text_that_is_not_composed_is_refused_and_its_composed_form_is_not(text: str) -> None:
    decomposed = unicodedata.normalize("NFD", text)
    assert _refused(names.label, decomposed) == (decomposed != text)
    assert not _refused(names.label, text)


@pytest.mark.parametrize(
    "invisible",
    ["\0", "\n", "\x7f", "\u200b", "\u202e", "\ufeff", "\u2028", "\u2029", "\ud800", "\ue000", "\u0378"],
    ids=["nul", "newline", "delete", "zero width", "right to left", "byte order", "line", "paragraph", "surrogate", "private", "unassigned"],
)
@given(before=st.text("ab", max_size=3), after=st.text("ab", max_size=3))
def test_what_does_not_show_or_has_no_meaning_is_refused_anywhere(before: str, invisible: str, after: str) -> None:
    assert _refused(names.label, f"x{before}{invisible}{after}x")
    assert _refused(names.model_name, f"x{before}{invisible}{after}x")


@given(st.text("abc", min_size=1, max_size=5), st.sampled_from([" ", "\u00a0", "\u2003"]))
def test_white_space_at_the_ends_is_refused_and_plain_space_inside_is_not(text: str, space: str) -> None:
    assert _refused(names.label, space + text)
    assert _refused(names.label, text + space)
    assert not _refused(names.label, f"{text} {text}")


@pytest.mark.parametrize("accepted", ["a", "a-b", "0", "a" * 63, "x9-9x"])
def test_slugs(accepted: str) -> None:
    assert not _refused(names.slug, accepted)


@pytest.mark.parametrize("refused", ["", "-a", "a-", "A", "a_b", "a.b", "a" * 64, "a\n", "\u0430", 7, None])
def test_not_slugs(refused: object) -> None:
    assert _refused(names.slug, refused)


@pytest.mark.parametrize("length", [0, 201])
def test_labels_are_bounded(length: int) -> None:
    assert _refused(names.label, "a" * length)
    assert not _refused(names.label, "a" * 200)


@pytest.mark.parametrize("refused", ["a\nb", "a\u202eb", "a\u2028b", "cafe\u0301", " a", "x" * 501, 7, None])
def test_a_reason_is_one_readable_line(refused: object) -> None:
    assert _refused(names.reason, refused)


@pytest.mark.parametrize("accepted", ["", "GPU 3 is hot", "x" * 500])
def test_a_reason_need_not_be_given(accepted: str) -> None:
    assert not _refused(names.reason, accepted)


@given(st.text("abcXYZ019_-", max_size=43), st.sampled_from(["sr1-", "SR1-", "Sr1-"]))
def test_no_model_or_adapter_may_look_like_a_salt(rest: str, prefix: str) -> None:
    assert _refused(names.model_name, prefix + rest)
    assert not _refused(names.model_name, "x" + prefix + rest)


@pytest.mark.parametrize("accepted", ["meta-llama/Llama-3.1-8B", "gpt-4o:2024", "Qwen/Qwen2.5", "模型"])
def test_ordinary_model_names(accepted: str) -> None:
    assert not _refused(names.model_name, accepted)
