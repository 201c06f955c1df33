"""A recorded decision under another policy: the law is that it is what the scheduler itself would have said."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import dry_run, scheduler
from routing.core.dry_run import Redone
from routing.core.policy import SCORERS, RoutingPolicy, compile_routing
from routing.core.record import CandidateRecord, DecisionRecord
from routing.core.types import Ask, Decision, Replica

ETTFT = compile_routing({"policy": "ettft"})


def recorded(ask: Ask, replicas: list[Replica], policy: RoutingPolicy) -> DecisionRecord:
    """The record of a decision, as a router writes it."""
    decision = scheduler.decide(ask, replicas, policy)
    assert isinstance(decision, Decision)
    kept = tuple(
        CandidateRecord(**{name: getattr(one, name) for name in CandidateRecord.__struct_fields__ if hasattr(one, name)})
        for one in decision.candidates
    )
    return a_record(kept, replica_id=decision.chosen.replica_id, slo_ttft_s=ask.ttft_slo_s)


def a_record(candidates: tuple[CandidateRecord, ...], **fields: Any) -> DecisionRecord:
    usual: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1}
    usual |= {"id": uuid.uuid4(), "tenant_id": uuid.uuid4(), "started_at": 0.0}
    return DecisionRecord(**usual, candidates=candidates, **fields)


def candidate(name: str, **fields: Any) -> CandidateRecord:
    return CandidateRecord(replica_id=name, replica_name=name, **fields)


replica = st.builds(
    Replica,
    id=st.just(""),
    name=st.just("r"),
    queued_tokens=st.floats(0, 50_000),
    foreign_tokens=st.floats(0, 20_000),
    active_decodes=st.floats(0, 64),
    in_flight=st.integers(0, 80),
    matched_tokens=st.integers(0, 8000),
    confidence=st.floats(0, 0.995),
    prefill_tokens_per_s=st.floats(500, 50_000),
    working_set_blocks=st.integers(0, 2000),
    capacity_blocks=st.sampled_from([0, 1000]),
)
fleets = st.lists(replica, min_size=1, max_size=6).map(
    lambda found: [Replica(**{**{name: getattr(one, name) for name in one.__slots__}, "id": f"r{n}"}) for n, one in enumerate(found)]
)
asks = st.builds(Ask, prompt_tokens=st.integers(1, 9000), prefix_key=st.just(b"k"), ttft_slo_s=st.sampled_from([None, 0.5, 2.0]))
weights = st.fixed_dictionaries({name: st.floats(0.1, 5) for name in SCORERS})
by_seconds = st.one_of(
    st.builds(lambda price, mu: {"policy": "ettft", "price_of_recomputation": price, "pressure": mu}, st.floats(0.1, 5), st.floats(0.1, 5)),
    st.builds(lambda found: {"policy": "weighted", "weights": found}, weights),
    st.just({"policy": "ettft", "price_of_recomputation": "auto"}),
)
others = st.sampled_from([{"policy": "least_outstanding"}, {"policy": "longest_prefix"}, {"policy": "longest_prefix", "concurrency_threshold": 20}])


@given(asks, fleets, by_seconds, st.one_of(by_seconds, others))
def test_it_is_what_the_scheduler_would_have_said(ask: Ask, fleet: list[Replica], old_spec: dict[str, Any], new_spec: dict[str, Any]) -> None:
    old, new = compile_routing(old_spec), compile_routing(new_spec)
    found = dry_run.redo(recorded(ask, fleet, old), old, new, turn=0)
    if new.policy in ("ettft", "weighted") and old.price_auto != new.price_auto:
        assert found == dry_run.NO_TERMS  # the price of the moment is not in the record
        return
    truth = scheduler.decide(ask, fleet, new)
    assert isinstance(found, Redone)
    assert isinstance(truth, Decision)
    scores = {one.replica_id: one.score_s for one in truth.candidates}
    for one in found.candidates:
        assert one.score_s == pytest.approx(scores[one.replica_id], rel=1e-6, abs=1e-9)
    if found.after.replica_id != truth.chosen.replica_id:  # only what rounding, or an order that records lack, decides
        mine = next(one for one in truth.candidates if one.replica_id == found.after.replica_id)
        bound_s = new.tie_within_s(min(scores.values())) * 1.001
        assert abs(mine.score_s - truth.chosen.score_s) <= bound_s + 1e-9
        edge_s = pytest.approx(min(scores.values()) + new.tie_within_s(min(scores.values())), rel=1e-6)
        at_the_edge = edge_s in (mine.score_s, truth.chosen.score_s)  # rounding says which side of it
        same_load = mine.in_flight == truth.chosen.in_flight
        assert at_the_edge or same_load or mine.uncached_tokens == pytest.approx(truth.chosen.uncached_tokens, rel=1e-6)


@given(asks, fleets, by_seconds)
def test_the_same_policy_again_changes_nothing(ask: Ask, fleet: list[Replica], spec: dict[str, Any]) -> None:
    policy = compile_routing(spec)
    found = dry_run.redo(recorded(ask, fleet, policy), policy, policy, turn=0)
    assert isinstance(found, Redone)
    bound_s = policy.tie_within_s(found.candidates[0].score_s)
    assert not found.differs or abs(found.candidates[0].score_s - found.candidates[1].score_s) <= bound_s * 1.001


def test_another_price_of_recomputation_moves_a_decision() -> None:
    """By hand: b waits 0.5 s and computes 100 tokens, a computes 1000 and waits for nobody; mean rate 1000 tokens/s."""
    kept = (
        candidate("b", uncached_tokens=100.0, expected_ttft_s=0.6, terms={"wait": 0.5, "prefill": 0.1, "external_price": 0.2}),
        candidate("a", uncached_tokens=1000.0, expected_ttft_s=1.0, terms={"wait": 0.0, "prefill": 1.0, "external_price": 2.0}),
    )
    record = a_record(kept, replica_id="b")
    weighted = compile_routing({"policy": "weighted", "weights": {"wait": 4, "prefill": 1}})
    found = dry_run.redo(record, ETTFT, weighted, turn=0)
    assert isinstance(found, Redone)
    assert (found.before.replica_id, found.after.replica_id, found.differs) == ("b", "a", True)
    assert [(one.replica_id, one.score_s) for one in found.candidates] == [("a", 1.0), ("b", pytest.approx(2.1))]


def test_turns_are_counted_from_the_first_decision() -> None:
    kept = tuple(candidate(name) for name in "abc")
    turns = compile_routing({"policy": "round_robin"})
    chosen = []
    for turn in range(4):
        found = dry_run.redo(a_record(kept, replica_id="a"), ETTFT, turns, turn=turn)
        assert isinstance(found, Redone)
        chosen.append(found.after.replica_id)
    assert chosen == ["a", "b", "c", "a"]


def test_a_tie_that_the_record_cannot_break_is_no_difference() -> None:
    kept = (candidate("a", in_flight=2), candidate("b", in_flight=2))
    found = dry_run.redo(a_record(kept, replica_id="b"), ETTFT, compile_routing({"policy": "least_outstanding"}), turn=0)
    assert isinstance(found, Redone)
    assert not found.differs


def test_what_a_record_does_not_hold_is_not_guessed() -> None:
    bare = (candidate("a"), candidate("b"))
    turns = compile_routing({"policy": "round_robin"})
    assert dry_run.redo(a_record(bare, replica_id="a"), turns, ETTFT, turn=0) == dry_run.NO_TERMS
    assert dry_run.redo(a_record(bare, replica_id="a"), None, turns, turn=0) == dry_run.UNKNOWN_POLICY
    assert dry_run.redo(a_record((), replica_id="a"), ETTFT, turns, turn=0) == dry_run.NO_CANDIDATES
    assert dry_run.redo(a_record(bare, replica_id="gone"), ETTFT, turns, turn=0) == dry_run.NO_CANDIDATES
    assert dry_run.redo(a_record((candidate("a", refusal="paused"),)), ETTFT, turns, turn=0) == dry_run.NOBODY
    assert dry_run.redo(a_record(bare, replica_id="a"), ETTFT, compile_routing({"policy": "bounded_hash"}), turn=0) == dry_run.NO_ORDER
    unpriced = compile_routing({"policy": "ettft", "price_of_recomputation": 0})
    free = (candidate("a", terms={"wait": 0.1, "prefill": 0.1, "external_price": 0.0, "pressure": 0.0, "slo_guard": 0.0}),)
    assert dry_run.redo(a_record(free, replica_id="a"), unpriced, ETTFT, turn=0) == dry_run.NO_TERMS


def test_the_summary_counts_what_was_left_out_and_why() -> None:
    kept = (candidate("a", in_flight=0, expected_ttft_s=0.2, expected_cached_tokens=10.0), candidate("b", in_flight=1, expected_ttft_s=0.1))
    found = dry_run.redo(a_record(kept, replica_id="b"), ETTFT, compile_routing({"policy": "least_outstanding"}), turn=0)
    summed = dry_run.summary([found, dry_run.NO_TERMS, dry_run.NO_TERMS, dry_run.NOBODY])
    assert (summed.redone, summed.differing) == (1, 1)
    assert (summed.ttft_before_s, summed.ttft_after_s, summed.cached_before, summed.cached_after) == (0.1, 0.2, 0.0, 10.0)
    assert {one.why: one.count for one in summed.left_out} == {dry_run.NO_TERMS: 2, dry_run.NOBODY: 1}
    assert dry_run.summary([]).ttft_before_s is None
