"""Pools and grants."""

from __future__ import annotations

import pytest

from routing import queries
from routing.models import Pool, PoolGrant, Replica
from routing.services import pools
from tenants.actor import Actor
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound
from tenants.models import AuditEntry
from tenants.scoping import ScopeError, tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_pool, a_replica, actions, an_endpoint, version


def test_a_pool_comes_with_its_owners_grant(acorn: Made) -> None:
    """Endpoints sit on grants, so the owner needs one too."""
    with tenant_scope(acorn.id):
        before = version(acorn.id)
        pool = a_pool(acorn.id)
        assert PoolGrant.objects.get(tenant_id=acorn.id).pool_id == pool.id
        assert version(acorn.id) == before + 1
        assert actions(acorn.id) == ["pool.create"]


def test_a_name_is_taken_once_per_tenant(acorn: Made, birch: Made) -> None:
    """Another tenant's pool of the same name is no hindrance, and no news."""
    with tenant_scope(acorn.id):
        a_pool(acorn.id)
        with pytest.raises(Conflict) as refused:
            a_pool(acorn.id)
        assert refused.value.field == "name"
    with tenant_scope(birch.id):
        a_pool(birch.id)


@pytest.mark.parametrize("name", ["", " gpu", "x" * 101, "a\nb", 7])
def test_a_malformed_name_is_refused(acorn: Made, name: object) -> None:
    with tenant_scope(acorn.id), pytest.raises(Invalid) as refused:
        pools.create(tenant_id=acorn.id, actor=ACTOR, name=name)  # type: ignore[arg-type]  # what a caller may send
    assert refused.value.field == "name"


def test_without_a_scope_it_is_our_mistake(acorn: Made) -> None:
    with pytest.raises(ScopeError):
        pools.create(tenant_id=acorn.id, actor=ACTOR, name="gpu")


def test_only_a_platform_operator_vouches_for_isolation(acorn: Made) -> None:
    """``declared`` skips audits, so a tenant's own admin may not choose it, neither at first nor later."""
    with tenant_scope(acorn.id):
        with pytest.raises(Forbidden) as refused:
            pools.create(tenant_id=acorn.id, actor=ACTOR, name="gpu", isolation="declared")
        assert refused.value.field == "isolation"
        pool = a_pool(acorn.id)
        with pytest.raises(Forbidden):
            pools.update(tenant_id=acorn.id, actor=ACTOR, pool_id=pool.id, isolation="declared")
        assert pools.update(tenant_id=acorn.id, actor=ACTOR, pool_id=pool.id, isolation="declared", platform=True).isolation == "declared"
        # what an operator declared stays when the tenant renames the pool and says the mode again
        assert pools.update(tenant_id=acorn.id, actor=ACTOR, pool_id=pool.id, name="gpus", isolation="declared").name == "gpus"


def test_the_number_of_pools_is_limited(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MAX_POOLS", 1)
    with tenant_scope(acorn.id):
        a_pool(acorn.id)
        with pytest.raises(LimitReached, match="at most 1 pools per tenant"):
            a_pool(acorn.id, "other")


def test_an_update_that_changes_nothing_raises_no_version(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        pool = a_pool(acorn.id)
        before = version(acorn.id)
        pools.update(tenant_id=acorn.id, actor=ACTOR, pool_id=pool.id, name="gpu", isolation="audited")
        assert version(acorn.id) == before


def test_a_strangers_pool_is_absent(acorn: Made, birch: Made) -> None:
    """Update, delete, grant and withdraw give one answer for absent and not-yours."""
    with tenant_scope(acorn.id):
        pool = a_pool(acorn.id)
    with tenant_scope(birch.id):
        for call in (
            lambda: pools.update(tenant_id=birch.id, actor=ACTOR, pool_id=pool.id, name="mine"),
            lambda: pools.delete(tenant_id=birch.id, actor=ACTOR, pool_id=pool.id),
            lambda: pools.grant(tenant_id=birch.id, actor=ACTOR, pool_id=pool.id, grantee_id=birch.id),
            lambda: pools.withdraw(tenant_id=birch.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id),
        ):
            with pytest.raises(NotFound):
                call()
    with tenant_scope(acorn.id):
        assert Pool.objects.get().name == "gpu"


def test_a_grant_raises_the_grantees_version_once(acorn: Made, platform: Made) -> None:
    """Its snapshot now holds the pool; repeating the grant changes nothing."""
    with tenant_scope(acorn.id):
        before = version(acorn.id)
    with tenant_scope(platform.id):
        pool = a_pool(platform.id, "shared")
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id)
        assert actions(platform.id) == ["pool.create", "pool_grant.create"]
    with tenant_scope(acorn.id):
        assert version(acorn.id) == before + 1
        assert [(pool.name, pool.own) for pool in queries.usable_pools(acorn.id)] == [("shared", False)]


def test_a_grantee_does_not_learn_who_runs_the_platform(acorn: Made, platform: Made) -> None:
    """The grantee's audit log names the platform, not the person; and no replica."""
    person = Actor(kind="user", label="root@platform.example", peer_address="192.0.2.7")
    with tenant_scope(platform.id):
        pool = a_pool(platform.id, "shared")
        pools.grant(tenant_id=platform.id, actor=person, pool_id=pool.id, grantee_id=acorn.id)
        a_replica(pool, name="secret-name")
    with tenant_scope(acorn.id):
        seen = list(AuditEntry.objects.filter(tenant_id=acorn.id).values_list("actor_label", "peer_address", "object_label", "before", "after"))
        assert seen == [("platform", "", "shared", None, None)] * 2


def test_only_the_platforms_pools_are_granted(acorn: Made, birch: Made) -> None:
    with tenant_scope(acorn.id):
        pool = a_pool(acorn.id)
        with pytest.raises(Forbidden):
            pools.grant(tenant_id=acorn.id, actor=ACTOR, pool_id=pool.id, grantee_id=birch.id)
    with tenant_scope(birch.id):
        assert queries.usable_pools(birch.id) == []


def test_a_change_of_a_platform_pool_raises_every_grantee(acorn: Made, birch: Made, platform: Made) -> None:
    with tenant_scope(platform.id):
        pool = a_pool(platform.id, "shared")
        for grantee in (acorn, birch):
            pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=grantee.id)
    before = {}
    for grantee in (acorn, birch):
        with tenant_scope(grantee.id):
            before[grantee.id] = version(grantee.id)
    with tenant_scope(platform.id):
        a_replica(pool)
        pools.update(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, isolation="dedicated")
    for grantee in (acorn, birch):
        with tenant_scope(grantee.id):
            assert version(grantee.id) == before[grantee.id] + 2


def test_a_grant_in_use_is_not_withdrawn(acorn: Made, platform: Made) -> None:
    with tenant_scope(platform.id):
        pool = a_pool(platform.id, "shared")
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id)
    with tenant_scope(acorn.id):
        endpoint = an_endpoint(acorn.id, pool=pool)
    with tenant_scope(platform.id):
        with pytest.raises(Conflict):
            pools.withdraw(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id)
        with pytest.raises(Conflict):
            pools.delete(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id)
    with tenant_scope(acorn.id):
        endpoint.delete()
        before = version(acorn.id)
    with tenant_scope(platform.id):
        pools.withdraw(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id)
        with pytest.raises(NotFound):
            pools.withdraw(tenant_id=platform.id, actor=ACTOR, pool_id=pool.id, grantee_id=acorn.id)
    with tenant_scope(acorn.id):
        assert queries.usable_pools(acorn.id) == []
        assert version(acorn.id) == before + 1


def test_deleting_a_pool_takes_its_replicas_along(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        pool = a_pool(acorn.id)
        a_replica(pool)
        pools.delete(tenant_id=acorn.id, actor=ACTOR, pool_id=pool.id)
        assert Replica.objects.count() == PoolGrant.objects.count() == Pool.objects.count() == 0


def test_a_pool_under_an_endpoint_stays(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        endpoint = an_endpoint(acorn.id)
        with pytest.raises(Conflict, match="chat"):
            pools.delete(tenant_id=acorn.id, actor=ACTOR, pool_id=endpoint.grant.pool_id)
