"""Runs against a real PostgreSQL and Valkey: each kind of finding with its control, repairs once, bounds, isolation, and death in between."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from routing.models import AuditRun, Endpoint, Pool, ReconciliationFinding, ReconciliationRun, Replica
from routing.services import endpoints, publishing
from routing.services.reconciliation import orders, running
from routing.services.reconciliation.facts import ROUTER_KEPT_S, Noted, of_fleet
from routing.services.reconciliation.reports import Heard
from tenants import changes
from tenants.scoping import tenant_scope
from tests.routing.services.rows import ACTOR, actions

if TYPE_CHECKING:
    from tests.routing.services.reconciliation.place import Place

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
NAMESPACE = "ns-" + "0" * 31 + "1"


def engine(place: Place, number: int = 0, **changes: Any) -> None:
    """Another word on one engine."""
    url = list(place.engines)[number]
    place.report(replicas={**place.engines, url: {**place.engines[url], **changes}})


def test_where_all_agree_a_run_finds_nothing(place: Place) -> None:
    """The control of all below, and what a run leaves behind."""
    assert place.found(3600) == {}
    with tenant_scope(place.tenant.id):
        (run,) = ReconciliationRun.objects.filter(tenant_id=place.tenant.id)
        assert (run.state, run.routers, run.open, run.repeats) == ("finished", 1, 0, 2)
        assert set(run.observed["sizes"]) == {str(one) for one in place.replica_ids}
    assert place.rows() == []


# ---- snapshots ---------------------------------------------------------------------------------------------------------------


def test_what_is_not_published_is_published(place: Place) -> None:
    place.valkey.hset("saltroute:versions", str(place.tenant.id), 1)
    assert place.found(20)["snapshot_unpublished"].done == f"published version {place.version}"
    assert int(place.valkey.hget("saltroute:versions", str(place.tenant.id)) or 0) == place.version
    with place.later(30):
        assert place.run().findings == ()
    assert place.rows()[0].state == "resolved"


def test_a_lost_document_is_published_again(place: Place) -> None:
    place.valkey.delete(f"saltroute:snap:{place.tenant.id}")
    assert set(place.found(20)) == {"snapshot_unpublished"}
    assert place.valkey.exists(f"saltroute:snap:{place.tenant.id}")


def test_a_database_behind_its_routers_is_said_and_not_repaired(place: Place) -> None:
    place.valkey.hset("saltroute:versions", str(place.tenant.id), 99)
    before = place.version
    (only,) = place.found(20).values()
    assert (only.kind, only.severity, only.repairs) == ("snapshot_ahead", "critical", 0)
    assert place.version == before


def test_a_refused_document_is_published_anew_and_a_rollback_is_not(place: Place) -> None:
    """A new version for every attempt, three at most; each is in the audit log."""
    place.report(refused={str(place.tenant.id): "invalid"})
    before = place.version
    assert set(place.found(10)) == {"snapshot_refused"}
    assert place.version == before + 1
    for seconds in (20, 400, 1000, 5000, 20_000):
        place.publish()
        place.report(refused={str(place.tenant.id): "invalid"})
        with place.later(seconds):
            place.run()
    with tenant_scope(place.tenant.id):
        assert actions(place.tenant.id).count("tenant.republish") == 3
    place.publish()
    place.report(refused={str(place.tenant.id): "rollback"})
    version = place.version
    with place.later(30_000):
        assert [one.kind for one in place.run().findings] == ["snapshot_refused"]
    assert place.version == version


def test_a_router_that_is_stuck_is_named_and_one_that_follows_is_not(place: Place) -> None:
    old = place.version
    with tenant_scope(place.tenant.id):
        changes.record(tenant_id=place.tenant.id, actor=ACTOR, action="test.change")
    place.publish()
    place.report("r2", versions={str(place.tenant.id): old})
    place.report("r1")
    (only,) = place.found(20).values()
    assert (only.kind, only.subject) == ("router_behind", "r2")
    place.report("r2")
    with place.later(30):
        assert place.run().findings == ()


# ---- engines -----------------------------------------------------------------------------------------------------------------


def test_a_replica_that_no_router_knows(place: Place) -> None:
    first, second = place.engines
    place.report(replicas={second: place.engines[second]})
    (only,) = place.found(60).values()
    assert (only.kind, only.subject_id) == ("replica_unseen", str(place.replica_ids[0]))
    place.change(state="paused")
    place.publish()
    place.report(replicas={second: place.engines[second]})
    with place.later(90):
        assert place.run().findings == ()
    assert first


def test_a_model_that_changed_behind_a_url(place: Place) -> None:
    engine(place, models=["another"])
    (only,) = place.found(60).values()
    assert (only.kind, only.severity, only.subject) == ("model_not_served", "critical", "chat")
    assert "gpu/a" in only.explanation


def test_a_build_that_nobody_noted_is_noted_and_audited(place: Place) -> None:
    engine(place, build="b2")
    place.run()
    with place.later(30):
        place.run()
    assert place.replica().build == "b2"
    assert "ordered an audit" in place.rows(kind="build_unnoticed")[0].done
    with tenant_scope(place.tenant.id):
        assert [run.trigger for run in AuditRun.objects.filter(tenant_id=place.tenant.id)] == ["build"]
    with place.later(60):
        assert "build_unnoticed" not in {one.kind for one in place.run().findings}


def test_a_build_that_no_audit_has_tried(place: Place) -> None:
    place.change(isolation_since=timezone.now() - timedelta(minutes=5), isolation_reason="another build answers here")
    assert set(place.found(90)) == {"build_unaudited"}
    with tenant_scope(place.tenant.id):
        assert AuditRun.objects.filter(tenant_id=place.tenant.id, replica_id=place.replica_ids[0], state="queued").count() == 1
    place.change(audit_at=timezone.now())
    with place.later(120):
        assert place.run().findings == ()


def test_routers_that_dispute_a_build_or_a_block_size(place: Place) -> None:
    url = next(iter(place.engines))
    place.report("r2", replicas={**place.engines, url: {**place.engines[url], "build": "b2", "block_size_tokens": 32}})
    assert {"build_disputed", "block_size_disputed"} <= set(place.found(200))


def test_sizes_that_changed_are_events_and_mixed_ones_are_states(place: Place) -> None:
    place.run()
    engine(place, block_size_tokens=32, capacity_tokens=60_000)
    with place.later(60):
        place.run()
    with place.later(130):
        kinds = {one.kind: one.explanation for one in place.run().findings}
    assert set(kinds) == {"block_size_changed", "capacity_changed", "block_size_mixed", "capacity_mixed"}
    assert "held 16 tokens and hold 32 now" in kinds["block_size_changed"]
    with place.later(8000):
        assert {one.kind for one in place.run().findings} == {"block_size_mixed", "capacity_mixed"}


def test_events_that_cannot_be_relied_on_where_they_are_declared(place: Place) -> None:
    engine(place, residency="degraded", residency_reason="gap", residency_for_s=120.0)
    assert place.found(90) == {}
    place.change(kv_events={"endpoint": "tcp://127.0.0.1:5557"})
    with place.later(100):
        place.run()
    with place.later(200):
        (only,) = place.run().findings
    assert only.kind == "residency_degraded"
    assert "r1: degraded, reports lost" in only.explanation


def test_parity_trust_and_artifacts_as_routers_tell_them(place: Place) -> None:
    with tenant_scope(place.tenant.id):
        Endpoint.objects.get(id=place.endpoint_id).model.__class__.objects.filter(tenant_id=place.tenant.id).update(tokenizer_digest=b"\xab" * 32)
    url = next(iter(place.engines))
    said = {**place.engines[url], "trust": {"verdict": "demote", "cause": "events_lost", "kappa": 0.3}}
    pair = {"endpoint": str(place.endpoint_id), "replica": str(place.replica_ids[0]), "state": "different", "sample": "tools", "position": 7}
    unknown = {**pair, "endpoint": str(uuid.uuid4())}
    others = {"ab" * 32: {"kind": "tokenizer", "state": "refused", "reason": "slow"}, "cd" * 32: {"kind": "tokenizer", "state": "missing"}}
    tokens = {"artifacts": {"others": others}, "parity": {"others": [pair, unknown]}}
    place.report(replicas={**place.engines, url: said}, tokens=tokens)
    found = place.found(90)
    assert set(found) == {"parity_broken", "reuse_contradicted", "artifact_missing"}
    assert "demote, likely events lost" in found["reuse_contradicted"].explanation
    assert "r1 (refused: slow)" in found["artifact_missing"].explanation
    assert "at gpu/a than here (tools, from token 7 on)" in found["parity_broken"].explanation


# ---- isolation ---------------------------------------------------------------------------------------------------------------


def test_an_assignment_without_effect_is_taken_away_once(place: Place) -> None:
    """And one that has an effect stays, whoever asks."""
    from tests.routing.services.reconciliation.place import decide

    place.change(0, dedicated_namespace=NAMESPACE, isolation_state="isolated")
    place.change(1, dedicated_namespace=NAMESPACE)
    decide(place.tenant.id, timezone.now(), endpoint_id=place.endpoint_id, replica_id=place.replica_ids[1], namespace=NAMESPACE)
    ended = place.run()
    assert [one.kind for one in ended.findings] == ["assignment_void"]
    assert (place.replica(0).dedicated_namespace, place.replica(1).dedicated_namespace) == (None, NAMESPACE)
    place.publish()
    place.report()
    version = place.version
    with place.later(10):
        assert place.run().findings == ()
    assert place.version == version
    with tenant_scope(place.tenant.id):
        assert actions(place.tenant.id).count("replica.release") == 1


@pytest.mark.parametrize(("state", "freed"), [("isolated", True), ("unverified", False), ("suspect", False), ("quarantined", False)], ids=str)
def test_an_assignment_that_has_an_effect_is_never_taken_away(place: Place, state: str, freed: bool) -> None:
    """The rows may have changed since the finding was made, so the repair asks again; once more, it does nothing."""
    from routing.services import isolation

    place.change(dedicated_namespace=NAMESPACE, isolation_state=state)
    with tenant_scope(place.tenant.id):
        assert isolation.release(tenant_id=place.tenant.id, replica_id=place.replica_ids[0]) is freed
        assert isolation.release(tenant_id=place.tenant.id, replica_id=place.replica_ids[0]) is False
    assert (place.replica().dedicated_namespace is None) is freed


@pytest.mark.parametrize(("looked_s", "again_s"), [(1000, 2000), (86_400, 0)], ids=["later", "after a look by a clock that was ahead"])
def test_an_assignment_whose_namespace_cannot_come_again(place: Place, looked_s: float, again_s: float) -> None:
    """It was used, then the endpoint's epoch was rotated. Only told: an engine that may ignore salts must lose its cache first."""
    from tests.routing.services.reconciliation.place import decide

    place.change(dedicated_namespace=NAMESPACE)
    decide(
        place.tenant.id,
        timezone.now() - timedelta(minutes=5),
        endpoint_id=place.endpoint_id,
        replica_id=place.replica_ids[0],
        namespace=NAMESPACE,
    )
    assert place.found(looked_s) == {}
    with tenant_scope(place.tenant.id):
        endpoints.rotate_epoch(tenant_id=place.tenant.id, actor=ACTOR, endpoint_id=place.endpoint_id, reason="test")
    place.publish()
    place.report()
    with place.later(again_s):
        (only,) = place.run().findings
    assert (only.kind, only.repairs) == ("assignment_dead", 0)
    assert "endpoint.rotate_epoch" in only.explanation
    assert place.replica().dedicated_namespace == NAMESPACE


def test_an_assignment_that_nobody_uses(place: Place, as_owner: Any) -> None:
    from tenants.models import AuditEntry
    from tenants.scoping import tenant_scope as scope

    with scope(place.tenant.id):
        from routing.services import isolation

        assert isolation.assign(tenant_id=place.tenant.id, replica_id=place.replica_ids[0], namespace=NAMESPACE, now=timezone.now())
    place.publish()
    place.report()
    assert place.found(1000) == {}  # assigned today
    with as_owner(), scope(place.tenant.id):
        AuditEntry.objects.filter(tenant_id=place.tenant.id, action="replica.assign").update(created_at=timezone.now() - timedelta(days=8))
    with place.later(2000):
        assert [one.kind for one in place.run().findings] == ["assignment_idle"]


def test_an_alarm_that_no_audit_answered_orders_one(place: Place) -> None:
    from tests.routing.services.reconciliation.place import decide

    at = timezone.now() - timedelta(minutes=20)  # beyond what the audits' own calendar looks back over
    decide(place.tenant.id, at, endpoint_id=place.endpoint_id, replica_id=place.replica_ids[0], alarm="cached_more_than_owned")
    assert [one.kind for one in place.run().findings] == ["alarm_unaudited"]
    with tenant_scope(place.tenant.id):
        assert [run.trigger for run in AuditRun.objects.filter(tenant_id=place.tenant.id)] == ["alarm"]
    with place.later(30):
        place.run()
    with tenant_scope(place.tenant.id):
        assert AuditRun.objects.filter(tenant_id=place.tenant.id).count() == 1


def test_alarms_after_a_pass_contradict_it(place: Place) -> None:
    from tests.routing.services.reconciliation.place import decide

    now = timezone.now()
    place.change(isolation_state="isolated", isolation_verified_at=now - timedelta(minutes=50), audit_at=now - timedelta(minutes=1))
    for minutes in (10, 9, 8):
        at = now - timedelta(minutes=minutes)
        decide(place.tenant.id, at, endpoint_id=place.endpoint_id, replica_id=place.replica_ids[0], alarm="cached_more_than_owned")
    (only,) = place.run().findings
    assert (only.kind, only.severity) == ("alarm_contradicted", "critical")
    assert "3 requests at gpu/a" in only.explanation


# ---- runs --------------------------------------------------------------------------------------------------------------------


def test_without_valkey_nothing_is_resolved_and_nothing_invented(place: Place, settings: Any) -> None:
    engine(place, models=["another"])
    place.valkey.hset("saltroute:versions", str(place.tenant.id), 99)
    assert set(place.found(60)) == {"model_not_served", "snapshot_ahead"}
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    with place.later(100):
        ended = place.run()
    assert {one.kind for one in ended.findings} == {"model_not_served", "snapshot_ahead"}
    assert ended.run.routers is None


def test_a_run_has_a_tenant_alone_and_a_dead_one_frees_it(place: Place) -> None:
    with tenant_scope(place.tenant.id):
        first = orders.begin(tenant_id=place.tenant.id, trigger="beat", now=timezone.now())
    assert first is not None
    assert running.run(place.tenant.id, trigger="beat") is None
    with place.later(orders.RUN_S + 1):
        assert place.run().run.state == "finished"
    with tenant_scope(place.tenant.id):
        assert ReconciliationRun.objects.get(id=first.id).state == "broken"


def test_a_dead_run_of_a_worker_whose_clock_was_ahead_frees_the_tenant_too(place: Place) -> None:
    """It would have the tenant until that clock's time has come."""
    with place.later(86_400), tenant_scope(place.tenant.id):
        first = orders.begin(tenant_id=place.tenant.id, trigger="beat", now=timezone.now())
    assert first is not None
    assert place.run().run.state == "finished"
    with tenant_scope(place.tenant.id):
        assert ReconciliationRun.objects.get(id=first.id).state == "broken"


def test_killed_while_comparing_nothing_of_the_run_is_stored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next run finds it all."""
    engine(place, models=["another"])
    stored = running._store

    def killed(*arguments: Any) -> None:
        stored(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_store", killed)
    with pytest.raises(KeyboardInterrupt):
        place.run()
    assert place.rows() == []
    with tenant_scope(place.tenant.id):
        assert [run.state for run in ReconciliationRun.objects.filter(tenant_id=place.tenant.id)] == ["broken"]
    monkeypatch.undo()
    place.run()
    assert [row.kind for row in place.rows()] == ["model_not_served"]


def test_killed_while_repairing_the_finding_stands_and_the_repair_comes_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from routing.services import isolation

    place.change(dedicated_namespace=NAMESPACE, isolation_state="isolated")

    def killed(**_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(isolation, "release", killed)
    with pytest.raises(KeyboardInterrupt):
        place.run()
    (row,) = place.rows()
    assert (row.state, row.repairs, row.done) == ("open", 1, "")
    monkeypatch.undo()
    with place.later(60):
        place.run()
    assert place.replica().dedicated_namespace == NAMESPACE  # not at once
    with place.later(400):
        place.run()
    assert place.replica().dedicated_namespace is None


def test_history_and_its_bounds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quiet runs are one row; old runs and old resolved findings go; what one run cannot keep is counted."""
    place.run()
    engine(place, models=["another"])
    place.run(trigger="demand")
    place.report()
    place.run(trigger="demand")
    with tenant_scope(place.tenant.id):
        assert ReconciliationRun.objects.filter(tenant_id=place.tenant.id).count() == 3
        assert ReconciliationRun.objects.filter(tenant_id=place.tenant.id).exclude(observed={}).count() == 1
    engine(place, models=["another"])
    assert set(place.found(60)) == {"model_not_served"}
    place.report()
    with place.later(120):
        place.run()
    assert [row.state for row in place.rows()] == ["resolved"]
    with tenant_scope(place.tenant.id):
        ReconciliationFinding.objects.filter(tenant_id=place.tenant.id).update(created_at=timezone.now() - orders.FINDINGS_FOR - timedelta(days=1))
        ReconciliationRun.objects.filter(tenant_id=place.tenant.id).update(created_at=timezone.now() - orders.RUNS_FOR - timedelta(days=1))
    place.run(trigger="demand")
    assert place.rows() == []
    with tenant_scope(place.tenant.id):
        assert ReconciliationRun.objects.filter(tenant_id=place.tenant.id).count() == 1
    monkeypatch.setattr(running, "MAX_FINDINGS", 1)
    url = next(iter(place.engines))
    place.report(replicas={url: {**place.engines[url], "models": ["another"]}})
    ended = place.run(trigger="demand")
    assert (ended.run.dropped, [row.kind for row in place.rows()]) == (1, ["model_not_served"])  # the gravest stays


def test_a_run_that_was_asked_for_is_one_however_often(place: Place) -> None:
    with tenant_scope(place.tenant.id):
        first = orders.request(tenant_id=place.tenant.id, actor=ACTOR)
        assert orders.request(tenant_id=place.tenant.id, actor=ACTOR).id == first.id
    ended = place.run(run_id=first.id)
    assert (ended.run.id, ended.run.trigger) == (first.id, "demand")
    assert running.run(place.tenant.id, trigger="demand", run_id=first.id) is None
    assert running.run(place.tenant.id, trigger="demand", run_id=uuid.uuid4()) is None


# ---- tenants -----------------------------------------------------------------------------------------------------------------


def test_each_tenant_has_its_own_findings(place: Place, valkey_url: str) -> None:
    """Two tenants, one router that speaks of both: each sees its own, under row-level security, and the sweep reconciles both."""
    from tests.routing.services.reconciliation.place import build

    other = build(valkey_url, "birch", 9101)
    wrong = {url: {**said, "models": ["another"]} for url, said in {**place.engines, **other.engines}.items()}
    versions = {str(one.tenant.id): one.version for one in (place, other)}
    place.report(replicas=wrong, versions=versions)
    running.sweep()
    with place.later(60):
        ended = running.sweep()
    assert [[one.kind for one in each.findings] for each in ended] == [["model_not_served"], ["model_not_served"]]
    for mine, theirs in ((place, other), (other, place)):
        (row,) = mine.rows()
        assert row.subject_id == str(mine.endpoint_id)
        with tenant_scope(theirs.tenant.id):
            assert not ReconciliationFinding.objects.filter(id=row.id).exists()
            assert ReconciliationFinding.objects.filter(id=row.id).update(done="stolen") == 0
            assert not ReconciliationRun.objects.filter(tenant_id=mine.tenant.id).exists()


def test_the_platforms_findings_are_the_platforms(place: Place, platform: Any) -> None:
    """A granted pool: the owner reads which replica, the grantee that its endpoint is not served everywhere."""
    from routing import queries
    from routing.services import pools
    from tests.routing.services.rows import a_pool, a_replica

    with tenant_scope(platform.id):
        pool = a_pool(platform.id, "shared")
        secret = a_replica(pool, "secret-name", "http://127.0.0.1:9901")
        second = a_replica(pool, "second", "http://127.0.0.1:9902")
        Replica.objects.filter(tenant_id=platform.id).update(build="b1", kv_events={"endpoint": "tcp://127.0.0.1:5557"})
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=place.tenant.id)
    with tenant_scope(place.tenant.id):
        grant = queries.grant_of(place.tenant.id, pool.id)
        assert grant is not None
        model = queries.model(place.tenant.id, "m-7b")
        granted = endpoints.create(tenant_id=place.tenant.id, actor=ACTOR, name="granted", grant_id=grant.id, model_id=model.id, served_model="m-7b")
    publishing.publish(platform.id)
    place.publish()
    good = place.engines[next(iter(place.engines))]
    engines = {**place.engines, secret.url: {**good, "models": ["another"], "residency": "degraded"}, second.url: good}
    with tenant_scope(platform.id):
        from tenants.models import Tenant

        version = Tenant.objects.values_list("config_version", flat=True).get(id=platform.id)
    place.report(replicas=engines, versions={str(place.tenant.id): place.version, str(platform.id): version})
    (mine,) = place.found(90).values()
    assert (mine.kind, mine.subject_id) == ("model_not_served", str(granted.id))
    assert "not every engine of the granted pool shared" in mine.explanation
    for word in ("secret-name", "9901", "another"):
        assert word not in mine.explanation
    running.run(platform.id, trigger="beat")
    with place.later(90):
        ended = running.run(platform.id, trigger="beat")
    assert ended is not None
    assert [(one.kind, one.subject) for one in ended.findings] == [("residency_degraded", "shared/secret-name")]


def test_ghosts_are_the_platforms_to_see(place: Place, platform: Any) -> None:
    """An engine that no pool has, a tenant of nobody, a router that fell silent, one out of contact, and none at all."""
    publishing.publish(platform.id)
    nobody = str(uuid.uuid4())

    def tell(**more: Any) -> None:
        versions = {str(place.tenant.id): place.version, str(platform.id): 1, nobody: 3}
        place.report(replicas={**place.engines, "http://127.0.0.1:9999": {}}, versions=versions, **more)

    tell(router_id="r2")
    tell(state="stale")
    assert running.run(platform.id, trigger="beat") is not None
    place.valkey.delete("saltroute:router:r2")
    seen: set[tuple[str, str]] = set()
    for seconds in (60, 90, 120):
        with place.later(seconds):
            ended = running.run(platform.id, trigger="beat")
        assert ended is not None
        seen |= {(one.kind, one.subject_id) for one in ended.findings}
    assert seen == {
        ("ghost_engine", "http://127.0.0.1:9999"),
        ("ghost_tenant", nobody),
        ("router_silent", "r2"),
        ("router_out_of_contact", "r1"),
    }
    assert place.found(90) == {}  # a tenant is told of none of these
    place.valkey.delete("saltroute:router:r1")
    for seconds in (200, 230):
        with place.later(seconds):
            ended = running.run(platform.id, trigger="beat")
    assert ended is not None
    assert "no_router" in {one.kind for one in ended.findings}
    assert {"ghost_engine", "ghost_tenant"} <= {one.kind for one in ended.findings}  # nobody was heard to say otherwise


def test_a_deleted_tenant_that_is_still_served(place: Place, platform: Any) -> None:
    from tenants.services import provisioning

    publishing.publish(platform.id)
    with tenant_scope(place.tenant.id):
        Endpoint.objects.filter(tenant_id=place.tenant.id).delete()
        old = place.version
        provisioning.delete(tenant_id=place.tenant.id, actor=ACTOR, now=timezone.now())
    place.report(versions={str(place.tenant.id): old, str(platform.id): 1}, replicas={})
    running.run(platform.id, trigger="beat")
    with place.later(60):
        ended = running.run(platform.id, trigger="beat")
    assert ended is not None
    assert [(one.kind, one.severity) for one in ended.findings] == [("deleted_tenant_served", "critical")]
    assert place.valkey.hget("saltroute:versions", str(place.tenant.id)) is not None


def test_a_router_heard_by_a_clock_that_was_ahead_is_remembered_no_longer_than_others(place: Place) -> None:
    at_s = timezone.now().timestamp()
    noted = Noted(sizes={}, assignments={}, routers={"r1": at_s + 1800, "r2": at_s})
    facts, noted = of_fleet(noted, Heard(reachable=True), at_s)
    assert set(facts.routers_before) == {"r1", "r2"}
    facts, noted = of_fleet(noted, Heard(reachable=True), at_s + ROUTER_KEPT_S)
    assert facts.routers_before == {}


def test_one_routers_numbers_and_a_version_too_long_keep_nobody_from_the_sweep(place: Place) -> None:
    """Neither the number that no float holds nor the version that no integer is read from; what is wrong elsewhere is found."""
    place.valkey.set("saltroute:router:odd", b'{"router_id": "odd", "at": 1%s}' % (b"0" * 400))
    place.valkey.hset("saltroute:versions", str(uuid.uuid4()), "9" * 5000)
    place.valkey.delete(f"saltroute:snap:{place.tenant.id}")
    with place.later(20):
        running.sweep()
    with place.later(40):
        ended = [one for one in running.sweep() if one.run.tenant_id == place.tenant.id]
    assert [(one.run.state, one.run.routers) for one in ended] == [("finished", 2)]
    assert [row.kind for row in place.rows() if row.kind == "snapshot_unpublished"] == ["snapshot_unpublished"]


def test_a_sweep_whose_time_is_over_goes_on_where_it_ended(place: Place, birch: Any) -> None:
    """No time at all: the first tenant waits for the next sweep, which begins with it."""
    assert running.sweep(within_s=-1.0) == []
    assert place.valkey.get(running.CURSOR) == str(place.tenant.id).encode()
    place.valkey.set(running.CURSOR, str(birch.id))
    assert [one.run.tenant_id for one in running.sweep()] == [birch.id, place.tenant.id]
    assert place.valkey.get(running.CURSOR) is None


def test_a_quiet_run_costs_the_same_however_many_replicas(place: Place, django_assert_max_num_queries: Any) -> None:
    with tenant_scope(place.tenant.id):
        pool = Pool.objects.get(id=place.pool_id)
        fresh = [Replica(tenant_id=place.tenant.id, pool=pool, name=f"n{number}", url=f"http://127.0.0.1:{10_000 + number}") for number in range(50)]
        Replica.objects.bulk_create(fresh)
    place.run()
    with django_assert_max_num_queries(75):
        place.run()
