"""What an audit is about: one replica, tried through one endpoint of a tenant that uses it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from routing import queries
from routing.models import Adapter, Endpoint
from tenants.core.errors import Invalid, NotFound
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Target:
    """``replica_name`` is empty where the pool is the platform's: its replicas are not the tenant's to name."""

    tenant_id: UUID
    endpoint_id: UUID
    endpoint_name: str
    engine: str
    epochs: str
    pool_id: UUID
    pool_name: str
    owner_id: UUID
    replica_id: UUID
    replica_name: str
    adapters: tuple[str, ...] = ()


def of_endpoint(tenant_id: UUID, endpoint: Endpoint) -> list[Target]:
    """Every replica of the endpoint's pool that is in service. In the tenant's scope; one query for the pool, one for its replicas."""
    pool = queries.usable_pool(tenant_id, str(endpoint.grant.pool_id))
    epoch = Tenant.objects.values_list("epoch", flat=True).get(id=tenant_id)
    adapters = tuple(Adapter.objects.filter(tenant_id=tenant_id, model_id=endpoint.model_id).order_by("name").values_list("name", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT replica_id, name, engine FROM saltroute_granted_replicas(%s) WHERE pool_id = %s AND state <> 'paused'", [tenant_id, pool.id]
        )
        rows = cursor.fetchall()
    return [
        Target(
            tenant_id=tenant_id,
            endpoint_id=endpoint.id,
            endpoint_name=endpoint.name,
            engine=engine,
            epochs=f"{epoch}.{endpoint.epoch}",
            pool_id=pool.id,
            pool_name=pool.name,
            owner_id=pool.owner_tenant_id,
            replica_id=replica_id,
            replica_name=name if pool.own else "",
            adapters=adapters,
        )
        for replica_id, name, engine in rows
        if engine == endpoint.engine
    ]


def chosen(tenant_id: UUID, endpoint: Endpoint, replica: str | None) -> list[Target]:
    """The targets of an order: all replicas of the endpoint's pool, or the one named by id or, in an own pool, by name.

    Raises:
        Invalid: there is no such replica in the pool, or none at all.
    """
    found = of_endpoint(tenant_id, endpoint)
    if replica is not None:
        wanted = replica.strip("/").rpartition("/")[2]
        found = [one for one in found if wanted == str(one.replica_id) or (one.replica_name and wanted == one.replica_name)]
    if not found:
        raise Invalid("The endpoint's pool has no such replica in service.", field="replica" if replica is not None else "endpoint")
    return found


def again(tenant_id: UUID, endpoint_id: UUID, replica_id: UUID) -> Target:
    """The target of an order made earlier, as it is now.

    Raises:
        NotFound: endpoint or replica is gone.
    """
    endpoint = queries.endpoints(tenant_id).filter(id=endpoint_id).first()
    if endpoint is None:
        raise NotFound
    found = next((one for one in of_endpoint(tenant_id, endpoint) if one.replica_id == replica_id), None)
    if found is None:
        raise NotFound
    return found
