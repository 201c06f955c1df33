"""What the benchmarks of churn and events compute from what they saw."""

from __future__ import annotations

import pytest

from tests.bench.churn import Memory, _drops, recovered_after_s
from tests.bench.traffic import Mix, Sample, hit_rate, plan, reuse, text

MIX = Mix(chats=2.0, agents=1.0, documents=1.0, writers=1.0)


def sample(at_s: float, reusable: int, cached: int) -> Sample:
    return Sample(at_s, "chat", reusable, 0.1, 1000, cached)


def test_a_plan_follows_from_its_seed_and_grows_with_its_length() -> None:
    assert plan(MIX, seconds=30, seed=4) == plan(MIX, seconds=30, seed=4) != plan(MIX, seconds=30, seed=5)
    starts = [dialogue.start_s for dialogue in plan(MIX, seconds=30, seed=4)]
    assert starts == sorted(starts)
    assert {dialogue.kind for dialogue in plan(MIX, seconds=60, seed=4)} == {"chat", "agent", "document", "writer"}
    assert text("a", 50) == text("a", 50) != text("b", 50)


def test_reuse_counts_turns_that_continue_a_dialogue_alone() -> None:
    samples = [sample(0, 0, 0), sample(1, 800, 400), sample(2, 800, 800), sample(3, 0, 400)]
    assert reuse(samples) == 0.75
    assert hit_rate(samples) == 0.4
    assert reuse([sample(0, 500, 900)]) == 1.0  # a shared beginning may give more than the dialogue's own


def test_the_slope_is_of_the_second_half() -> None:
    flat = Memory([float(10 * n) for n in range(20)], [100 * min(n, 10) for n in range(20)])
    assert flat.slope_bytes_per_min() == 0
    rising = Memory([float(10 * n) for n in range(20)], [100 * n for n in range(20)])
    assert rising.slope_bytes_per_min() == pytest.approx(600)


def test_recovery_is_the_first_window_as_good_as_before() -> None:
    bad = [sample(float(n), 1000, 100) for n in range(60, 75)]
    good = [sample(float(n), 1000, 950) for n in range(75, 120)]
    assert recovered_after_s(bad + good, 60.0, 1.0) == 25.0
    assert recovered_after_s(bad, 60.0, 1.0) is None
    assert recovered_after_s(bad + good, 60.0, 0.05) == 10.0


def test_only_what_was_lost_or_given_up_is_listed_over_all_replicas() -> None:
    metrics = {
        'saltroute_replica_history_evicted{replica="a"}': 3.0,
        'saltroute_replica_history_evicted{replica="b"}': 4.0,
        "saltroute_records_dropped": 0.0,
        'saltroute_requests{outcome="ok",route="chat"}': 9.0,
        'saltroute_artifacts_dropped{where="disk"}': 2.0,
    }
    assert _drops(metrics) == {"saltroute_replica_history_evicted": 7.0, 'saltroute_artifacts_dropped{where="disk"}': 2.0}
