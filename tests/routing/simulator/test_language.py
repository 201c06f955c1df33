"""What the simulated model says."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from routing.simulator.language import KNOWN_WORDS, seed_of, speak
from routing.simulator.tokenizer import WordTokenizer

words = WordTokenizer(KNOWN_WORDS)
seeds = st.integers(0, 2**64 - 1)


@given(seeds, st.integers(1, 400), st.booleans())
def test_limits_and_reasons(seed: int, max_tokens: int, ignore_eos: bool) -> None:
    """Never more than asked; "stop" exactly when the answer ended by itself."""
    speech = speak(words, seed, max_tokens=max_tokens, ignore_eos=ignore_eos)
    assert 1 <= len(speech.token_ids) == len(speech.texts) <= max_tokens
    assert (speech.finish_reason == "stop") == (speech.token_ids[-1] == words.eos_id)
    assert not (ignore_eos and speech.finish_reason == "stop")


@given(seeds, st.integers(1, 200))
def test_text_has_the_said_tokens_again(seed: int, max_tokens: int) -> None:
    """A client that sends the answer back sends the same tokens."""
    speech = speak(words, seed, max_tokens=max_tokens)
    ids = [token_id for token_id in speech.token_ids if token_id != words.eos_id]
    assert words.encode("".join(speech.texts), add_special_tokens=False) == ids


@given(seeds, st.integers(2, 80))
def test_min_tokens(seed: int, min_tokens: int) -> None:
    """The answer does not end before."""
    assert len(speak(words, seed, max_tokens=500, min_tokens=min_tokens).token_ids) > min_tokens


@given(seeds, st.sampled_from([".", " the", "ea", ". "]))
def test_stop_string_is_left_out(seed: int, stop: str) -> None:
    """The text ends before its first appearance, and is otherwise what would have been said."""
    free = "".join(speak(words, seed, max_tokens=120, ignore_eos=True).texts)
    speech = speak(words, seed, max_tokens=120, ignore_eos=True, stop=[stop])
    text = "".join(speech.texts)
    assert stop not in text
    assert free.startswith(text)
    assert (speech.stop_reason == stop) == (stop in free)


def test_seed_depends_on_every_part() -> None:
    """Prompt, model, seed and number of the choice."""
    variants = [([1, 2], "m", None, 0), ([1, 3], "m", None, 0), ([1, 2], "n", None, 0), ([1, 2], "m", 1, 0), ([1, 2], "m", None, 1)]
    assert len({seed_of(*variant) for variant in variants}) == 5
