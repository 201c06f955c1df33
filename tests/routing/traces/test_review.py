"""What a review says of two policies: an interval that holds zero where there is no difference, and one that does not where there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from routing.core.policy import RoutingPolicy
from routing.traces import review, runs, workloads
from routing.traces.fleet import FleetConfig
from routing.traces.request import TraceRequest
from routing.traces.review import Comparison, Interval, Runs, compare, groups_of, sentence, verdict
from routing.traces.runs import NO_ANSWER

FLEET = FleetConfig(speeds=(1.0,) * 4, cache_tokens=100_000, max_model_len_tokens=65_536)


def _drawn(seed: int, factor: float = 1.0, *, replays: int = 4, requests: int = 600, conversations: int = 120) -> Comparison:
    """Times of conversations that resemble themselves, under two policies whose noise has nothing in common."""
    draw = np.random.default_rng(seed)
    group = draw.integers(0, conversations, requests)
    base = np.exp(draw.normal(0, 0.5, conversations))[group]

    def side(times: float) -> Runs:
        noise = np.exp(draw.normal(0, 0.3, conversations))[group] * np.exp(draw.normal(0, 0.2, (replays, requests)))
        return Runs((base * noise * times).astype(np.float32), draw.integers(0, 100, (replays, requests)).astype(np.int32))

    tokens = np.full(requests, 100)
    return compare(side(1.0), side(factor), prompt_tokens=tokens, groups=group, slo_s=1.0, seed=seed)


def test_where_nothing_differs_the_interval_holds_zero() -> None:
    """In at least 33 of 40 draws, as an interval of 95 % does but once in ten thousand times."""
    found = [_drawn(seed) for seed in range(40)]
    for name in ("mean_change", "p99_change", "hit_points", "tokens_saved"):
        assert sum(not getattr(one, name).differs for one in found) >= 33, name


def test_where_something_differs_it_is_seen_and_said() -> None:
    """A candidate at seven tenths of the time; the interval holds what is true."""
    found = _drawn(3, 0.7)
    assert verdict(found) == "faster"
    assert found.mean_change.low is not None
    assert found.mean_change.high is not None
    assert found.mean_change.low < -0.3 < found.mean_change.high < 0
    assert sentence(found).startswith("The candidate is ")
    assert "faster" in sentence(found)
    assert verdict(_drawn(3, 1.5)) == "slower"
    assert "slower in the mean" in sentence(_drawn(3, 1.5))


def test_conversations_are_resampled_and_not_requests() -> None:
    """The same requests, taken as so many conversations of their own, would be surer than they may be."""
    draw = np.random.default_rng(1)
    group = np.repeat(np.arange(40), 25)
    by_group = np.exp(draw.normal(0, 0.6, 40))[group].astype(np.float32)
    before, after = Runs(np.ones((2, 1000), np.float32), np.zeros((2, 1000), np.int32)), Runs(np.stack([by_group] * 2), np.zeros((2, 1000), np.int32))
    tokens = np.full(1000, 10)
    wide, narrow = (
        compare(before, after, prompt_tokens=tokens, groups=groups, slo_s=None).mean_change for groups in (group, np.arange(1000, dtype=np.int64))
    )
    assert (wide.high or 0) - (wide.low or 0) > 2.5 * ((narrow.high or 0) - (narrow.low or 0))


@pytest.mark.parametrize("policy", [RoutingPolicy(policy="ettft"), RoutingPolicy(policy="least_outstanding")])
def test_a_policy_against_itself(policy: RoutingPolicy) -> None:
    """Over the same arrivals exactly zero; over arrivals that differ by less than a tenth of a second an interval that holds zero."""
    requests = list(workloads.repositories(7, count=300, per_s=6, repos=8))
    measured = {seed: _run(requests, policy, seed) for seed in range(1, 7)}
    tokens, groups = (
        np.array([one.prompt_tokens for one in requests]),
        groups_of([replace(one, session=str(place)) for place, one in enumerate(requests)]),
    )

    def side(*seeds: int) -> Runs:
        return Runs(np.stack([measured[seed].ttft_s for seed in seeds]), np.stack([measured[seed].cached_tokens for seed in seeds]))

    same = compare(side(1, 2, 3), side(1, 2, 3), prompt_tokens=tokens, groups=groups, slo_s=2.0)
    assert {(one.value, one.low, one.high) for one in (same.mean_change, same.p99_change, same.hit_points)} == {(0.0, 0.0, 0.0)}
    assert (verdict(same), sentence(same)[:26]) == ("none", "No difference can be told:")
    other = compare(side(1, 2, 3), side(4, 5, 6), prompt_tokens=tokens, groups=groups, slo_s=2.0)
    assert not other.mean_change.differs
    assert other.mean_change.low != other.mean_change.high


def _run(requests: list[TraceRequest], policy: RoutingPolicy, seed: int) -> Runs:
    later, places = runs.jittered(requests, seed, 0.1)
    measured = runs.replayed(later, FLEET, policy, ttft_slo_s=2.0, seed=seed)
    ttft_s, cached = np.empty(len(requests), np.float32), np.empty(len(requests), np.int32)
    ttft_s[places], cached[places] = measured.each_ttft_s, measured.each_cached
    return Runs(ttft_s, cached)


def test_each_request_keeps_its_own_figures() -> None:
    """Whatever the order of answers, what a request got stands at its place in the list; one that is too long got none."""
    requests = [*workloads.repositories(7, count=80, per_s=6, repos=8), TraceRequest(99.0, 70_000, 10, ())]
    measured = runs.replayed(requests, FLEET, RoutingPolicy(), ttft_slo_s=2.0, seed=1)
    assert measured.each_ttft_s[-1] == NO_ANSWER
    assert sorted(measured.each_ttft_s[:-1]) == pytest.approx(sorted(measured.ttft_s), rel=1e-6)
    assert sum(measured.each_cached) == measured.cached_tokens > 0
    assert all(cached <= one.prompt_tokens for cached, one in zip(measured.each_cached, requests, strict=True))


def test_too_little_traffic_is_said_and_no_interval_is_given() -> None:
    found = _drawn(1, requests=90)
    assert (found.mean_change.low, found.p99_change.high, verdict(found)) == (None, None, "none")
    assert sentence(found).startswith("No difference can be told: 90 requests in 67 groups are too few (at least 100 in 20;")
    assert " 1 group are" in sentence(_drawn(1, conversations=1))
    assert _drawn(1, conversations=10).mean_change.low is None


def test_requests_that_one_side_did_not_answer_are_left_out_of_both() -> None:
    times = np.ones((2, 300), np.float32)
    lost = times.copy()
    lost[1, :50] = NO_ANSWER
    cached = np.zeros((2, 300), np.int32)
    found = compare(Runs(times, cached), Runs(lost, cached), prompt_tokens=np.full(300, 10), groups=np.arange(300, dtype=np.int64), slo_s=None)
    assert (found.requests, found.slo_points, found.mean_change.value) == (250, None, 0.0)
    nothing = compare(
        Runs(times, cached), Runs(np.full_like(times, NO_ANSWER), cached), prompt_tokens=np.full(300, 10), groups=np.arange(300), slo_s=None
    )
    assert (nothing.requests, nothing.mean_change) == (0, Interval(0.0))


def test_a_tail_and_a_mean_that_contradict_each_other_are_both_said() -> None:
    found = _drawn(3)
    found = replace(found, mean_change=Interval(-0.12, -0.15, -0.08), p99_change=Interval(0.021, 0.01, 0.03))
    assert verdict(found) == "mixed"
    assert sentence(found) == "The candidate is 2.1 % [1.0, 3.0] slower at p99 and 12 % [8.0, 15] faster in the mean."


def test_without_conversations_minutes_are_the_groups() -> None:
    requests = [TraceRequest(at_s, 10, 1, ()) for at_s in (0.0, 59.0, 61.0)] + [TraceRequest(62.0, 10, 1, (), session=name) for name in "aba"]
    assert groups_of(requests).tolist() == [0, 0, 1, 2, 3, 2]
    assert review.METHOD
