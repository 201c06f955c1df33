"""Which replicas do not list the model that an endpoint on their pool asks for, as soon as a router says so: reconciliation is patient with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from routing import queries
from routing.models import Endpoint, Replica

MAX_ENDPOINTS = 5000
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Missing:
    """Requests of ``endpoint`` are not sent to the replica: its engine does not list ``model``."""

    endpoint: str
    model: str


def missing(tenant_id: UUID, found: queries.Routers, replicas: Iterable[Replica]) -> dict[UUID, tuple[Missing, ...]]:
    """By replica id, ``SHOWN`` of each at most; inside the tenant's scope, in one query. An engine of which no router has a list is left out, and
    what one router has seen there counts as served."""
    wanted: dict[tuple[UUID, str], list[Missing]] = {}
    rows = Endpoint.objects.filter(tenant_id=tenant_id, enabled=True).order_by("name", "id")
    for pool_id, engine, name, model in rows.values_list("grant__pool_id", "engine", "name", "served_model")[:MAX_ENDPOINTS]:
        wanted.setdefault((pool_id, engine), []).append(Missing(name, model))
    lists = _lists(found)
    answer: dict[UUID, tuple[Missing, ...]] = {}
    for replica in replicas:
        models = lists.get(replica.url)
        if models and replica.state != "paused":
            without = tuple(one for one in wanted.get((replica.pool_id, replica.engine), ()) if one.model not in models)[:SHOWN]
            answer |= {replica.id: without} if without else {}
    return answer


def _lists(found: queries.Routers) -> Mapping[str, frozenset[str]]:
    """What each engine serves, by its normalised URL: what any router saw in its list of models."""
    lists: dict[str, frozenset[str]] = {}
    for router in found.routers:
        for url, said in router.engines.items():
            models = said.get("models") if isinstance(said, dict) else None
            if isinstance(models, list):
                lists[url] = lists.get(url, frozenset()).union(one for one in models if isinstance(one, str))
    return lists
