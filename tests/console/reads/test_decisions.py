"""What a tenant may read of a decision on replicas that it shares with others."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.reads import decisions
from routing.core.record import CandidateRecord, DecisionRecord


def _record(*candidates: CandidateRecord, replica_id: str = "1") -> DecisionRecord:
    return DecisionRecord(
        id=uuid.UUID(int=1),
        tenant_id=uuid.UUID(int=2),
        started_at=0.0,
        route="/v1/chat/completions",
        outcome="ok",
        status=200,
        router_id="r",
        config_version=1,
        replica_id=replica_id,
        replica_name="h1",
        candidates=candidates,
    )


def _candidate(replica_id: str, **terms: float) -> CandidateRecord:
    score_s = sum(terms.values())
    return CandidateRecord(replica_id=replica_id, replica_name=f"h{replica_id}", terms=terms, score_s=score_s, in_flight=5, queued_tokens=70.0)


def test_own_replicas_and_operators_read_everything() -> None:
    record = _record(_candidate("1", wait=0.123))
    assert decisions.shown(record, {"1"}).record == record
    assert decisions.shown(record, None).record == record


def test_of_shared_replicas_ones_own_terms_and_one_rounded_wait_remain() -> None:
    other = _candidate("2", wait=0.9, prefill=0.4, pressure=0.5, slo_guard=0.3)
    record = _record(_candidate("1", wait=0.123, prefill=0.2), other, _candidate("3", wait=0.7))
    seen = decisions.shown(record, {"3"})
    first, second, own = seen.record.candidates
    assert (first.replica_name, second.replica_name, own.replica_name) == ("shared replica 1", "shared replica 2", "h3")
    assert first.terms == {"prefill": 0.2, "wait": 0.1}
    assert second.terms == {"prefill": 0.4, "wait": 0.1}
    assert (second.in_flight, second.queued_tokens) == (0, 0.0)
    assert second.score_s == pytest.approx(0.5)
    assert own == record.candidates[2]
    assert seen.record.replica_name == "shared replica 1"
    assert seen.hidden == {"1", "2"}


@given(st.floats(0, 1000))
def test_a_rounded_wait_has_one_digit(value_s: float) -> None:
    shown = decisions.rounded(value_s)
    assert abs(shown - value_s) <= max(0.01, value_s / 2)
    assert shown == 0 or len(f"{shown:.2f}".strip("0").replace(".", "").strip("0")) <= 1
