"""What of a candidate's evidence a tenant may read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from routing.core.ranks import OTHER_RANK
from routing.core.record import AttemptRecord, CandidateRecord, DecisionRecord, TransferRecord, TrialRecord
from routing.services.disclosure import disclose

OWN, FOREIGN = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"


def record(evidence: str) -> DecisionRecord:
    candidates = tuple(
        CandidateRecord(replica_id=one, replica_name=one[:4], evidence=evidence, evidence_age_s=12.5, residency="exact") for one in (OWN, FOREIGN)
    )
    return DecisionRecord(
        id=UUID(int=1),
        tenant_id=UUID(int=2),
        started_at=0.0,
        route="chat",
        outcome="ok",
        status=200,
        router_id="r",
        config_version=1,
        replica_id=OWN,
        candidates=candidates,
    )


def test_how_long_ago_a_platforms_engine_spoke_is_not_told() -> None:
    """Its latest event may be about anybody's request. The age of the tenant's own traffic is its own."""
    own, foreign = disclose(record("event"), own_replica_ids={OWN}).candidates
    assert (own.evidence_age_s, own.residency) == (12.5, "exact")
    assert (foreign.evidence, foreign.evidence_age_s, foreign.residency) == ("event", 0.0, None)
    _, inferred = disclose(record("inferred"), own_replica_ids={OWN}).candidates
    assert inferred.evidence_age_s == 12.5
    assert [one.evidence_age_s for one in disclose(record("event"), own_replica_ids=None).candidates] == [12.5, 12.5]


def test_weighted_waits_are_not_told_as_seconds() -> None:
    waiting = tuple(msgspec.structs.replace(one, terms={"wait": 1.93}) for one in record("none").candidates)
    plain, weighted = (
        disclose(msgspec.structs.replace(record("none"), candidates=waiting, policy=policy), own_replica_ids={OWN})
        for policy in ("ettft", "weighted")
    )
    assert plain.pool_wait_s == 2.0
    assert weighted.pool_wait_s is None


def test_a_trials_other_choice_names_no_foreign_replica_and_tells_no_load() -> None:
    """What the other policy expected to be cached is the tenant's own; how long it expected to wait there is not."""
    said: dict[str, Any] = {"policy": "ettft", "policy_version": 1, "placed": False, "expected_ttft_s": 1.25, "expected_cached_tokens": 64.0}
    told = []
    for replica_id in (FOREIGN, OWN):
        trial = TrialRecord(replica_id=replica_id, replica_name="gpu-7", **said)
        told.append(disclose(msgspec.structs.replace(record("none"), trial=trial), own_replica_ids={OWN}).record["trial"])
    foreign, own = told
    assert foreign == {"policy": "ettft", "policy_version": 1, "placed": False, "expected_cached_tokens": 64.0, "replica": "replica 1"}
    assert (own["replica"], own["expected_ttft_s"]) == (OWN[:4], 1.25)


def test_a_transfers_other_replica_is_named_only_where_it_is_the_tenants() -> None:
    """How long things took is the tenant's own; what they were expected to take tells of others' work."""
    said = {"result": "ok", "moved_tokens": 900.0, "prefill_s": 0.5, "first_byte_s": 0.25, "cached_tokens": 64}
    expected = {"expected_prefill_s": 1.0, "expected_transfer_s": 0.2, "expected_local_ttft_s": 3.0}
    told = []
    for replica_id in (FOREIGN, OWN):
        transfer = TransferRecord(replica_id=replica_id, replica_name="gpu-7", **said, **expected)  # type: ignore[arg-type]  # each is of its field's type
        told.append(disclose(msgspec.structs.replace(record("none"), transfer=transfer), own_replica_ids={OWN}).record["transfer"])
    foreign, own = told
    assert foreign == {**said, "replica": "replica 1"}
    assert own == {**said, **expected, "replica": OWN[:4]}


def test_ranks_are_shown_of_own_replicas_alone() -> None:
    """Of how many ranks the platform's replicas are made, and which took the request, is the platform's; the chosen rank is the only one marked."""
    whole = record("event")
    weighed = [msgspec.structs.replace(one, dp_rank=1) for one in whole.candidates]
    others = [msgspec.structs.replace(one, dp_rank=0, refusal=OTHER_RANK) for one in whole.candidates]
    attempts = tuple(AttemptRecord(replica_id=one, status=200, dp_rank=1) for one in (OWN, FOREIGN))
    whole = msgspec.structs.replace(whole, candidates=(*weighed, *others), attempts=attempts)
    told = disclose(whole, own_replica_ids={OWN})
    assert [(one.replica, one.dp_rank, one.chosen, one.refusal) for one in told.candidates] == [
        (OWN[:4], 1, True, None),
        ("replica 1", None, False, None),
        (OWN[:4], 0, False, OTHER_RANK),
    ]
    assert [one.dp_rank for one in told.attempts] == [1, None]
    assert len(disclose(whole, own_replica_ids=None).candidates) == 4
