"""The isolation state in the database: all rows of an engine together, every tenant that uses it told, the way out of quarantine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from namespaces.audit.states import Event, State
from routing.models import Endpoint, Replica
from routing.services import isolation, pools, publishing
from tenants.core.errors import Conflict, Invalid, NotFound
from tenants.models import AuditEntry, Tenant
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_pool, a_replica, an_endpoint, version

pytestmark = pytest.mark.django_db
NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
NAMESPACE = "ns-" + "0" * 32
OTHER_NAMESPACE = "ns-" + "1" * 32
OTHER_URL = "http://127.0.0.1:9002"


def states(tenant: Made) -> dict[str, str]:
    with tenant_scope(tenant.id):
        return dict(Replica.objects.filter(tenant_id=tenant.id).values_list("name", "isolation_state"))


def happen(tenant: Made, replica: Replica, event: Event, now: datetime = NOW, **more: Any) -> State:
    with tenant_scope(tenant.id):
        return isolation.apply(tenant_id=tenant.id, actor=ACTOR, replica_id=replica.id, event=event, now=now, **more)


def test_all_rows_of_one_engine_change_together(acorn: Made) -> None:
    """Two pools hold the same address; a third row is another engine."""
    with tenant_scope(acorn.id):
        first = a_replica(a_pool(acorn.id, "one"))
        a_replica(a_pool(acorn.id, "two"), "b")
        a_replica(a_pool(acorn.id, "three"), "c", "http://127.0.0.1:9002")
    assert happen(acorn, first, Event.SHARING, reason="two_salts") is State.QUARANTINED
    assert states(acorn) == {"a": "quarantined", "b": "quarantined", "c": "unverified"}


def test_owner_and_grantees_are_told_and_their_versions_rise(acorn: Made, birch: Made, platform: Made) -> None:
    """The grantee's log says the fact with the build, and neither a replica's name nor a reason; who has no grant hears nothing."""
    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        replica = a_replica(shared)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
        Replica.objects.filter(id=replica.id).update(build="b1")
    before = _versions(acorn, birch, platform)
    happen(platform, replica, Event.SHARING, reason="audit 7: two_salts")
    after = _versions(acorn, birch, platform)
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 0, 1]
    with tenant_scope(acorn.id):
        entry = AuditEntry.objects.get(tenant_id=acorn.id, action="granted_pool.isolation")
    assert (entry.object_label, entry.reason, entry.actor_label) == ("shared", "", "platform")
    assert entry.after == {"isolation": "quarantined", "build": "b1"}
    with tenant_scope(platform.id):
        own = AuditEntry.objects.get(tenant_id=platform.id, action="replica.isolation")
    assert (own.object_label, own.reason) == ("shared/a", "audit 7: two_salts")
    with tenant_scope(acorn.id):
        (pool,) = publishing.build_snapshot(acorn.id, now_s=0.0).pools
    assert [one.isolation for one in pool.replicas] == ["quarantined"]


def _versions(*tenants: Made) -> list[int]:
    found = []
    for tenant in tenants:
        with tenant_scope(tenant.id):
            found.append(version(tenant.id))
    return found


def test_what_changes_nothing_raises_no_version(acorn: Made) -> None:
    """A second clean audit renews the date and publishes nothing."""
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))
    happen(acorn, replica, Event.CLEAN)
    before = _versions(acorn)
    happen(acorn, replica, Event.CLEAN, NOW + timedelta(hours=1))
    assert _versions(acorn) == before
    with tenant_scope(acorn.id):
        assert Replica.objects.get(id=replica.id).isolation_verified_at == NOW + timedelta(hours=1)


def test_an_audit_of_a_build_that_is_gone_isolates_nobody(acorn: Made) -> None:
    """A clean one says nothing of the build that runs now; sharing quarantines all the same."""
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))
        Replica.objects.filter(id=replica.id).update(build="new")
    assert happen(acorn, replica, Event.CLEAN, build="old") is State.UNVERIFIED
    assert happen(acorn, replica, Event.CLEAN, build="new") is State.ISOLATED
    assert happen(acorn, replica, Event.SHARING, build="old") is State.QUARANTINED


def test_a_stranger_changes_nothing(acorn: Made, birch: Made) -> None:
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))
    with pytest.raises(NotFound):
        happen(birch, replica, Event.SHARING)
    assert states(acorn) == {"a": "unverified"}


def test_another_build_makes_unverified_and_another_start_frees_the_namespace(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))

    def observe(build: str, started_at: float) -> isolation.Seen:
        with tenant_scope(acorn.id):
            return isolation.observe(tenant_id=acorn.id, replica_id=replica.id, build=build, started_at=started_at, now=NOW)

    assert observe("b1", 100.0) == isolation.Seen()
    happen(acorn, replica, Event.CLEAN)
    assert observe("b1", 100.2) == isolation.Seen()
    assert observe("b1", 200.0) == isolation.Seen(generation=True)
    assert states(acorn) == {"a": "isolated"}
    assert observe("b2", 300.0) == isolation.Seen(build=True, generation=True)
    assert states(acorn) == {"a": "unverified"}
    assert observe("b2", 300.0) == isolation.Seen()
    with tenant_scope(acorn.id):
        assert isolation.assign(tenant_id=acorn.id, replica_id=replica.id, namespace=NAMESPACE, now=NOW)
    observe("b2", 400.0)
    with tenant_scope(acorn.id):
        assert Replica.objects.get(id=replica.id).dedicated_namespace is None


@pytest.mark.parametrize(
    ("mode", "state", "engine", "given"),
    [
        ("audited", "unverified", "vllm", True),
        ("audited", "suspect", "vllm", True),
        ("audited", "isolated", "vllm", False),
        ("audited", "quarantined", "vllm", False),
        ("dedicated", "isolated", "vllm", True),
        ("dedicated", "quarantined", "vllm", False),
        ("declared", "unverified", "vllm", False),
        ("declared", "unverified", "llamacpp", True),
    ],
)
def test_a_namespace_is_assigned_once_where_one_only_is_served(acorn: Made, mode: str, state: str, engine: str, given: bool) -> None:
    """The first that asked keeps it; a routers' word that is no namespace id is not taken."""
    with tenant_scope(acorn.id):
        pool = pools.create(tenant_id=acorn.id, actor=ACTOR, name="gpu", isolation=mode, platform=True)
        replica = a_replica(pool, engine=engine)
        Replica.objects.filter(id=replica.id).update(isolation_state=state)

        def assign(namespace: str) -> bool:
            return isolation.assign(tenant_id=acorn.id, replica_id=replica.id, namespace=namespace, now=NOW)

        assert not assign("acme")
        assert not assign("ns-" + "G" * 32)
        assert assign(NAMESPACE) is given
        assert not assign("ns-" + "1" * 32)
        assert Replica.objects.get(id=replica.id).dedicated_namespace == (NAMESPACE if given else None)


def test_an_engine_in_two_pools_serves_one_namespace_in_both(acorn: Made) -> None:
    """There is one cache behind both rows: what the first that asked was given holds at the other, and at a row that is added later."""
    with tenant_scope(acorn.id):
        rows = [a_replica(a_pool(acorn.id, "one")), a_replica(a_pool(acorn.id, "two"), "b"), a_replica(a_pool(acorn.id, "three"), "c", OTHER_URL)]

        def assign(replica: Replica, namespace: str) -> bool:
            return isolation.assign(tenant_id=acorn.id, replica_id=replica.id, namespace=namespace, now=NOW)

        assert assign(rows[0], NAMESPACE)
        assert not assign(rows[1], OTHER_NAMESPACE)
        later = a_replica(a_pool(acorn.id, "four"), "d")
        assert assign(later, OTHER_NAMESPACE)
        assert assign(rows[2], OTHER_NAMESPACE)
        found = dict(Replica.objects.filter(tenant_id=acorn.id).values_list("name", "dedicated_namespace"))
        assert found == {"a": NAMESPACE, "b": NAMESPACE, "c": OTHER_NAMESPACE, "d": NAMESPACE}


def test_the_way_out_of_quarantine(acorn: Made, platform: Made) -> None:
    """A restart or the owner's word; the epochs of everybody's endpoints on the pool rise; then two clean audits ten minutes apart."""
    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        replica = a_replica(shared)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
    with tenant_scope(acorn.id):
        endpoint = an_endpoint(acorn.id, pool=shared)

    def repaired(flushed: bool, reason: str = "replaced the engine") -> State:
        with tenant_scope(platform.id):
            return isolation.repaired(tenant_id=platform.id, actor=ACTOR, replica_id=replica.id, reason=reason, flushed=flushed, now=NOW)

    with pytest.raises(Conflict, match="not in quarantine"):
        repaired(True)
    happen(platform, replica, Event.SHARING)
    with pytest.raises(Conflict, match="restart"):
        repaired(False)
    with pytest.raises(Invalid):
        repaired(True, reason="")
    for minutes in (1, 20, 40):
        assert happen(platform, replica, Event.CLEAN, NOW + timedelta(minutes=minutes)) is State.QUARANTINED
    with tenant_scope(platform.id):
        isolation.observe(tenant_id=platform.id, replica_id=replica.id, build="", started_at=NOW.timestamp() + 60, now=NOW)
    assert repaired(False) is State.QUARANTINED
    with tenant_scope(acorn.id):
        assert Endpoint.objects.get(id=endpoint.id).epoch == 2
        assert AuditEntry.objects.filter(action="endpoint.rotate_epoch").count() == 1
    assert happen(platform, replica, Event.CLEAN, NOW + timedelta(minutes=1)) is State.QUARANTINED
    assert happen(platform, replica, Event.CLEAN, NOW + timedelta(minutes=10)) is State.QUARANTINED
    assert happen(platform, replica, Event.CLEAN, NOW + timedelta(minutes=11)) is State.ISOLATED
    assert Tenant.objects.count() == 0  # and no scope is left open
