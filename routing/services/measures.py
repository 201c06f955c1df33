"""What routers saw of replicas, added up over a range: for the owner of their pool, whose rows these are. Out of rollups alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

from django.db import connection

from routing.core.replica_state import Sums, utilisation
from tenants.scoping import require_scope

_SUMS = ", ".join(f"coalesce(sum({name}), 0)::bigint" for name in Sums._fields)
ByRouter = dict[str, Sums]


def by_replica(tenant_id: UUID, *, since: datetime, until: datetime) -> dict[UUID, ByRouter]:
    """Sums of each replica by router, of rows that begin in ``[since, until)``. In the tenant's scope."""
    require_scope(tenant_id)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT replica_id, router_id, {_SUMS} FROM routing_replicastaterow"  # noqa: S608 - names of ours
            " WHERE tenant_id = %s AND start_at >= %s AND start_at < %s GROUP BY replica_id, router_id",
            [tenant_id, since, until],
        )
        found: dict[UUID, ByRouter] = {}
        for replica_id, router_id, *sums in cursor.fetchall():
            found.setdefault(replica_id, {})[router_id] = Sums(*sums)
    return found


def of_replica(tenant_id: UUID, replica_id: UUID, *, since: datetime, until: datetime, step_s: int) -> dict[datetime, ByRouter]:
    """Sums of one replica by step and router; a row belongs to the step in which it begins, and steps are whole multiples of ``step_s`` seconds."""
    require_scope(tenant_id)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT floor(extract(epoch FROM start_at) / %s)::bigint AS step, router_id, {_SUMS} FROM routing_replicastaterow"  # noqa: S608 - as above
            " WHERE tenant_id = %s AND replica_id = %s AND start_at >= %s AND start_at < %s GROUP BY step, router_id",
            [step_s, tenant_id, replica_id, since, until],
        )
        found: dict[datetime, ByRouter] = {}
        for step, router_id, *sums in cursor.fetchall():
            found.setdefault(datetime.fromtimestamp(step * step_s, tz=UTC), {})[router_id] = Sums(*sums)
    return found


def busy_share(routers: ByRouter) -> float | None:
    """The share of time with work of any router; see :func:`routing.core.replica_state.utilisation`."""
    return utilisation(routers.values())


def surest(routers: ByRouter) -> Sums:
    """Of what an engine says of itself all routers say alike: the word of the one that followed its events for longest, else observed it longest."""
    return max(routers.values(), key=lambda one: (one.event_us, one.observed_us), default=Sums())


def duplication(replicas: Iterable[ByRouter]) -> float | None:
    """How often a resident block is held over all these replicas: mean resident blocks over mean distinct ones."""
    resident = distinct = 0.0
    for routers in replicas:
        one = surest(routers)
        if one.block_samples:
            resident += one.resident_blocks / one.block_samples
            distinct += one.distinct_blocks / one.block_samples
    return resident / distinct if distinct else None
