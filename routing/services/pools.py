"""Pools and grants. A tenant owns its pools; the platform owns shared ones and grants them to named tenants. Endpoints sit on grants."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection

from routing.models import Endpoint, Pool, PoolGrant, Replica
from routing.services import slo, support
from tenants import changes, scoping
from tenants.actor import Actor, system
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import PLATFORM_SLUG, Tenant
from tenants.services import locks

ISOLATION = ("audited", "declared", "dedicated")
MAX_POOLS = 100
MAX_GRANTS = 1000
WEIGHTS = (0.01, 100.0)  # lowest and highest

_NAME_TAKEN = "There is a pool of this name already."
_VOUCH = "Only a platform operator may declare a pool isolated without audits."


def is_platform(tenant_id: UUID) -> bool:
    """Whether the scoped tenant is the one that owns platform pools."""
    return Tenant.objects.filter(id=tenant_id, slug=PLATFORM_SLUG).exists()


def grantees(pool: Pool) -> list[UUID]:
    """The tenants other than the owner that may use ``pool``, in order of id so that everybody locks them alike. Runs in the owner's scope."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id FROM saltroute_pool_grantees(%s)", [pool.id])
        found = {row[0] for row in cursor.fetchall()}
    return sorted(found - {pool.tenant_id})


def weights(pool: Pool) -> dict[UUID, float]:
    """The weight of each tenant that may use ``pool``, the owner's too. Runs in the owner's scope."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id, weight FROM saltroute_pool_grantees(%s)", [pool.id])
        return dict(cursor.fetchall())


def _weight(value: object) -> float:
    low, high = WEIGHTS
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Invalid(f"Use a number from {low} to {high:g}.", field="weight")
    return float(value)


def record(
    pool: Pool,
    *,
    actor: Actor,
    action: str,
    object_id: UUID,
    object_label: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
) -> None:
    """Record a change of ``pool`` or its replicas for its owner, and raise the version of every grantee: their snapshots hold the pool too.

    A grantee's audit log says that the pool changed and no more: who runs the platform, and what its replicas are, is not theirs to read.
    """
    changes.record(
        tenant_id=pool.tenant_id,
        actor=actor,
        action=action,
        object_id=object_id,
        object_label=object_label,
        before=before,
        after=after,
        reason=reason,
    )
    for grantee in grantees(pool):
        with scoping.tenant_scope(grantee):
            changes.record(tenant_id=grantee, actor=system("platform"), action="granted_pool.change", object_id=pool.id, object_label=pool.name)


def _isolation(value: object, *, platform: bool) -> str:
    isolation = support.one_of(value, ISOLATION, field="isolation")
    if isolation == "declared" and not platform:
        raise Forbidden(_VOUCH, field="isolation")
    return isolation


def create(*, tenant_id: UUID, actor: Actor, name: str, isolation: str = "audited", platform: bool = False) -> Pool:
    """Create a pool of ``tenant_id`` with the grant for its owner. ``platform``: the actor is a platform operator and may vouch for isolation.

    Raises:
        Invalid: a malformed name or unknown isolation mode.
        Forbidden: ``declared`` by somebody who is no platform operator.
        Conflict: the name is taken.
        LimitReached: ``MAX_POOLS``.
    """
    locks.tenant(tenant_id)
    names.label(name, field="name", maximum=100)
    mode = _isolation(isolation, platform=platform)
    support.within(Pool.objects.filter(tenant_id=tenant_id).count(), MAX_POOLS, "pools per tenant")
    with refuse_on(pool_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        pool = Pool.objects.create(tenant_id=tenant_id, name=name, isolation=mode)
    PoolGrant.objects.create(tenant_id=tenant_id, pool=pool)
    after = {"name": name, "isolation": mode}
    changes.record(tenant_id=tenant_id, actor=actor, action="pool.create", object_id=pool.id, object_label=name, after=after)
    return pool


def update(*, tenant_id: UUID, actor: Actor, pool_id: UUID, name: str | None = None, isolation: str | None = None, platform: bool = False) -> Pool:
    """Rename a pool or change its isolation mode; what is None stays.

    Raises:
        NotFound: no such pool of this tenant.
        Invalid, Forbidden, Conflict: as :func:`create`.
    """
    locks.tenant(tenant_id)
    pool = support.locked(Pool, tenant_id=tenant_id, row_id=pool_id)
    wanted: dict[str, Any] = {}
    if name is not None:
        wanted["name"] = names.label(name, field="name", maximum=100)
        if name != pool.name and (endpoint := slo.spilling_to(tenant_id, pool_id=pool.id)) is not None:
            raise Conflict(f"The endpoint {endpoint.name} spills to this pool by its name.", field="name")
    if isolation is not None and isolation != pool.isolation:
        wanted["isolation"] = _isolation(isolation, platform=platform)
    with refuse_on(pool_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        before, after = support.apply_changes(pool, wanted)
    if after:
        record(pool, actor=actor, action="pool.update", object_id=pool.id, object_label=pool.name, before=before, after=after)
    return pool


def delete(*, tenant_id: UUID, actor: Actor, pool_id: UUID) -> None:
    """Delete a pool with its replicas and the owner's grant.

    Raises:
        NotFound: no such pool of this tenant.
        Conflict: an endpoint of the owner sits on it, or it is granted to others.
    """
    locks.tenant(tenant_id)
    pool = support.locked(Pool, tenant_id=tenant_id, row_id=pool_id)
    endpoint = Endpoint.objects.filter(tenant_id=tenant_id, grant__pool_id=pool_id).first()
    if endpoint is not None:
        raise Conflict(f"The endpoint {endpoint.name} sits on this pool.")
    endpoint = slo.spilling_to(tenant_id, pool_id=pool_id)
    if endpoint is not None:
        raise Conflict(f"The endpoint {endpoint.name} spills to this pool.")
    for grantee in grantees(pool):
        _release_if_deleted(pool, grantee)
    Replica.objects.filter(tenant_id=tenant_id, pool=pool).delete()
    PoolGrant.objects.filter(tenant_id=tenant_id, pool=pool).delete()
    name, isolation = pool.name, pool.isolation
    pool.delete()
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="pool.delete",
        object_id=pool_id,
        object_label=name,
        before={"name": name, "isolation": isolation},
    )


def _release_if_deleted(pool: Pool, grantee: UUID) -> None:
    """Free ``pool`` from a tenant that is deleted; its rows stay for a while, and must not hold the pool.

    Raises:
        Conflict: the tenant lives.
    """
    with scoping.tenant_scope(grantee):
        if Tenant.objects.filter(id=grantee, deleted_at=None).exists():
            raise Conflict("This pool is granted to other tenants; take the grants back first.")
        Endpoint.objects.filter(tenant_id=grantee, grant__pool_id=pool.id).delete()
        PoolGrant.objects.filter(tenant_id=grantee, pool_id=pool.id).delete()


def grant(*, tenant_id: UUID, actor: Actor, pool_id: UUID, grantee_id: UUID, weight: float | None = None) -> PoolGrant:
    """Let ``grantee_id`` use a platform pool; raises the grantee's version. Safe to repeat. ``tenant_id`` is the platform's tenant.

    ``weight`` is the tenant's part of turns and of the queue while several wait; None leaves it, 1 for a new grant.

    Raises:
        NotFound: no such pool of this tenant.
        Forbidden: the tenant is not the platform: only platform pools are shared.
        Invalid: no such tenant, or it is deleted, or the weight is out of range.
        LimitReached: ``MAX_GRANTS``.
    """
    locks.tenant(tenant_id)
    pool = support.locked(Pool, tenant_id=tenant_id, row_id=pool_id)
    if not is_platform(tenant_id):
        raise Forbidden("Only pools of the platform can be granted to other tenants.")
    support.within(len(grantees(pool)), MAX_GRANTS, "grants per pool")
    wanted = 1.0 if weight is None else _weight(weight)
    with scoping.tenant_scope(grantee_id):
        grantee = Tenant.objects.filter(id=grantee_id, deleted_at=None).first()
        if grantee is None:
            raise Invalid("There is no such tenant.", field="tenant")
        row, created = PoolGrant.objects.get_or_create(tenant_id=grantee_id, pool=pool, defaults={"weight": wanted})
        before, after = ({}, {}) if created else support.apply_changes(row, {} if weight is None else {"weight": wanted})
        if created:
            changes.record(tenant_id=grantee_id, actor=system("platform"), action="pool_grant.create", object_id=pool.id, object_label=pool.name)
        elif after:
            changes.record(tenant_id=grantee_id, actor=system("platform"), action="granted_pool.change", object_id=pool.id, object_label=pool.name)
    if created or after:
        action = "pool_grant.create" if created else "pool_grant.update"
        held = {"tenant": grantee.slug, "weight": row.weight}
        earlier = {"tenant": grantee.slug, **before} if before else None
        changes.record(tenant_id=tenant_id, actor=actor, action=action, object_id=pool.id, object_label=pool.name, before=earlier, after=held)
    return row


def withdraw(*, tenant_id: UUID, actor: Actor, pool_id: UUID, grantee_id: UUID) -> None:
    """Take a grant back; raises the grantee's version. ``tenant_id`` is the pool's owner.

    Raises:
        NotFound: no such pool of this tenant, or no such grant.
        Conflict: an endpoint of the grantee sits on it, or it is the owner's own grant.
    """
    locks.tenant(tenant_id)
    pool = support.locked(Pool, tenant_id=tenant_id, row_id=pool_id)
    if grantee_id == tenant_id:
        raise Conflict("The owner's own grant goes with the pool.")
    if grantee_id not in grantees(pool):
        raise NotFound
    with scoping.tenant_scope(grantee_id):
        row = PoolGrant.objects.select_for_update().get(tenant_id=grantee_id, pool_id=pool.id)
        endpoint = Endpoint.objects.filter(tenant_id=grantee_id, grant=row).first()
        if endpoint is not None:
            raise Conflict(f"The endpoint {endpoint.name} of that tenant sits on this pool.")
        endpoint = slo.spilling_to(grantee_id, pool_id=pool.id)
        if endpoint is not None:
            raise Conflict(f"The endpoint {endpoint.name} of that tenant spills to this pool.")
        row.delete()
        changes.record(tenant_id=grantee_id, actor=system("platform"), action="pool_grant.delete", object_id=pool.id, object_label=pool.name)
        slug = Tenant.objects.values_list("slug", flat=True).get(id=grantee_id)
    changes.record(tenant_id=tenant_id, actor=actor, action="pool_grant.delete", object_id=pool.id, object_label=pool.name, before={"tenant": slug})
