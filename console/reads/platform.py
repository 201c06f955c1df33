"""What a platform operator sees from outside the tenants: names and states, the platform's own pools and engines, the routers. No tenant's content:
no keys, endpoints, prompts, decisions, usage or members."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from routing import queries
from routing.models import Replica
from routing.services import pools
from tenants.models import PLATFORM_SLUG
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope

MAX_TENANTS = 200  # on one page
STATES = ("isolated", "unverified", "suspect", "quarantined")


@dataclass(frozen=True, slots=True)
class SharedPool:
    """A pool of the platform's: its engines, and who may use it with which weight."""

    id: UUID
    name: str
    isolation: str
    replicas: tuple[Replica, ...]
    grants: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Walls:
    """How many engines of one tenant's own pools are in each isolation state."""

    slug: str
    states: dict[str, int] = field(default_factory=dict)

    @property
    def counted(self) -> list[tuple[str, int]]:
        """In the order of :data:`STATES`."""
        return [(state, self.states.get(state, 0)) for state in STATES]


def shared_pools() -> list[SharedPool]:
    """The platform's pools by name; empty before there is a platform tenant."""
    platform = tenant_id_of(PLATFORM_SLUG)
    if platform is None:
        return []
    slugs = {ref.tenant_id: ref.slug for ref in all_tenants()}
    with tenant_scope(platform):
        engines: dict[UUID, list[Replica]] = {}
        for replica in queries.replicas(platform).defer("credential").order_by("name", "id"):
            engines.setdefault(replica.pool_id, []).append(replica)
        return [
            SharedPool(pool.id, pool.name, pool.isolation, tuple(engines.get(pool.id, ())), _grants(pools.weights(pool), slugs))
            for pool in queries.own_pools(platform).order_by("name")
        ]


def _grants(weights: dict[UUID, float], slugs: dict[UUID, str]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((slugs[tenant_id], weight) for tenant_id, weight in weights.items() if slugs.get(tenant_id, PLATFORM_SLUG) != PLATFORM_SLUG))


def walls(after: str) -> tuple[list[Walls], str]:
    """Isolation states over the installation, by tenant from the slug ``after`` on, and where the next page begins."""
    refs = [ref for ref in all_tenants() if ref.slug > after]
    found = []
    for ref in refs[:MAX_TENANTS]:
        with tenant_scope(ref.tenant_id):
            states = Counter(queries.replicas(ref.tenant_id).values_list("isolation_state", flat=True))
        found.append(Walls(ref.slug, dict(states)))
    return found, refs[MAX_TENANTS - 1].slug if len(refs) > MAX_TENANTS else ""


def routers() -> queries.Routers:
    """Every router's report, as far as it is of no tenant."""
    platform = tenant_id_of(PLATFORM_SLUG)
    return queries.routers(platform or UUID(int=0), 0)
