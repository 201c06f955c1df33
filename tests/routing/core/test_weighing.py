"""A decision writes out one candidate; whoever looks at the others sees what they would have been had all been written out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import candidates, ttft
from routing.core.policy import MOST_TIE_S, RoutingPolicy
from routing.core.scheduler import decide
from routing.core.scorer import Field
from routing.core.scorers import REGISTER
from routing.core.types import Ask, Candidate, Decision, Replica
from routing.core.weighing import weighed
from tests.routing.core import fleets as draw

by_seconds = draw.policies().filter(lambda policy: policy.policy in ("ettft", "weighted"))


def _in_full(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> list[Candidate]:
    """What :func:`decide` must come to, the long way: every candidate with every term by name, then sorted by the policy's order."""
    short = candidates.shortlist(ask, [one for one in sorted(fleet, key=lambda one: one.id) if one.refusal is None], by_seconds=True)
    field = Field(
        policy=policy,
        mean_prefill_tokens_per_s=sum(one.prefill_tokens_per_s for one in short.kept) / len(short.kept),
        mean_wait_s=sum(ttft.wait_s(one) for one in short.kept) / len(short.kept),
        least_ttft_s=min(ttft.estimate(ask, one).ttft_s for one in short.kept),
    )
    weights = dict(policy.weights)
    seen = []
    for one in short.kept:
        estimate = ttft.estimate(ask, one)
        terms = {each.name: weights[each.name] * each.seconds(ask, one, estimate, field) for each in REGISTER if each.name in weights}
        seen.append((weighed(ask, one, terms), one))
    best_s = min(candidate.score_s for candidate, _ in seen)

    def order(each: tuple[Candidate, Replica]) -> tuple[object, ...]:
        candidate, one = each
        if candidate.score_s <= best_s + max(min(policy.tie_share * best_s, MOST_TIE_S), policy.tie_s):
            return (0, candidate.uncached_tokens, one.in_flight, one.rank, one.id)
        return (1, candidate.score_s, one.in_flight, one.rank, one.id)

    return [candidate for candidate, _ in sorted(seen, key=order)]


def _decided(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> Decision:
    decision = decide(ask, fleet, policy)
    assert isinstance(decision, Decision)
    return decision


@given(draw.asks, draw.fleets(eligible=1), by_seconds)
def test_the_short_way_comes_to_what_the_long_way_comes_to(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    """Choice, order, every figure and every term are those of a decision that writes all candidates out."""
    decision, whole = _decided(ask, fleet, policy), _in_full(ask, fleet, policy)
    assert decision.chosen == whole[0]
    assert [one for one in decision.candidates if one.refusal is None] == whole


@pytest.mark.parametrize(
    ("told_by", "overlooked"),
    [
        ({"queued_tokens": 9000.0}, {"queued_tokens": 0.0}),
        ({"prefill_tokens_per_s": 2000.0}, {"prefill_tokens_per_s": 8000.0}),
        ({"adapter_s": 3.0}, {"adapter_s": 0.0}),
        ({"rank": b"z"}, {"rank": b""}),
    ],
    ids=["queue", "speed", "adapter", "a tie's order"],
)
def test_a_short_way_that_forgets_something_is_told_from_the_long_way(told_by: dict[str, Any], overlooked: dict[str, Any]) -> None:
    """The control: a decision that overlooks what alone tells two replicas apart comes to another than the long way, which never overlooks it."""
    ask, policy = Ask(prompt_tokens=8000, prefix_key=b"k"), RoutingPolicy()
    fleet = [replace(Replica(id="a", name="", rank=b"b"), **told_by), Replica(id="b", name="", rank=b"b")]
    whole = _in_full(ask, fleet, policy)
    assert (whole[0].replica_id, list(_decided(ask, fleet, policy).candidates)) == ("b", whole)
    assert _decided(ask, [replace(one, **overlooked) for one in fleet], policy).chosen.replica_id != "b"


@given(draw.asks, draw.fleets(eligible=1), draw.policies())
def test_questions_without_candidates_have_the_candidates_answers(ask: Ask, fleet: list[Replica], policy: RoutingPolicy) -> None:
    """What is read off the replicas is what the written candidates say, before any is written and after all are."""
    seen = _decided(ask, fleet, policy).candidates
    before = seen.least_wait_s(), seen.best_matched_tokens(), [(one.id, one.refusal, one.matched_tokens, one.in_flight) for one in seen.replicas]
    written = tuple(seen)
    assert before == (
        min(one.wait_s for one in written if one.refusal is None),
        max(one.matched_tokens for one in written),
        [(one.replica_id, one.refusal, one.matched_tokens, one.in_flight) for one in written],
    )
    assert (seen.least_wait_s(), seen.best_matched_tokens()) == before[:2]
    assert [seen.of(one.replica_id) for one in written] == list(written)
    assert seen.of("nobody") is None
    assert seen[1:3] == written[1:3]


@given(draw.asks, draw.fleets(least=2, eligible=2), draw.policies(), st.data())
def test_one_that_leads_takes_its_own_place_and_no_other(ask: Ask, fleet: list[Replica], policy: RoutingPolicy, data: st.DataObject) -> None:
    """The first is the one given, the others stay in their order, and what it says is what is asked of it."""
    seen = _decided(ask, fleet, policy).candidates
    first = replace(data.draw(st.sampled_from(tuple(seen))), matched_tokens=10**9, wait_s=-1.0, refusal=None)
    led = seen.led_by(first)
    assert (led[0], led.best_matched_tokens()) == (first, 10**9)
    assert list(led[1:]) == [one for one in seen if one.replica_id != first.replica_id]


@contextmanager
def _calls() -> Iterator[Counter[str]]:
    """Counts calls of Python functions by name."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _what: object) -> None:
        if event == "call":
            counts[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)


def test_a_decision_writes_out_one_candidate() -> None:
    """Of 64 replicas one candidate is written, and each replica costs one estimate and one call of each scorer; who looks writes the others once."""
    fleet = [Replica(id=f"r{number:02}", name="", queued_tokens=number * 500.0, matched_tokens=number * 100, confidence=0.8) for number in range(64)]
    with _calls() as counts:
        decision = _decided(Ask(prompt_tokens=8000, prefix_key=b"k"), fleet, RoutingPolicy())
    assert (counts["weighed"], counts["estimate"], counts["seconds"]) == (1, 64, 64 * len(REGISTER))
    with _calls() as counts:
        assert decision.candidates.least_wait_s() == 0.0
    assert counts["weighed"] == 0
    with _calls() as counts:
        assert len({one.replica_id for _ in range(2) for one in decision.candidates}) == 64
    assert counts["weighed"] == 63
