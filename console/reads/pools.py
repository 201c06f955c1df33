"""Pools a tenant may use: its own with every replica; of granted ones no names, addresses or load, which are the platform's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from routing import queries
from routing.models import Replica

MAX_REPLICAS = 2000


@dataclass(frozen=True, slots=True)
class PoolCard:
    """One pool; ``replicas`` is empty unless the pool is the tenant's own."""

    pool: queries.UsablePool
    replicas: tuple[Replica, ...]

    @property
    def size(self) -> int:
        return sum(self.pool.replicas.values())


def listed(tenant_id: UUID) -> tuple[PoolCard, ...]:
    """Own pools first, then granted ones, by name, inside the tenant scope; a fixed number of queries."""
    replicas: dict[UUID, list[Replica]] = defaultdict(list)
    for replica in queries.replicas(tenant_id).defer("credential").order_by("name", "id")[:MAX_REPLICAS]:
        replicas[replica.pool_id].append(replica)
    return tuple(PoolCard(pool=pool, replicas=tuple(replicas.get(pool.id, ())) if pool.own else ()) for pool in queries.usable_pools(tenant_id))


def names(tenant_id: UUID) -> dict[UUID, str]:
    """Pool names by the grant an endpoint sits on."""
    return {pool.grant_id: pool.name for pool in queries.usable_pools(tenant_id)}
