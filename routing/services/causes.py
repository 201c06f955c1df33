"""What requests' time went into, summed over decisions: for each endpoint, scope or hour.

Read are the newest ``MAX_ROWS`` decisions of the period, causes alone and never whole records; ``complete`` says whether there were no more. Sums are
exact over what was read. Decisions on a platform's pool are folded as a single one is (:mod:`routing.services.disclosure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from django.utils import timezone

from routing import queries
from routing.core.cause import ESTIMATED, OF_THE_REPLICA, PARTS, folded
from tenants.core.errors import Invalid

By = Literal["endpoint", "scope", "hour"]
MAX_ROWS = 5_000
MAX_PERIOD = timedelta(days=7)


class PartSum(msgspec.Struct, frozen=True, kw_only=True):
    """One part over all decisions of a group; ``main_of`` of them are mostly due to it."""

    part: str
    seconds: float
    estimated: bool
    main_of: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions of one endpoint or scope (``of`` is its id; null: none), or of one hour (``of`` is its begin)."""

    of: str | None
    decisions: int
    seconds: float
    parts: list[PartSum]
    missed_tokens: dict[str, int]


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, the one with most time first; hours in order."""

    since: datetime
    until: datetime
    by: By
    read: int
    complete: bool
    groups: list[Group]


def summed(
    tenant_id: UUID,
    *,
    by: By,
    readable: set[str] | None,
    endpoint_id: UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    hours: int = 1,
) -> Causes:
    """Sum causes inside the tenant's scope. ``readable``: ids of the replicas whose share may be told apart; None is all. Without
    ``since`` the period is the last ``hours``.

    Raises:
        Invalid: a period that is empty or longer than ``MAX_PERIOD``.
    """
    until = until or timezone.now()
    since = since or until - timedelta(hours=hours)
    if not timedelta(0) < until - since <= MAX_PERIOD:
        raise Invalid(f"Ask for at most {MAX_PERIOD.days} days.", field="since")
    wanted = queries.DecisionFilter(endpoint_id=endpoint_id, since=since, until=until)
    found = queries.decisions(tenant_id, wanted).filter(record__cause__isnull=False).order_by("-started_at")
    rows = list(found.values_list("started_at", "endpoint_id", "scope_id", "replica_id", "record__cause")[: MAX_ROWS + 1])
    complete = len(rows) <= MAX_ROWS
    sums: dict[str | None, _Sum] = {}
    for started_at, of_endpoint, of_scope, replica_id, cause in rows[:MAX_ROWS]:
        own = readable is None or not replica_id or replica_id in readable
        sums.setdefault(_group(by, started_at, of_endpoint, of_scope), _Sum()).add(cause or {}, own=own)
    groups = [one.group(of) for of, one in sums.items()]
    groups.sort(key=(lambda group: group.of or "") if by == "hour" else (lambda group: -group.seconds))
    return Causes(since=since, until=until, by=by, read=min(len(rows), MAX_ROWS), complete=complete, groups=groups)


def _group(by: By, started_at: datetime, endpoint_id: UUID | None, scope_id: UUID | None) -> str | None:
    if by == "hour":
        return started_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0).isoformat()
    of = endpoint_id if by == "endpoint" else scope_id
    return None if of is None else str(of)


class _Sum:
    """Parts of many decisions."""

    def __init__(self) -> None:
        self.decisions = 0
        self.parts_us: Counter[str] = Counter()
        self.main: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    def add(self, cause: Mapping[str, Any], *, own: bool) -> None:
        self.decisions += 1
        parts_us = cause.get("parts_us", {})
        self.parts_us.update(parts_us if own else folded(parts_us))
        if main := cause.get("main"):
            self.main["replica" if not own and main in OF_THE_REPLICA else main] += 1
        self.missed.update(cause.get("missed_tokens", {}))

    def group(self, of: str | None) -> Group:
        ordered = [part for part in (*PARTS, "replica") if part in self.parts_us]
        return Group(
            of=of,
            decisions=self.decisions,
            seconds=self.parts_us.total() / 1e6,
            parts=[
                PartSum(
                    part=part,
                    seconds=self.parts_us[part] / 1e6,
                    estimated=part in ESTIMATED or part == "replica",
                    main_of=self.main[part],
                )
                for part in ordered
            ],
            missed_tokens=dict(self.missed),
        )
