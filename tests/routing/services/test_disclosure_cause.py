"""What of a cause may be read: all of it on one's own pool, and nothing that tells of others on the platform's."""

from __future__ import annotations

import uuid

import msgspec
import pytest

from console import why
from routing.core.record import CandidateRecord, CauseRecord, DecisionRecord
from routing.services.disclosure import disclose

_RECORD = DecisionRecord(
    id=uuid.UUID(int=1),
    tenant_id=uuid.UUID(int=2),
    started_at=0.0,
    route="chat",
    outcome="ok",
    status=200,
    router_id="r",
    config_version=1,
    replica_id="mine",
    replica_name="gpu-1",
    expected_ttft_s=0.5,
    cause=CauseRecord(
        parts_us={"queue_engine": 900_000, "slow_replica": 70_000, "ideal": 30_000, "missed_evicted": 100_000},
        main="queue_engine",
        missed_tokens={"evicted": 800},
        blind_replica_id="mine-too",
        blind_replica_name="gpu-2",
        blind_ttft_s=0.75,
    ),
)


def test_the_owner_of_the_replicas_reads_everything() -> None:
    seen = disclose(_RECORD, own_replica_ids={"mine", "mine-too"}).cause
    assert seen is not None
    assert seen.main == "queue_engine"
    assert {one.part: one.seconds for one in seen.parts} == {"ideal": 0.03, "queue_engine": 0.9, "missed_evicted": 0.1, "slow_replica": 0.07}
    assert {one.part for one in seen.parts if one.estimated} == {"ideal", "queue_engine", "missed_evicted", "slow_replica"}
    assert seen.blind is not None
    assert seen.blind.saved_s == 0.25
    assert seen.blind.replica == "gpu-2"  # a short record names it too, although it holds no candidates


def test_on_a_platform_pool_others_work_has_no_figure_of_its_own() -> None:
    found = disclose(_RECORD, own_replica_ids=set())
    seen = found.cause
    assert seen is not None
    assert seen.main == "replica"
    assert {one.part: one.seconds for one in seen.parts} == {"ideal": 0.03, "missed_evicted": 0.1, "replica": 0.97}
    assert seen.blind is None
    said = msgspec.json.encode(found).decode()
    for secret in ("mine-too", "gpu-2", "queue_engine", "slow_replica", "900000", "0.75"):
        assert secret not in said
    assert sum(one.seconds for one in seen.parts) == 1.1


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (None, "Refused with 503 (no_ready_replica): no replica could take it (2 unreachable)."),
        (set[str](), "Refused with 503 (no_ready_replica): no replica could take it (2 not available)."),
    ],
)
def test_a_refused_request_is_told_why_as_on_its_page(own: set[str] | None, said: str) -> None:
    """And not how its two milliseconds passed. What keeps requests from the platform's replicas is the platform's."""
    record = msgspec.structs.replace(
        _RECORD,
        outcome="refused",
        status=503,
        error_code="no_ready_replica",
        replica_id=None,
        candidates=tuple(CandidateRecord(replica_id=name, replica_name=name, refusal="unreachable") for name in ("gpu-1", "gpu-2")),
        cause=CauseRecord(parts_us={"router": 2000}, main="router"),
    )
    seen = disclose(record, own_replica_ids=own)
    assert seen.cause is not None
    assert seen.cause.sentence == said == why.sentence(record, seen)
    answered = disclose(msgspec.structs.replace(record, outcome="ok"), own_replica_ids=own).cause
    assert answered is not None
    assert answered.sentence.startswith("Of the 2 ms that it took in all")


@pytest.mark.parametrize("stream", [True, False])
def test_the_generation_of_a_whole_answer_is_marked_as_an_estimate(*, stream: bool) -> None:
    cause = CauseRecord(parts_us={"router": 2000, "generation": 100_000}, main="generation")
    seen = disclose(msgspec.structs.replace(_RECORD, stream=stream, cause=cause), own_replica_ids=None).cause
    assert seen is not None
    assert {one.part: one.estimated for one in seen.parts} == {"router": False, "generation": not stream}
