"""Measures of replicas as the console shows them: of the tenant's own pools alone, since what is seen of a platform's replica is the platform's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from console.reads import traffic
from routing.models import Replica
from routing.services import measures
from routing.services.measures import ByRouter

MAX_REPLICAS = 200


@dataclass(frozen=True, slots=True)
class Measured:
    """One replica over a range; None is "nobody observed it"."""

    id: UUID
    name: str
    pool: str
    url: str
    state: str
    isolation: str
    busy_share: float | None
    kv_used: float | None
    evicted_per_s: float | None
    resident: float | None
    copies: float | None  # how often its blocks are held, itself included


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of them; ``duplication`` is over all of their resident blocks, ``left_out`` replicas are not shown."""

    rows: tuple[Measured, ...]
    duplication: float | None
    busy_share: float | None
    left_out: int


def listed(tenant_id: UUID, *, since: datetime, until: datetime) -> Fleet:
    """Replicas of own pools by pool and name, in two queries, inside the tenant's scope."""
    sums = measures.by_replica(tenant_id, since=since, until=until)
    found = Replica.objects.filter(tenant_id=tenant_id).order_by("pool__name", "name", "id")
    rows = list(found.values_list("id", "name", "pool__name", "url", "state", "isolation_state"))
    shown = tuple(_measured(row, sums.get(row[0], {})) for row in rows[:MAX_REPLICAS])
    busy = [one for row in rows if (one := measures.busy_share(sums.get(row[0], {}))) is not None]
    return Fleet(
        rows=shown,
        duplication=measures.duplication(sums.get(row[0], {}) for row in rows),
        busy_share=sum(busy) / len(busy) if busy else None,
        left_out=max(0, len(rows) - MAX_REPLICAS),
    )


def _measured(row: tuple[UUID, str, str, str, str, str], routers: ByRouter) -> Measured:
    said = measures.surest(routers)
    return Measured(
        *row,
        busy_share=measures.busy_share(routers),
        kv_used=said.kv_used,
        evicted_per_s=said.evicted_per_s,
        resident=said.resident,
        copies=said.duplication,
    )


@dataclass(frozen=True, slots=True)
class Series:
    """One replica over a range, by step."""

    since: datetime
    until: datetime
    starts: tuple[datetime, ...]
    steps: tuple[ByRouter, ...]
    whole: ByRouter


def series(tenant_id: UUID, replica_id: UUID, *, span: traffic.Range, now: datetime) -> Series:
    """In one query, inside the tenant's scope. Rows are of ten minutes after two hours and of an hour after a day, and a step is no shorter."""
    step_s = max(span.step_s, 600 if span.span > timedelta(hours=1) else 60)
    since = traffic.floor(now - span.span, max(span.grid_s, step_s))
    found = measures.of_replica(tenant_id, replica_id, since=since, until=now, step_s=step_s)
    count = int((now - since).total_seconds() // step_s) + 1
    starts = tuple(since + timedelta(seconds=index * step_s) for index in range(count))
    whole: ByRouter = {}
    for routers in found.values():
        for name, one in routers.items():
            whole[name] = whole[name].plus(one) if name in whole else one
    return Series(since=since, until=now, starts=starts, steps=tuple(found.get(start, {}) for start in starts), whole=whole)
