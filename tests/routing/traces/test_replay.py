"""Replays: nothing is lost, the same seed gives the same run, and fleets misbehave as told."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from routing.core.policy import PolicyName, RoutingPolicy, compile_routing
from routing.simulator.config import TimeModel
from routing.traces import workloads
from routing.traces.fleet import Fault, FleetConfig, Residency
from routing.traces.measure import Measures
from routing.traces.replay import Replay
from routing.traces.request import Trace, TraceRequest
from routing.traces.router import Router

FLEET = FleetConfig(speeds=(1.0,) * 4, cache_tokens=100_000, max_model_len_tokens=65_536)
POLICIES = get_args(PolicyName)


def replayed(requests: list[TraceRequest], policy: PolicyName = "ettft", fleet: FleetConfig = FLEET, seed: int = 1) -> tuple[Measures, Replay]:
    trace = Trace("t", fleet.block_tokens, True, iter(requests))
    replay = Replay(trace, fleet, RoutingPolicy(policy=policy), ttft_slo_s=2.0, seed=seed)
    return replay.run(), replay


def _workload(count: int = 70) -> list[TraceRequest]:
    return list(workloads.repositories(7, count=count, per_s=6, repos=8))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("residency", get_args(Residency))
def test_every_request_is_answered_or_refused_and_everything_is_given_back(policy: PolicyName, residency: Residency) -> None:
    requests = [*_workload(), TraceRequest(99.0, 70_000, 10, ())]
    measures, replay = replayed(requests, policy, replace(FLEET, residency=residency))
    assert measures.requests == len(requests)
    assert measures.refused == 1  # longer than the model allows
    assert measures.answered_count == len(requests) - 1
    assert sum(measures.placed) == measures.answered_count
    assert replay.router.queued_tokens(0.0) == 0
    assert [engine.in_flight for engine in replay.router.engines] == [0] * 4
    assert [engine.pool.used_blocks for engine in replay.engines] == [0] * 4
    assert not any(engine.events.pending for engine in replay.router.engines)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run_to_the_last_digit(policy: PolicyName) -> None:
    first, second = (replayed(_workload(), policy)[0] for _ in range(2))
    assert first.ttft_s == second.ttft_s
    assert first.timeline == second.timeline


def test_round_robin_goes_round() -> None:
    measures, _ = replayed([TraceRequest(number * 10.0, 500, 2, ()) for number in range(8)], "round_robin")
    assert [replica for _, replica in measures.timeline] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_least_outstanding_takes_the_idle_in_turn() -> None:
    measures, _ = replayed([TraceRequest(number * 0.001, 4000, 2, ()) for number in range(4)], "least_outstanding")
    assert sorted(measures.placed) == [1, 1, 1, 1]


def test_one_request_by_hand() -> None:
    time = TimeModel(step_s=0.01, prefill_tokens_per_s=1000, attention_s_per_token_pair=0, decode_s_per_sequence=0.002, decode_s_per_context_token=0)
    fleet = replace(FLEET, time=time, network_s=0.1)
    measures, _ = replayed([TraceRequest(0.0, 1024, 3, (1, 2)), TraceRequest(10.0, 1536, 1, (1, 2, 3))], fleet=fleet)
    # 0.1 there, one step of 0.01 + 1024 / 1000, 0.1 back; then two tokens more at 0.012 each
    assert measures.ttft_s[0] == pytest.approx(0.1 + 0.01 + 1.024 + 0.1)
    assert measures.e2e_s[0] == pytest.approx(measures.ttft_s[0] + 2 * 0.012)
    assert measures.ttft_s[1] == pytest.approx(0.1 + 0.01 + 0.512 + 0.1)  # two blocks were there
    assert measures.cached_tokens == 1024
    assert measures.placed[measures.timeline[0][1]] == 2  # where its prefix is


def test_a_session_waits_for_its_answer_and_then_thinks() -> None:
    slow = replace(FLEET, time=TimeModel(prefill_tokens_per_s=1000))
    turns = [TraceRequest(0.0, 5000, 10, (), session="s"), TraceRequest(1.0, 5000, 1, (), session="s", after_s=2.0)]
    measures, _ = replayed(turns, fleet=slow)
    (_, _), (second_s, _) = measures.timeline
    assert second_s == pytest.approx(measures.e2e_s[0] + 2.0)
    idle, _ = replayed([turns[0], replace(turns[1], at_s=100.0)], fleet=slow)
    assert idle.timeline[1][0] == 100.0  # never before its recorded time


def test_speed_is_learned_at_the_first_byte_where_the_prediction_is_exact() -> None:
    """Answers of an overrun engine end when its queue is over. Where a block is only promised the answer's own count is waited for."""
    router = Router(FLEET, compile_routing({"policy": "ettft"}), ttft_slo_s=None, seed=1)
    digests = [bytes([number]) * 16 for number in range(16)]
    first, second = router.choose(8192, digests, 0.0), router.choose(8192, digests, 0.0)
    assert first is not None
    assert second is not None
    assert (first.decision.chosen.evidence, second.decision.chosen.evidence) == ("none", "pending")
    learned = router.engines[first.replica].calibration
    router.first_byte(first, 0, 4.0)
    assert learned.samples == 1
    assert learned.rates[-1] == pytest.approx(8192 / 4.0, rel=0.05)
    router.first_byte(second, 8000, 4.1)
    assert learned.samples == 1
    router.ended(first, 8192, 5.0)
    assert learned.samples == 1
    router.ended(second, 8192, 5.1)
    assert learned.samples == 2


def test_what_a_request_waited_is_gone_from_its_objective() -> None:
    """The guard rests where nobody can meet what is left: spreading would then only cost others their cache."""
    router = Router(FLEET, compile_routing({"policy": "ettft"}), ttft_slo_s=2.0, seed=1)
    fresh, late = (router.decide(14_000, [], 0.0, waited_s=waited_s) for waited_s in (0.0, 1.0))
    assert fresh is not None
    assert late is not None
    assert fresh.attainable
    assert fresh.chosen.terms["slo_guard"] > 0
    assert not late.attainable
    assert late.chosen.terms["slo_guard"] == 0.0


def test_a_replica_that_slows_down_gets_less() -> None:
    """Where the others have time: while all are overrun, one at a quarter of its speed is a help all the same."""
    requests = list(workloads.weak_reuse(5, count=400, per_s=1.5))
    fault = Fault(20.0, 1, speed=0.25)
    slowed, _ = replayed(requests, fleet=replace(FLEET, faults=(fault,)))
    steady, _ = replayed(requests)
    late = [sum(replica == 1 for at_s, replica in run.timeline if at_s > 60) for run in (slowed, steady)]
    assert late[0] < late[1] / 2


def test_a_replica_that_was_slow_and_is_well_again_gets_work_again_where_nobody_needs_it() -> None:
    """The others are idle enough to do without it for ever: what was learned of it has to fade, and its first quick answer must not renew that. A
    quarter of the requests would be its fair share, and one in sixty is what it got."""
    faults = (Fault(20.0, 1, speed=0.25), Fault(300.0, 1, speed=1.0))
    measures, _ = replayed(list(workloads.weak_reuse(5, count=500, per_s=0.5)), fleet=replace(FLEET, faults=faults))
    slow, well = ([replica == 1 for at_s, replica in measures.timeline if begin < at_s <= end] for begin, end in ((60, 300), (300, 900)))
    assert sum(slow) < len(slow) / 20
    assert sum(well) > len(well) / 10


def test_a_restart_loses_no_request_before_its_first_byte_and_empties_the_cache() -> None:
    requests = [TraceRequest(number * 0.3, 8000, 40, ()) for number in range(120)]
    fleet = replace(FLEET, faults=tuple(Fault(20.0 + replica * 0.1, replica, down_s=5.0) for replica in range(3)))
    measures, replay = replayed(requests, "round_robin", fleet)
    assert measures.answered_count + measures.cut + measures.refused == measures.requests == 120
    assert measures.retried > 0
    assert measures.refused == 0
    away = [(at_s, replica) for at_s, replica in measures.timeline if 20.5 < at_s < 25]
    assert {replica for _, replica in away} == {3}
    assert {replica for at_s, replica in measures.timeline if at_s > 30} == {0, 1, 2, 3}
    assert [engine.in_flight for engine in replay.router.engines] == [0] * 4
    assert replay.router.queued_tokens(0.0) == 0
    assert not any(engine.events.pending for engine in replay.router.engines)


@pytest.mark.parametrize("residency", get_args(Residency))
def test_nothing_is_expected_of_a_replica_that_restarted(residency: Residency) -> None:
    fleet = replace(FLEET, speeds=(1.0,), residency=residency, faults=(Fault(10.0, 0, down_s=5.0),))
    asked = [TraceRequest(at_s, 4096, 2, tuple(range(8))) for at_s in (0.0, 5.0, 30.0)]
    steady, _ = replayed(asked, fleet=replace(fleet, faults=()))
    restarted, _ = replayed(asked, fleet=fleet)
    assert restarted.expected_cached_tokens == pytest.approx(steady.expected_cached_tokens / 2, rel=0.1)
    assert restarted.cached_tokens == steady.cached_tokens / 2


def test_followers_of_a_burst_join_its_leader() -> None:
    measures, _ = replayed(list(workloads.bursts(1, count=102, every_s=20)), fleet=replace(FLEET, speeds=(1.0,) * 8))
    assert measures.cached_tokens / measures.prompt_tokens > 0.6


def test_with_nobody_up_requests_are_refused() -> None:
    fleet = replace(FLEET, speeds=(1.0,), faults=(Fault(1.0, 0, down_s=5.0),))
    measures, _ = replayed([TraceRequest(2.0, 500, 1, ()), TraceRequest(20.0, 500, 1, ())], fleet=fleet)
    assert (measures.refused, measures.answered_count) == (1, 1)


def test_events_tell_more_than_history_once_caches_evict() -> None:
    requests = list(workloads.repositories(3, count=500, per_s=2, repos=30))
    small = replace(FLEET, cache_tokens=70_000)
    known, guessed = (replayed(requests, fleet=replace(small, residency=residency))[0] for residency in get_args(Residency))
    errors = [abs(run.expected_cached_tokens - run.cached_tokens) / run.prompt_tokens for run in (known, guessed)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speeds": ()}, "speeds"),
        ({"speeds": (1.0, 0.0)}, "speeds"),
        ({"cache_tokens": 1000}, "cache_tokens"),
        ({"faults": (Fault(1.0, 9, speed=1.0),)}, "replica 9 of 4"),
        ({"faults": (Fault(1.0, 0),)}, "either speed or down_s"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(FLEET, **changes)  # type: ignore[arg-type]


def test_trace_and_fleet_must_agree_on_blocks() -> None:
    with pytest.raises(ValueError, match="blocks of 64 tokens"):
        Replay(Trace("t", 64, True, iter(())), FLEET, RoutingPolicy())
