"""What of a cause may be read: all of it on one's own pool, and nothing that tells of others on the platform's."""

from __future__ import annotations

import uuid

import msgspec

from routing.core.record import CauseRecord, DecisionRecord
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
