"""Laws that every policy keeps, and the promise of each one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routing.core.policy import RoutingPolicy
from routing.core.scheduler import decide
from routing.core.types import Ask, Decision, NoReplica, Replica
from tests.routing.core import fleets as draw

ASK = Ask(prompt_tokens=8000, prefix_key=b"k")
ETTFT = RoutingPolicy(policy="ettft")


def _decide(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> Decision:
    decision = decide(ask, fleet, policy)
    assert isinstance(decision, Decision)
    return decision


def _with(fleet: list[Replica], replica_id: str, **changes: float) -> list[Replica]:
    return [replace(one, **changes) if one.id == replica_id else one for one in fleet]  # type: ignore[arg-type]  # names are the test's


@given(draw.asks, draw.fleets(), draw.policies(), st.data())
def test_the_order_of_replicas_does_not_count(ask: Ask, fleet: list[Replica], policy: RoutingPolicy, data: st.DataObject) -> None:
    assert decide(ask, data.draw(st.permutations(fleet)), policy) == decide(ask, fleet, policy)


@given(draw.asks, draw.fleets(eligible=1), draw.policies())
def test_only_an_eligible_replica_is_chosen_and_everyone_is_accounted_for(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    decision = _decide(ask, fleet, policy)
    assert decision.chosen.refusal is None
    assert decision.candidates[0] == decision.chosen
    assert sorted(each.replica_id for each in decision.candidates) == sorted(each.id for each in fleet)
    refusals = [each.refusal for each in decision.candidates]
    assert refusals == sorted(refusals, key=lambda refusal: refusal is not None)  # refused ones last
    assert {each.replica_id: each.refusal for each in decision.candidates} == {each.id: each.refusal for each in fleet}


@given(draw.asks, draw.fleets(), draw.policies())
def test_nobody_eligible_is_said_with_reasons(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    closed = [replace(one, refusal=one.refusal or "paused") for one in fleet]
    decision = decide(ask, closed, policy)
    assert isinstance(decision, NoReplica)
    assert {each.replica_id: each.refusal for each in decision.candidates} == {each.id: each.refusal for each in closed}


@given(draw.asks, draw.fleets(eligible=1), draw.policies())
def test_a_refused_replica_has_no_influence(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    open_only = [one for one in fleet if one.refusal is None]
    assert _decide(ask, fleet, policy).chosen == _decide(ask, open_only, policy).chosen


@given(draw.asks, draw.fleets(eligible=1), draw.policies(), st.integers(1, 100_000))
def test_more_residency_never_loses_a_replica_its_place(ask: Ask, fleet: list[Replica], policy: RoutingPolicy, more: int) -> None:
    chosen = _decide(ask, fleet, policy).chosen
    richer = _with(fleet, chosen.replica_id, matched_tokens=chosen.matched_tokens + more)
    assert _decide(ask, richer, policy).chosen.replica_id == chosen.replica_id


@given(draw.asks, draw.fleets(eligible=1), draw.policies())
def test_firmer_evidence_never_loses_a_replica_its_place(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    chosen = _decide(ask, fleet, policy).chosen
    assert _decide(ask, _with(fleet, chosen.replica_id, confidence=0.97), policy).chosen.replica_id == chosen.replica_id


@given(draw.asks, draw.fleets(eligible=2), draw.policies(), st.data(), st.integers(1, 100_000))
def test_more_work_ahead_never_wins_a_replica_the_request(
    ask: Ask, fleet: list[Replica], policy: RoutingPolicy, data: st.DataObject, more: int
) -> None:
    chosen = _decide(ask, fleet, policy).chosen.replica_id
    loser = data.draw(st.sampled_from([one for one in fleet if one.id != chosen]))
    field = data.draw(st.sampled_from(["queued_tokens", "foreign_tokens", "active_decodes", "in_flight"]))
    busier = _with(fleet, loser.id, **{field: getattr(loser, field) + more})
    assert _decide(ask, busier, policy).chosen.replica_id != loser.id


@given(draw.asks, draw.fleets(eligible=1), draw.policies())
def test_every_candidate_carries_a_finite_estimate(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    for candidate in _decide(ask, fleet, policy).candidates:
        assert 0 < candidate.expected_ttft_s < math.inf
        assert 0 <= candidate.expected_cached_tokens <= ask.prompt_tokens - 1
        assert 1 <= candidate.uncached_tokens <= ask.prompt_tokens
        assert candidate.score_s == pytest.approx(sum(candidate.terms.values()))
        assert all(math.isfinite(term) and term >= 0 for term in candidate.terms.values())


@given(draw.asks, draw.fleets(eligible=1), draw.policies())
def test_attainable_speaks_of_the_chosen_replica(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    decision = _decide(ask, fleet, policy)
    assert decision.attainable == (ask.ttft_slo_s is None or decision.chosen.expected_ttft_s <= ask.ttft_slo_s)


# --- ettft --------------------------------------------------------------------------------------------------------------


@given(draw.asks, draw.fleets(eligible=1))
def test_ettft_takes_nobody_much_worse_than_the_best_score(ask: Ask, fleet: list[Replica]) -> None:
    decision = _decide(ask, fleet, ETTFT)
    best_s = min(each.score_s for each in decision.candidates if each.refusal is None)
    assert decision.chosen.score_s <= best_s + max(ETTFT.tie_share * best_s, ETTFT.tie_s) + 1e-9


def test_ettft_prefers_the_holder_until_its_queue_costs_more_than_the_prefill_saved() -> None:
    holder = Replica(id="holder", name="h", matched_tokens=7900, confidence=0.97)
    other = Replica(id="other", name="o")
    assert _decide(ASK, [holder, other], ETTFT).chosen.replica_id == "holder"
    # Recomputing about 7700 tokens costs 7700/8000 s of its own and twice that as external price: about 2.9 s, or 23000 queued tokens.
    assert _decide(ASK, [replace(holder, queued_tokens=20_000), other], ETTFT).chosen.replica_id == "holder"
    assert _decide(ASK, [replace(holder, queued_tokens=27_000), other], ETTFT).chosen.replica_id == "other"


def test_an_equal_fleet_is_decided_by_the_rendezvous_rank_whatever_the_ids() -> None:
    fleet = [Replica(id=name, name=name, rank=rank) for name, rank in (("a", b"3"), ("b", b"1"), ("c", b"2"))]
    assert _decide(ASK, fleet, ETTFT).chosen.replica_id == "b"


def test_the_guard_moves_a_hot_prefix_on_when_its_holder_would_miss_the_target() -> None:
    holder = Replica(id="holder", name="h", matched_tokens=7900, confidence=0.97, queued_tokens=16_000)  # T about 2.1 s
    other = Replica(id="other", name="o")
    relaxed = replace(ASK, ttft_slo_s=60.0)
    pressed = replace(ASK, ttft_slo_s=1.3)
    assert _decide(relaxed, [holder, other], ETTFT).chosen.replica_id == "holder"
    assert _decide(pressed, [holder, other], ETTFT).chosen.replica_id == "other"


def test_near_ties_go_to_the_least_work_then_to_the_least_busy() -> None:
    slower_holder = Replica(id="a", name="", matched_tokens=100, confidence=0.5, fixed_s=0.06)  # 50 tokens less to compute, and a little slower
    faster = Replica(id="b", name="", fixed_s=0.04)
    assert _decide(ASK, [faster, slower_holder], ETTFT).chosen.replica_id == "a"
    assert _decide(ASK, [faster, replace(faster, id="c", in_flight=1)], ETTFT).chosen.replica_id == "b"
    assert _decide(ASK, [replace(faster, in_flight=1), replace(faster, id="c")], ETTFT).chosen.replica_id == "c"


def test_a_replica_whose_cache_is_overcommitted_is_avoided_for_cold_work() -> None:
    full = Replica(id="a", name="", working_set_blocks=950, capacity_blocks=1000, new_blocks=50)
    roomy = replace(full, id="b", working_set_blocks=100)
    assert _decide(ASK, [full, roomy], ETTFT).chosen.replica_id == "b"
    assert _decide(ASK, [full, replace(roomy, capacity_blocks=0)], ETTFT).chosen.replica_id == "b"  # unknown capacity is no pressure


def test_a_target_is_attainable_by_time_not_by_score() -> None:
    decision = _decide(replace(ASK, ttft_slo_s=1.5), [Replica(id="a", name="")], ETTFT)
    assert decision.chosen.expected_ttft_s < 1.5 < decision.chosen.score_s
    assert decision.attainable


# --- classic policies ---------------------------------------------------------------------------------------------------


@given(draw.asks, draw.fleets(eligible=1), st.integers(0, 1000))
def test_round_robin_gives_each_eligible_replica_one_turn_in_a_round(ask: Ask, fleet: list[Replica], start: int) -> None:
    eligible = sorted(one.id for one in fleet if one.refusal is None)
    policy = RoutingPolicy(policy="round_robin")
    turns = [_decide(replace(ask, sequence=start + turn), fleet, policy).chosen.replica_id for turn in range(len(eligible))]
    assert sorted(turns) == eligible


@given(draw.asks, draw.fleets(eligible=1))
def test_least_outstanding_takes_a_replica_with_the_fewest_in_flight(ask: Ask, fleet: list[Replica]) -> None:
    chosen = _decide(ask, fleet, RoutingPolicy(policy="least_outstanding")).chosen
    assert chosen.in_flight == min(one.in_flight for one in fleet if one.refusal is None)


@given(draw.asks, draw.fleets(eligible=1), st.floats(1, 10))
def test_bounded_hash_never_overloads_and_keeps_to_the_rank_otherwise(ask: Ask, fleet: list[Replica], load_factor: float) -> None:
    eligible = [one for one in fleet if one.refusal is None]
    chosen = _decide(ask, fleet, RoutingPolicy(policy="bounded_hash", load_factor=load_factor)).chosen
    bound = math.ceil(load_factor * (sum(one.in_flight for one in eligible) + 1) / len(eligible))
    assert chosen.in_flight + 1 <= bound
    better_ranked = [one for one in eligible if (one.rank, one.id) < next((each.rank, each.id) for each in fleet if each.id == chosen.replica_id)]
    assert all(one.in_flight + 1 > bound for one in better_ranked)


def test_bounded_hash_leaves_a_busy_favourite_while_others_idle() -> None:
    fleet = [Replica(id=f"r{number}", name="", rank=bytes([number]), in_flight=1 if number == 0 else 0) for number in range(4)]
    assert _decide(ASK, fleet, RoutingPolicy(policy="bounded_hash")).chosen.replica_id == "r1"


@given(draw.asks, draw.fleets(eligible=1))
def test_a_named_session_is_placed_by_rank_and_load_and_an_unnamed_request_by_seconds(ask: Ask, fleet: list[Replica]) -> None:
    session = RoutingPolicy(policy="session")
    named = replace(ask, session_key=b"s")
    assert _decide(named, fleet, session).chosen == _decide(named, fleet, RoutingPolicy(policy="bounded_hash")).chosen
    unnamed = replace(ask, session_key=None)
    assert _decide(unnamed, fleet, session).chosen == _decide(unnamed, fleet, RoutingPolicy(policy="ettft")).chosen


@given(draw.asks, draw.fleets(eligible=1), st.integers(1, 100))
def test_longest_prefix_takes_the_longest_below_its_threshold(ask: Ask, fleet: list[Replica], threshold: int) -> None:
    assume(any(one.refusal is None and one.in_flight < threshold for one in fleet))
    policy = RoutingPolicy(policy="longest_prefix", concurrency_threshold=threshold, prefix_tokens=300_000)
    chosen = _decide(ask, fleet, policy).chosen
    assert chosen.in_flight < threshold
    assert chosen.matched_tokens == max(one.matched_tokens for one in fleet if one.refusal is None and one.in_flight < threshold)


def test_weighted_with_one_scorer_follows_that_scorer_alone() -> None:
    waiting = Replica(id="waiting", name="", queued_tokens=80_000, matched_tokens=7900, confidence=0.97)
    cold = Replica(id="cold", name="")
    wait_only = RoutingPolicy(policy="weighted", weights=(("wait", 1.0),))
    prefill_only = RoutingPolicy(policy="weighted", weights=(("prefill", 1.0),))
    assert _decide(ASK, [waiting, cold], wait_only).chosen.replica_id == "cold"
    assert _decide(ASK, [waiting, cold], prefill_only).chosen.replica_id == "waiting"
