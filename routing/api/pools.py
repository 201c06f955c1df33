"""Pools, their grants and their replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import pool_shapes, rows, shapes
from routing.queries import UsablePool
from routing.services import pools, replicas
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import given
from tenants.core.errors import Invalid, NotFound, referred
from tenants.core.roles import Permission
from tenants.queries import all_tenants, tenant_id_of

_POOL = OpenApiParameter("pool", str, description="Only replicas of this own pool, by id or name.")


class PoolView(TenantView):
    """Base of what is done with pools."""

    def shown(self, pool_id: Any) -> pool_shapes.PoolOut:
        """An own pool as answered."""
        return rows.pool(queries.usable_pool(self.tenant_id, str(pool_id)))


class PoolCollection(PoolView):
    """Pools that the tenant may put endpoints on."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    @describe("pools_list", "List pools", answers=page_of(pool_shapes.PoolOut), parameters=PAGING, tag="pools")
    def get(self, request: Request) -> Response:
        """Own pools first, then the platform's that are granted, each by name."""
        found, following = _slice(request, queries.usable_pools(self.tenant_id))
        return self.answer({"results": [rows.pool(one) for one in found], "next": following})

    @describe("pools_create", "Create a pool", body=pool_shapes.PoolNew, answers=changed(pool_shapes.PoolOut), status=201, tag="pools")
    def post(self, request: Request) -> Response:
        """Of the tenant's own; in the platform's tenant a platform pool, to be granted."""
        wanted = parse(request, pool_shapes.PoolNew)
        row = pools.create(
            tenant_id=self.tenant_id,
            actor=self.actor,
            name=wanted.name,
            isolation=wanted.isolation,
            platform=self.may(Permission.PLATFORM),
        )
        return self.changed(self.shown(row.id), status=201)


class PoolItem(PoolView):
    """One pool."""

    permissions = {"GET": Permission.READ, "PATCH": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}

    @describe("pools_read", "Read a pool", answers=pool_shapes.PoolOut, tag="pools")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id or name; of one name the tenant's own wins."""
        return self.answer(rows.pool(queries.usable_pool(self.tenant_id, reference)))

    @describe("pools_change", "Change a pool", body=pool_shapes.PoolChange, answers=changed(pool_shapes.PoolOut), tag="pools")
    def patch(self, request: Request, reference: str) -> Response:
        """Its name and isolation mode. Only an own pool."""
        fields = given(parse(request, pool_shapes.PoolChange))
        pool_id = queries.own_pool(self.tenant_id, reference).id
        pools.update(tenant_id=self.tenant_id, actor=self.actor, pool_id=pool_id, platform=self.may(Permission.PLATFORM), **fields)
        return self.changed(self.shown(pool_id))

    @describe("pools_delete", "Delete a pool", answers=changed(pool_shapes.PoolOut), tag="pools")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With its replicas. Refused while an endpoint sits on it or it is granted."""
        pool_id = queries.own_pool(self.tenant_id, reference).id
        shown = self.shown(pool_id)
        pools.delete(tenant_id=self.tenant_id, actor=self.actor, pool_id=pool_id)
        return self.changed(shown)


class GrantCollection(TenantView):
    """The tenants that may use a platform pool."""

    permissions = {"GET": Permission.PLATFORM, "POST": Permission.PLATFORM}

    @describe("grants_list", "List a pool's grants", answers=page_of(pool_shapes.GrantOut), tag="pools")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By slug, all at once: there are at most a thousand."""
        pool = queries.own_pool(self.tenant_id, reference)
        slugs = {ref.tenant_id: ref.slug for ref in all_tenants()}
        weights = pools.weights(pool)
        found = [pool_shapes.GrantOut(tenant_id=one, tenant=slugs[one], weight=weights[one]) for one in pools.grantees(pool) if one in slugs]
        return self.answer({"results": sorted(found, key=lambda one: one.tenant), "next": None})

    @describe("grants_create", "Grant a platform pool", body=pool_shapes.GrantNew, answers=changed(pool_shapes.GrantOut), status=201, tag="pools")
    def post(self, request: Request, reference: str) -> Response:
        """The tenant's routers hold the pool from its next snapshot on. Safe to repeat; another weight changes the grant."""
        wanted = parse(request, pool_shapes.GrantNew)
        slug = wanted.tenant
        pool_id = queries.own_pool(self.tenant_id, reference).id
        grantee = tenant_id_of(slug)
        if grantee is None:
            raise Invalid("There is no such tenant.", field="tenant")
        row = pools.grant(tenant_id=self.tenant_id, actor=self.actor, pool_id=pool_id, grantee_id=grantee, weight=wanted.weight)
        return self.changed(pool_shapes.GrantOut(tenant_id=grantee, tenant=slug, weight=row.weight), status=201)


class GrantItem(TenantView):
    """One grant, by the tenant's slug."""

    permissions = {"DELETE": Permission.PLATFORM}

    @describe("grants_delete", "Take a grant back", answers=changed(pool_shapes.GrantOut), tag="pools")
    def delete(self, request: Request, reference: str, slug: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Refused while an endpoint of that tenant sits on the pool."""
        pool_id = queries.own_pool(self.tenant_id, reference).id
        grantee = tenant_id_of(slug)
        if grantee is None:
            raise NotFound
        weight = pools.weights(queries.own_pool(self.tenant_id, reference)).get(grantee, 1.0)
        pools.withdraw(tenant_id=self.tenant_id, actor=self.actor, pool_id=pool_id, grantee_id=grantee)
        return self.changed(pool_shapes.GrantOut(tenant_id=grantee, tenant=slug, weight=weight))


def _fields(body: Body) -> dict[str, Any]:
    """What a body gives for a replica, as the service takes it."""
    fields = given(body)
    if isinstance(fields.get("kv_events"), msgspec.Struct):
        fields["kv_events"] = msgspec.to_builtins(fields["kv_events"])
    return fields


class ReplicaView(TenantView):
    """Base of what is done with replicas."""

    def heard(self) -> queries.Routers:
        """The routers' reports: whether they reach an engine is theirs to say."""
        return queries.routers(self.tenant_id, self.tenant.config_version)


class ReplicaCollection(ReplicaView):
    """Engines of the tenant's own pools."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    @describe("replicas_list", "List replicas", answers=page_of(pool_shapes.ReplicaOut), parameters=(*PAGING, _POOL), tag="pools")
    def get(self, request: Request) -> Response:
        """By name. Replicas of granted pools are the platform's and are not shown."""
        found = queries.replicas(self.tenant_id)
        pool = request.query_params.get("pool")
        if pool is not None:
            with referred("pool"):
                found = found.filter(pool=queries.own_pool(self.tenant_id, pool))
        heard = self.heard()
        return self.answer(page(request, found, by="name").render(lambda row: rows.replica(row, heard)))

    @describe("replicas_create", "Register a replica", body=pool_shapes.ReplicaNew, answers=changed(pool_shapes.ReplicaOut), status=201, tag="pools")
    def post(self, request: Request) -> Response:
        """Its address is checked here, and by the router at every connect."""
        fields = _fields(parse(request, pool_shapes.ReplicaNew))
        with referred("pool"):
            pool_id = queries.own_pool(self.tenant_id, fields.pop("pool")).id
        row = replicas.create(tenant_id=self.tenant_id, actor=self.actor, pool_id=pool_id, **fields)
        return self.changed(rows.replica(row, self.heard()), status=201)


class ReplicaItem(ReplicaView):
    """One replica, by id, ``pool/name``, or name where only one pool has it."""

    permissions = {"GET": Permission.READ, "PATCH": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}

    @describe("replicas_read", "Read a replica", answers=pool_shapes.ReplicaOut, tag="pools")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Without its credential, which nobody here can open."""
        return self.answer(rows.replica(queries.replica(self.tenant_id, reference), self.heard()))

    @describe("replicas_change", "Change a replica", body=pool_shapes.ReplicaChange, answers=changed(pool_shapes.ReplicaOut), tag="pools")
    def patch(self, request: Request, reference: str) -> Response:
        """Another address needs a word on the credential: it does not follow by itself."""
        fields = _fields(parse(request, pool_shapes.ReplicaChange))
        replica_id = queries.replica(self.tenant_id, reference).id
        row = replicas.update(tenant_id=self.tenant_id, actor=self.actor, replica_id=replica_id, **fields)
        return self.changed(rows.replica(row, self.heard()))

    @describe("replicas_delete", "Remove a replica", answers=changed(pool_shapes.ReplicaOut), tag="pools")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Routers let its running requests finish."""
        row = queries.replica(self.tenant_id, reference)
        shown = rows.replica(row, self.heard())
        replicas.delete(tenant_id=self.tenant_id, actor=self.actor, replica_id=row.id)
        return self.changed(shown)


class ReplicaState(ReplicaView):
    """Base of the three verbs of a replica."""

    permissions = {"POST": Permission.OPERATE}
    state = "active"

    def set_state(self, request: Request, reference: str) -> Response:
        """Set it; safe to repeat."""
        reason = parse(request, shapes.ReasonMaybe).reason
        replica_id = queries.replica(self.tenant_id, reference).id
        row = replicas.set_state(tenant_id=self.tenant_id, actor=self.actor, replica_id=replica_id, state=self.state, reason=reason)
        return self.changed(rows.replica(row, self.heard()))


class ReplicaDrain(ReplicaState):
    """No new requests."""

    permissions = {"POST": Permission.OPERATE}
    state = "draining"

    @describe("replicas_drain", "Drain a replica", body=shapes.ReasonMaybe, answers=changed(pool_shapes.ReplicaOut), tag="pools")
    def post(self, request: Request, reference: str) -> Response:
        """Running requests finish, new ones go elsewhere."""
        return self.set_state(request, reference)


class ReplicaPause(ReplicaState):
    """Out of service."""

    permissions = {"POST": Permission.OPERATE}
    state = "paused"

    @describe("replicas_pause", "Pause a replica", body=shapes.ReasonMaybe, answers=changed(pool_shapes.ReplicaOut), tag="pools")
    def post(self, request: Request, reference: str) -> Response:
        """As drained, and routers do not ask after its health."""
        return self.set_state(request, reference)


class ReplicaResume(ReplicaState):
    """Back in service."""

    permissions = {"POST": Permission.OPERATE}

    @describe("replicas_resume", "Resume a replica", body=shapes.ReasonMaybe, answers=changed(pool_shapes.ReplicaOut), tag="pools")
    def post(self, request: Request, reference: str) -> Response:
        """It takes requests again."""
        return self.set_state(request, reference)


def _slice(request: Request, found: Sequence[UsablePool]) -> tuple[Sequence[UsablePool], str | None]:
    """A page of a short list that is in memory; the cursor is the id of the last row."""
    raw = request.query_params.get("limit", "50")
    if not raw.isascii() or not raw.isdigit() or not 1 <= int(raw[:9]) <= 200:
        raise Invalid("Use a whole number from 1 to 200.", field="limit")
    start, cursor = 0, request.query_params.get("cursor")
    if cursor:
        ids = [str(one.id) for one in found]
        if cursor not in ids:
            raise Invalid("This is not a cursor of this list.", field="cursor")
        start = ids.index(cursor) + 1
    end = start + int(raw)
    return found[start:end], str(found[end - 1].id) if end < len(found) else None
