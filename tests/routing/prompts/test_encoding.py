from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from routing.prompts import encoding
from routing.prompts.encoding import MAX_CUTS, Encoder, TokenizerFacts, TokenizerRefused
from tests.routing.prompts import small
from tests.routing.prompts.cases import TEXTS

TOKENS = [*small.CHATML_TOKENS, *small.HEADER_TOKENS, "</s>", "stop", "Hello"]
SCRAPS = st.one_of(st.sampled_from(TOKENS), st.sampled_from(TEXTS), st.sampled_from([" ", "\n", "<", "<|", "|>", "a", "st"]), st.text(max_size=8))
MIXED = st.lists(SCRAPS, max_size=12).map("".join)
ENCODERS = {name: Encoder(make().content) for name, make in {**small.SOUND, **small.UNSOUND}.items()}


def joined(encoder: Encoder, text: str) -> list[int]:
    """The ids of a text, piece by piece."""
    pieces, _ = encoder.cut(text)
    ids: list[int] = []
    for piece in pieces:
        ids.extend([piece] if isinstance(piece, int) else memoryview(encoder.encode([piece])[0]).cast("I"))
    return ids


def whole(name: str, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """The ids by the library alone."""
    content = {**small.SOUND, **small.UNSOUND}[name]().content
    return list(Tokenizer.from_str(content.decode()).encode(text, add_special_tokens=add_special_tokens).ids)


@pytest.mark.parametrize("name", ENCODERS)
@given(text=MIXED)
@settings(max_examples=150, deadline=None)
def test_pieces_have_the_ids_of_the_whole(name: str, text: str) -> None:
    encoder = ENCODERS[name]
    assert joined(encoder, text) == encoder._ids(text)


@pytest.mark.parametrize("name", ENCODERS)
def test_ids_are_those_of_the_library(name: str) -> None:
    for text in TEXTS:
        assert joined(ENCODERS[name], text) == whole(name, text)
        (with_special,) = ENCODERS[name].encode([text], add_special_tokens=True)
        assert list(memoryview(with_special).cast("I")) == whole(name, text, add_special_tokens=True)


@pytest.mark.parametrize("name", small.SOUND)
def test_a_sound_tokenizer_is_cut_at_its_added_tokens(name: str) -> None:
    token = next(iter(ENCODERS[name].facts.cuts))
    pieces, exact = ENCODERS[name].cut(f"a{token}b{token}")
    token_id = ENCODERS[name].facts.cuts[token]
    assert pieces == ["a", token_id, "b", token_id]
    assert exact == 4


@pytest.mark.parametrize("name", small.UNSOUND)
def test_an_unsound_tokenizer_is_not_cut(name: str) -> None:
    assert ENCODERS[name].cut("a<|im_start|>b") == (["a<|im_start|>b"], 1)


@pytest.mark.parametrize(("name", "text"), [("stripping", "a  <|im_end|>"), ("single word", "nonstop"), ("first metaspace", "a<|im_end|>a")])
def test_cutting_an_unsound_tokenizer_would_be_wrong(name: str, text: str) -> None:
    """The reason for not cutting: at the same places the parts have other ids."""
    tokenizer = Tokenizer.from_str(small.UNSOUND[name]().content.decode())
    token = next(each for each in ("<|im_end|>", "stop") if each in text)
    parts = [part for each in text.split(token) for part in (each, token)][:-1]
    assert [token_id for part in parts for token_id in tokenizer.encode(part, add_special_tokens=False).ids] != whole(name, text)


def test_a_text_is_cut_at_so_many_places_and_keeps_its_ids() -> None:
    text = "".join(f"{number:x}<|im_start|>" for number in range(MAX_CUTS + 100))
    pieces, exact = ENCODERS["qwen-like"].cut(text)
    assert len(pieces) == exact == 2 * MAX_CUTS + 1
    assert joined(ENCODERS["qwen-like"], text) == whole("qwen-like", text)
    assert ENCODERS["qwen-like"].cut(text, len(text) - 1)[1] == 2 * MAX_CUTS


def test_the_longest_added_token_wins() -> None:
    cuts = ENCODERS["qwen-like"].facts.cuts
    assert ENCODERS["qwen-like"].cut("<|im|>>")[0] == [cuts["<|im|>>"]]


def test_the_frame_of_special_tokens_is_found() -> None:
    facts = ENCODERS["llama-like"].facts
    assert (facts.prefix, facts.suffix, facts.framed, facts.bos) == ((facts.cuts["<|begin_of_text|>"],), (), True, "<|begin_of_text|>")
    assert (ENCODERS["qwen-like"].facts.prefix, ENCODERS["qwen-like"].facts.bos) == ((), None)


@pytest.mark.parametrize(
    ("known", "closed", "exact"), [(0, True, 0), (1, True, 1), (1, False, 0), (13, True, 2), (14, True, 2), (14, False, 2), (99, True, 3)]
)
def test_pieces_are_exact_up_to_where_the_text_is_known(known: int, closed: bool, exact: int) -> None:
    # "a" ends at 1, "<|im_start|>" at 13, "bc" at 15
    pieces, found = ENCODERS["qwen-like"].cut("a<|im_start|>bc", known, closed=closed)
    assert (len(pieces), found) == (3, exact)


@pytest.mark.parametrize("make", [small.dropout, lambda: small.artifact("{}"), lambda: small.artifact("no"), lambda: small.artifact(b"\xff")])
def test_what_is_no_tokenizer_is_refused(make: Callable[[], small.Artifact]) -> None:
    with pytest.raises(TokenizerRefused):
        Encoder(make().content)


@pytest.mark.parametrize(
    ("bound", "refused"), [({}, False), ({"MAX_ADDED_TOKENS": 9}, False), ({"MAX_ADDED_TOKENS": 8}, True), ({"MAX_ADDED_CHARACTERS": 50}, True)]
)
def test_more_added_tokens_than_are_taken_are_refused(monkeypatch: pytest.MonkeyPatch, bound: dict[str, int], refused: bool) -> None:
    """All of them are taken out of the sandbox, and compared with those of a template, in the event loop."""
    for name, value in bound.items():
        monkeypatch.setattr(encoding, name, value)
    with pytest.raises(TokenizerRefused) if refused else contextlib.nullcontext():
        assert len(Encoder(small.qwen_like().content).facts.added) == len(small.CHATML_TOKENS) == 9


def test_truncation_and_padding_in_the_file_are_ignored() -> None:
    tokenizer = Tokenizer.from_str(small.qwen_like().content.decode())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20)
    text = "The quick brown fox jumps"
    assert len(tokenizer.encode(text).ids) == 20
    assert joined(Encoder(tokenizer.to_str().encode()), text) == whole("qwen-like", text)


@pytest.mark.parametrize("name", ENCODERS)
def test_facts_travel(name: str) -> None:
    facts = ENCODERS[name].facts
    assert TokenizerFacts.from_object(facts.as_object()) == facts


@pytest.mark.parametrize(
    "change", [{"bos": 1}, {"framed": 1}, {"cuts": {"a": "b"}}, {"cuts": {"a": -1}}, {"prefix": [2**32]}, {"added": [1]}, {"cuts": []}]
)
def test_facts_that_are_none_are_refused(change: dict[str, object]) -> None:
    value = ENCODERS["qwen-like"].facts.as_object()
    TokenizerFacts.from_object(value)
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError, OverflowError)):
        TokenizerFacts.from_object(value | change)
