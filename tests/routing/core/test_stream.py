"""What is read beside a stream, and the few bytes that are not relayed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.stream import Rename, StreamMeter, Usage


def _event(payload: Any) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}


@pytest.mark.parametrize("payload", [{"choices": [], "usage": USAGE}, {"usage": USAGE}])
def test_a_usage_chunk_is_read_and_hidden_only_from_who_did_not_ask(payload: Any) -> None:
    hiding, showing = StreamMeter(hide_usage=True), StreamMeter(hide_usage=False)
    assert hiding.take(_event(payload)) is None
    assert showing.take(_event(payload)) == _event(payload)
    for meter in (hiding, showing):
        assert (meter.usage.prompt_tokens, meter.usage.completion_tokens, meter.usage.cached_tokens) == (7, 3, 5)


def test_a_chunk_with_words_in_it_is_never_hidden() -> None:
    meter = StreamMeter(hide_usage=True)
    event = _event({"choices": [{"delta": {"content": "x"}}], "usage": USAGE})
    assert meter.take(event) == event
    assert meter.take(_event({"choices": [], "usage": None})) is not None


@pytest.mark.parametrize("text", ['"usage"', '"error":{"code":1}', '{"finish_reason":"abort"}', '"model":"m"', "data: [DONE]"])
def test_words_in_the_answer_are_not_mistaken_for_ours(text: str) -> None:
    meter = StreamMeter(hide_usage=True, rename=Rename.between("m", "asked"))
    event = _event({"choices": [{"delta": {"content": text}}]})
    assert meter.take(event) == event
    assert (meter.error, meter.done, meter.finished, meter.aborted) == (None, False, False, False)


@given(st.text(st.characters(codec="utf-8"), max_size=50))
def test_no_text_of_a_model_changes_what_is_relayed(text: str) -> None:
    meter = StreamMeter(hide_usage=True, rename=Rename.between("served", "asked"))
    event = _event({"model": "served", "choices": [{"delta": {"content": text}}]})
    assert meter.take(event) == _event({"model": "asked", "choices": [{"delta": {"content": text}}]})


def test_the_last_word_counts_and_zeros_are_words() -> None:
    usage = Usage(chunks=4)
    usage.take({"prompt_tokens": 0, "completion_tokens": 0})
    usage.settle()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.counted) == (0, 0, False)
    other = Usage(chunks=4)
    other.settle()
    assert (other.prompt_tokens, other.completion_tokens, other.counted) == (None, 4, True)


@pytest.mark.parametrize("forged", [None, "x", -1, True, 2**40, 1.5])
def test_counts_that_are_none_are_not_taken(forged: Any) -> None:
    usage = Usage()
    usage.take({"prompt_tokens": forged, "prompt_tokens_details": {"cached_tokens": forged}})
    usage.take(forged)
    assert (usage.prompt_tokens, usage.cached_tokens) == (None, None)


def test_an_error_event_is_not_relayed() -> None:
    meter = StreamMeter(hide_usage=False)
    assert meter.take(_event({"error": {"message": "boom", "code": 500}})) is None
    assert meter.error is not None
    assert meter.error.kind == "replica"
