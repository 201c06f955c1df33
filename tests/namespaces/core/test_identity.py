"""The identity's encoding tells every two different subjects apart, and only those."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from uuid import UUID

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from namespaces.core.identity import SCHEMA, encode, parts
from namespaces.core.subject import Adapter, Artifact, Model, ScopeLevel, Sharing, Subject
from tests.namespaces.core import subjects as draw

PLAIN = Subject(
    tenant_id=UUID(int=1),
    sharing=Sharing.SCOPE,
    scope=(ScopeLevel(UUID(int=2), "", 1),),
    engine_family="vllm",
    model=Model("m", "r"),
    tokenizer=Artifact(None, None),
    chat_template=Artifact(None, None),
    epoch=(1, 1),
)


@given(draw.subjects, draw.subjects)
def test_encodings_are_equal_exactly_when_all_that_counts_is_equal(one: Subject, other: Subject) -> None:
    assert (encode(one) == encode(other)) == (draw.counted(one) == draw.counted(other))


@pytest.mark.parametrize("change", sorted(draw.ALWAYS))
@settings(max_examples=15)
@given(subject=draw.subjects)
def test_any_single_change_changes_the_encoding(subject: Subject, change: str) -> None:
    assert encode(draw.ALWAYS[change](subject)) != encode(subject)


@pytest.mark.parametrize("change", sorted(draw.SOMETIMES))
@settings(max_examples=25)
@given(subject=draw.subjects)
def test_scope_key_and_nonce_count_at_their_sharing_levels_only(subject: Subject, change: str) -> None:
    at_levels, apply = draw.SOMETIMES[change]
    alone_at_root = len(subject.scope) == 1 and change == "acting scope version"  # the acting scope is the root, which always counts
    assert (encode(apply(subject)) != encode(subject)) == (subject.sharing in at_levels or alone_at_root)


@given(draw.subjects)
def test_encoding_is_repeatable_and_reads_back_as_what_was_put_in(subject: Subject) -> None:
    schema, pairs = cbor2.loads(encode(subject))
    assert schema == SCHEMA
    assert [tuple(pair) for pair in pairs] == parts(subject)
    assert encode(replace(subject)) == encode(subject)


@given(draw.subjects)
def test_component_names_are_distinct(subject: Subject) -> None:
    names = [name for name, _ in parts(subject)]
    assert len(set(names)) == len(names)


@given(draw.subjects, st.data())
def test_order_of_context_declarations_does_not_count(subject: Subject, data: st.DataObject) -> None:
    shuffled = tuple(data.draw(st.permutations(subject.context)))
    assert encode(replace(subject, context=shuffled)) == encode(subject)


@given(st.text("ab", min_size=2, max_size=6), st.data())
def test_text_moved_across_a_boundary_is_another_identity(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text) - 1))
    left, right = (text[:cut], text[cut:]), (text[: cut + 1], text[cut + 1 :])
    pairs = [
        (replace(PLAIN, model=Model(*left)), replace(PLAIN, model=Model(*right))),
        (replace(PLAIN, context=(left,)), replace(PLAIN, context=(right,))),
        (replace(PLAIN, adapter=Adapter(*left, 1)), replace(PLAIN, adapter=Adapter(*right, 1))),
        (replace(PLAIN, engine_family=left[0], data_class=left[1]), replace(PLAIN, engine_family=right[0], data_class=right[1])),
        (replace(PLAIN, context=((text, ""),)), replace(PLAIN, context=(("", text),))),
        (replace(PLAIN, data_class=text), replace(PLAIN, client_subdivision=text)),
        (replace(PLAIN, multimodal_processor=text), replace(PLAIN, data_class=text)),
    ]
    for one, other in pairs:
        assert encode(one) != encode(other)


@given(st.text("é\u1e69\u01fb한ガ", min_size=1, max_size=6))
def test_composed_and_decomposed_spellings_are_two_identities(text: str) -> None:
    composed, decomposed = unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)
    assert composed != decomposed
    assert encode(replace(PLAIN, client_subdivision=composed)) != encode(replace(PLAIN, client_subdivision=decomposed))


@pytest.mark.parametrize("field", ["client_subdivision", "data_class", "multimodal_processor"])
def test_none_empty_and_the_word_null_are_three_identities(field: str) -> None:
    variants = [replace(PLAIN, **{field: value}) for value in (None, "", "null", "None")]  # type: ignore[arg-type]  # all three are texts
    assert len({encode(each) for each in variants}) == len(variants)


@pytest.mark.parametrize(
    ("null", "empty"),
    [
        (replace(PLAIN, model=Model("m", "r", quantisation=None)), replace(PLAIN, model=Model("m", "r", quantisation=""))),
        (replace(PLAIN, model=Model("m", "r", kv_dtype=None)), replace(PLAIN, model=Model("m", "r", kv_dtype=""))),
        (PLAIN, replace(PLAIN, tokenizer=Artifact(None, ""))),
        (PLAIN, replace(PLAIN, tokenizer=Artifact(b"", None))),
        (PLAIN, replace(PLAIN, chat_template=Artifact(None, ""))),
        (PLAIN, replace(PLAIN, chat_template=Artifact(b"", None))),
        (PLAIN, replace(PLAIN, context=(("", ""),))),
    ],
    ids=["quantisation", "kv dtype", "tokenizer label", "tokenizer digest", "template label", "template digest", "context"],
)
def test_none_and_empty_differ_inside_a_component_too(null: Subject, empty: Subject) -> None:
    assert encode(null) != encode(empty)


def test_no_adapter_and_an_adapter_of_empty_names_differ() -> None:
    assert encode(PLAIN) != encode(replace(PLAIN, adapter=Adapter("", "", 0)))


def test_a_digest_and_the_same_characters_as_a_label_differ() -> None:
    assert encode(replace(PLAIN, tokenizer=Artifact(b"ab", None))) != encode(replace(PLAIN, tokenizer=Artifact(None, "ab")))
    assert encode(replace(PLAIN, tokenizer=Artifact(b"", None))) != encode(PLAIN)


def test_tokenizer_and_chat_template_are_not_interchangeable() -> None:
    held = Artifact(b"\x01" * 32, "r")
    assert encode(replace(PLAIN, tokenizer=held)) != encode(replace(PLAIN, chat_template=held))


def test_two_sharing_levels_never_meet_where_all_else_is_equal() -> None:
    """A key bound to the root scope, at level scope, has the very scopes that count at level tenant."""
    assert encode(replace(PLAIN, sharing=Sharing.TENANT)) != encode(PLAIN)
    by_key = replace(PLAIN, sharing=Sharing.KEY, key_id=UUID(int=3))
    assert encode(replace(by_key, sharing=Sharing.NONE, request_nonce=b"n")) != encode(by_key)


def test_two_endpoints_of_one_model_share_unless_one_keeps_apart() -> None:
    assert encode(replace(PLAIN, endpoint_id=UUID(int=7))) != encode(PLAIN)
    assert encode(replace(PLAIN, endpoint_id=None)) == encode(PLAIN)


@pytest.mark.parametrize("sharing", [Sharing.KEY, Sharing.NONE])
def test_levels_that_need_a_key_refuse_to_go_without(sharing: Sharing) -> None:
    with pytest.raises(ValueError, match="needs a key"):
        encode(replace(PLAIN, sharing=sharing, request_nonce=b"n"))


@pytest.mark.parametrize("nonce", [None, b""])
def test_the_lonely_level_refuses_to_go_without_a_nonce(nonce: bytes | None) -> None:
    with pytest.raises(ValueError, match="needs a nonce"):
        encode(replace(PLAIN, sharing=Sharing.NONE, key_id=UUID(int=3), request_nonce=nonce))


def test_text_that_is_not_unicode_is_refused_not_replaced() -> None:
    with pytest.raises(ValueError, match="not valid Unicode"):
        encode(replace(PLAIN, client_subdivision="\ud800"))
