"""The fleet of an endpoint as far as it is known: how many replicas, how fast each was found to be, how much each can cache.

What is not known is assumed, and said. On a platform's pool only the number of replicas is the tenant's to know.
"""

from __future__ import annotations

from statistics import median
from uuid import UUID

from django.db.models.fields.json import KeyTransform

from routing import queries
from routing.core.policy import PolicyError, compile_slo
from routing.core.reconcile_facts import EngineWord
from routing.models import DecisionRow, Endpoint, Replica
from routing.services.reconciliation import reports
from routing.simulator.config import TimeModel
from routing.traces.work import MAX_REPLICAS, FleetShape
from tenants.core.errors import NotFound

LOOKED_AT = 2000  # of the endpoint's newest decisions, for learned rates
READ_S = 0.3
SLOWEST, FASTEST = 0.05, 20.0  # speeds beyond which a learned rate is no engine's
DEFAULT = FleetShape()
EXACT = "exact"


def of_endpoint(tenant_id: UUID, endpoint: Endpoint) -> tuple[FleetShape, tuple[str, ...]]:
    """The shape, and in words what of it is assumed. In the tenant's scope."""
    try:
        pool = queries.usable_pool(tenant_id, str(endpoint.grant.pool_id))
    except NotFound:
        return DEFAULT, ("The endpoint's pool is gone: a fleet of four equal replicas.",)
    if not pool.own:
        active = sum(count for state, count in pool.replicas.items() if state == "active")
        count = min(MAX_REPLICAS, active) or len(DEFAULT.speeds)
        said = "The pool is shared: replicas are taken for equal, with 1,000,000 tokens of cache each, and others' load is not in the replay."
        return FleetShape(speeds=(1.0,) * count), (said,)
    rows = list(Replica.objects.filter(tenant_id=tenant_id, pool_id=pool.id, state="active").order_by("name")[:MAX_REPLICAS])
    if not rows:
        return DEFAULT, ("The pool has no active replica: a fleet of four equal replicas.",)
    words = _words({row.url for row in rows})
    speeds, unseen = _speeds(tenant_id, endpoint, [str(row.id) for row in rows])
    sizes = [word.capacity_tokens for word in words if word.capacity_tokens]
    exact = bool(words) and all(rank.state == EXACT for word in words for rank in word.ranks) and all(word.ranks for word in words)
    assumed = []
    if unseen:
        assumed.append(f"{unseen} of {len(rows)} replicas have no learned speed yet: they are taken for as fast as the others, or as the time model.")
    if len(sizes) < len(rows):
        assumed.append("Some replicas' cache size is not known." if sizes else "No replica's cache size is known: 1,000,000 tokens each.")
    if len(set(sizes)) > 1:
        assumed.append("Cache sizes differ: each is taken for as large as the smallest.")
    tokens = max(1024, min(sizes)) if sizes else DEFAULT.cache_tokens
    return FleetShape(speeds=speeds, cache_tokens=tokens, residency="events" if exact else "history"), tuple(assumed)


def _words(urls: set[str]) -> list[EngineWord]:
    """What routers say of these engines; of each the first router's word."""
    found: dict[str, EngineWord] = {}
    for router in reports.read(READ_S).routers:
        for url, word in router.engines.items():
            if url in urls:
                found.setdefault(url, word)
    return list(found.values())


def _speeds(tenant_id: UUID, endpoint: Endpoint, replica_ids: list[str]) -> tuple[tuple[float, ...], int]:
    """A speed for each replica, from the rates that routers had learned at the newest decisions; and how many had none."""
    rate = KeyTransform("prefill_tokens_per_s", "record")
    recent = DecisionRow.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint.id).order_by("-started_at").annotate(rate=rate)
    rates: dict[str, list[float]] = {}
    for replica_id, value in recent.values_list("replica_id", "rate")[:LOOKED_AT]:
        if isinstance(value, int | float) and value > 0:
            rates.setdefault(replica_id, []).append(float(value))
    base = TimeModel().prefill_tokens_per_s
    known = {one: min(FASTEST, max(SLOWEST, median(rates[one]) / base)) for one in replica_ids if one in rates}
    usual = median(known.values()) if known else 1.0
    return tuple(round(known.get(one, usual), 3) for one in replica_ids), len(replica_ids) - len(known)


def slo_ttft_s(endpoint: Endpoint) -> float | None:
    """The target that the endpoint's scheduler steers by, or None."""
    if endpoint.slo_policy is None:
        return None
    try:
        return compile_slo(endpoint.slo_policy.spec).ttft_s
    except PolicyError:
        return None  # a damaged row; routers refuse it too
