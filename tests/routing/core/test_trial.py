"""Figures of a trial: what they mean, and that their intervals hold what they promise."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import trial
from routing.core.trial import Estimate, Seen

FINITE = st.floats(-1e6, 1e6)


def seen(at_s: float = 0.0, **fields: object) -> Seen:
    usual: dict[str, object] = {"placed": False, "agreed": True, "live_ttft_s": 0.4, "candidate_ttft_s": 0.3}
    return Seen(at_s=at_s, **{**usual, "live_cached_tokens": 100.0, "candidate_cached_tokens": 160.0, **fields})  # type: ignore[arg-type]  # fields pass through


def test_of_nothing_there_are_no_figures() -> None:
    found = trial.report([])
    assert found.decisions == 0
    assert found.agreement is found.ttft_difference_s is found.tokens_saved_each is found.realised_difference_s is None
    assert found.live.ttft_s.mean is found.candidate_ttft_s.p95 is None


def test_predictions_are_paired_and_signed_from_the_candidates_side() -> None:
    """Quicker is below zero, more cached is above."""
    found = trial.report([seen(agreed=False), seen(candidate_ttft_s=0.5, candidate_cached_tokens=90.0)])
    assert found.agreement == Estimate(0.5)
    assert found.ttft_difference_s is not None
    assert found.ttft_difference_s.value == pytest.approx(0.0)
    assert (found.tokens_saved, found.tokens_saved_each) == (50.0, Estimate(25.0))


def test_what_was_realised_is_compared_over_the_same_hours() -> None:
    """Requests before the first one that the candidate placed say nothing of its rival: the night's traffic is another."""
    night = [seen(at_s=float(number), ttft_s=9.0, cached_tokens=0) for number in range(50)]
    day = [seen(at_s=1000.0 + number, ttft_s=0.5, cached_tokens=40) for number in range(40)]
    canary = [seen(at_s=1000.0 + number, placed=True, ttft_s=0.4, cached_tokens=60) for number in range(40)]
    found = trial.report([*canary, *night, *day])
    assert (found.decisions, found.live.requests, found.candidate.requests, found.before_the_first) == (130, 40, 40, 50)
    assert found.realised_difference_s is not None
    assert found.realised_difference_s.value == pytest.approx(-0.1)
    assert found.realised_cached_difference == Estimate(20.0, 20.0, 20.0)


def test_requests_without_a_first_token_are_in_no_mean() -> None:
    found = trial.report([seen(placed=True, ttft_s=None, cached_tokens=None), seen(placed=True, ttft_s=0.2, cached_tokens=7)])
    assert (found.candidate.requests, found.candidate.ttft_s.count, found.candidate.ttft_s.mean) == (2, 1, Estimate(0.2))


def test_a_small_sample_promises_nothing() -> None:
    few, many = [1.0, 2.0] * 14, [1.0, 2.0] * 15
    for figure in (trial.mean, lambda values: trial.difference(values, values), lambda values: trial.share(1, len(values))):
        small, large = figure(few), figure(many)
        assert small is not None
        assert large is not None
        assert (small.low, large.low is None) == (None, False)


def test_a_share_of_all_or_none_still_has_an_interval() -> None:
    for count in (0, 100):
        found = trial.share(count, 100)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert 0.0 <= found.low < found.high <= 1.0


@given(st.lists(FINITE, min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_a_value_that_was_seen_and_lies_in_its_interval(values: list[float], level: float) -> None:
    ordered = sorted(values)
    found = trial.percentile(ordered, level)
    assert found is not None
    assert found.value in values
    assert sum(value <= found.value for value in values) >= level * len(values)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value <= found.high


@given(st.lists(FINITE, min_size=1, max_size=200))
def test_a_mean_lies_in_its_interval(values: list[float]) -> None:
    found = trial.mean(values)
    assert found is not None
    assert found.value == pytest.approx(statistics.fmean(values), abs=1e-6)
    if found.low is not None and found.high is not None:
        assert found.low <= found.value <= found.high


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """400 samples of 200 from a skewed population: between 91 % and 99 % of the 95 % intervals hold its mean, median and difference of zero."""
    rng = random.Random(7)
    held = {"mean": 0, "median": 0, "difference": 0}
    for _ in range(400):
        one, other = ([rng.expovariate(1.0) for _ in range(200)] for _ in range(2))
        for name, found, truth in (
            ("mean", trial.mean(one), 1.0),
            ("median", trial.percentile(sorted(one), 0.5), 0.693147),
            ("difference", trial.difference(one, other), 0.0),
        ):
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            held[name] += found.low <= truth <= found.high
    assert all(0.91 <= count / 400 <= 0.99 for count in held.values()), held
