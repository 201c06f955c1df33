"""How fast beliefs fade is what answers say; before they say anything, what reuse gaps say; before those, a constant."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.age import BOUNDS_S, CLASSES, DEFAULT_TAU_S, ENOUGH, AgeConstant, workload


@pytest.mark.parametrize("name", CLASSES)
def test_at_first_a_class_has_its_constant(name: str) -> None:
    assert AgeConstant(name).tau_s == DEFAULT_TAU_S[name]


@pytest.mark.parametrize("true_s", [40.0, 150.0, 900.0])
def test_the_lifetime_of_blocks_is_learned_from_hits_and_misses(true_s: float) -> None:
    rng, age = random.Random(1), AgeConstant()
    for _ in range(600):
        gap_s = rng.expovariate(1 / 120)
        age.observe(age_s=gap_s, predicted_tokens=1000, cached_tokens=1000 if rng.expovariate(1 / true_s) > gap_s else 0)
    assert 0.6 < age.tau_s / true_s < 1.6


def test_an_engine_that_reports_nothing_is_judged_by_the_gaps() -> None:
    age = AgeConstant()
    for _ in range(ENOUGH):
        age.observe(age_s=100.0, predicted_tokens=1000, cached_tokens=None)
    assert age.tau_s == pytest.approx(100.0 / math.log(2))


def test_bursts_and_prompts_without_a_prediction_teach_nothing() -> None:
    age = AgeConstant()
    for _ in range(100):
        age.observe(age_s=0.1, predicted_tokens=1000, cached_tokens=0)
        age.observe(age_s=100.0, predicted_tokens=0, cached_tokens=0)
    assert age.tau_s == DEFAULT_TAU_S["conversation"]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.none() | st.integers(0, 10**6)), max_size=100))
def test_whatever_is_seen_the_constant_stays_within_its_bounds(seen: list[tuple[float, float, int | None]]) -> None:
    age = AgeConstant()
    for gap_s, predicted, cached in seen:
        age.observe(age_s=gap_s, predicted_tokens=predicted, cached_tokens=cached)
    assert BOUNDS_S[0] <= age.tau_s <= BOUNDS_S[1]


def test_a_conversation_holds_an_earlier_answer() -> None:
    assert workload(("system", "user", "assistant", "user")) == "conversation"
    assert workload(("system", "user")) == workload(()) == "single"
