"""What requests' time went into, summed over all requests of a period: for each endpoint, scope or hour.

Read are the rollups of minutes (older ones of ten minutes and hours), never decisions: sums equal those of the records, to the microsecond, however
many there were, also where the decisions themselves are gone by now. A period begins with a whole step. What came of replicas of a platform's pool is
folded as in a single decision (:mod:`routing.services.disclosure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, cast
from uuid import UUID

import msgspec
from django.db import connection
from django.utils import timezone

from routing.core.cause import ESTIMATED, OF_THE_REPLICA, PARTS, folded
from routing.core.rollup import GRAINS, Grain
from routing.services import rollups
from tenants.core.errors import Invalid
from tenants.scoping import require_scope

By = Literal["endpoint", "scope", "hour"]
MAX_PERIOD = timedelta(days=8)
_GROUPS = {
    "endpoint": "endpoint_id::text",
    "scope": "scope_id::text",
    "hour": "to_char(date_trunc('hour', start_at, 'UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS+00:00')",
}


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
    """Groups, the one with most time first; hours in order. ``since`` is the begin of the first step that was read."""

    since: datetime
    until: datetime
    by: By
    decisions: int  # of these groups
    left_out: int  # groups that were not read
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
    most: int | None = None,
) -> Causes:
    """Sum causes inside the tenant's scope. ``readable``: ids of the replicas whose share may be told apart; None is all. Without
    ``since`` the period is the last ``hours``. ``most``: of endpoints only those with most requests; the rest is not read.

    Raises:
        Invalid: a period that is empty or longer than ``MAX_PERIOD``.
    """
    require_scope(tenant_id)
    now = timezone.now()
    until = until or now
    since = since or until - timedelta(hours=hours)
    if not timedelta(0) < until - since <= MAX_PERIOD:
        raise Invalid(f"Ask for at most {MAX_PERIOD.days} days.", field="since")
    grain = _grain(by, endpoint_id, whole=readable is None)
    since = rollups.step_of(since, now, grain)
    sums: dict[str | None, _Sum] = {}
    asked = _Narrowed(since, until, [endpoint_id] if endpoint_id else None, readable)
    left_out = 0
    if by == "endpoint" and endpoint_id is None and most is not None:
        ranked = rollups.busiest(tenant_id, "endpoint", since=since, until=until)
        asked, left_out = asked._replace(endpoints=ranked[:most]), max(0, len(ranked) - most)
    for of, own, kind, name, count in _read(tenant_id, by, grain, asked):
        sums.setdefault(of, _Sum()).add(kind, name, count, own=own)
    groups = [one.group(of) for of, one in sums.items()]
    groups.sort(key=(lambda group: group.of or "") if by == "hour" else (lambda group: (-group.seconds, group.of or "")))
    decisions = sum(group.decisions for group in groups)
    return Causes(since=since, until=until, by=by, decisions=decisions, left_out=left_out, groups=groups)


def _grain(by: By, endpoint_id: UUID | None, *, whole: bool) -> Grain:
    """The coarsest sums that tell the groups apart. Those hold causes folded, so who may read all of them reads the detail, as one endpoint's is."""
    if whole or endpoint_id is not None:
        return "detail"
    return "total" if by == "hour" else by


class _Narrowed(NamedTuple):
    since: datetime
    until: datetime
    endpoints: Sequence[UUID | None] | None
    readable: set[str] | None


def _read(tenant_id: UUID, by: By, grain: Grain, asked: _Narrowed) -> list[tuple[str | None, bool, str, str, int]]:
    """(group, whether its replicas may be told apart, kind, name, sum): PostgreSQL adds up, so few rows come here."""
    narrowed = "true"
    if asked.endpoints is not None:
        narrowed = "endpoint_id = ANY(%(endpoints)s)" + (" OR endpoint_id IS NULL" if None in asked.endpoints else "")
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT grouped, own, kind, name, sum(counted)::bigint
              FROM (SELECT {_GROUPS[by]} AS grouped, causes,
                           %(all)s OR replica_id = '' OR replica_id = ANY(%(readable)s) AS own
                      FROM routing_rolluprow
                     WHERE tenant_id = %(tenant)s AND grain = %(grain)s AND start_at >= %(since)s AND start_at < %(until)s
                       AND ({narrowed}) AND causes <> '{{}}') rows
             CROSS JOIN LATERAL (
                   SELECT 'n' AS kind, '' AS name, (causes->>'n')::bigint AS counted
                   UNION ALL SELECT 'us', key, value::bigint FROM jsonb_each_text(causes->'us')
                   UNION ALL SELECT 'main', key, value::bigint FROM jsonb_each_text(causes->'main')
                   UNION ALL SELECT 'missed', key, value::bigint FROM jsonb_each_text(causes->'missed')) each
             GROUP BY 1, 2, 3, 4
            """,  # noqa: S608 - names of ours
            {
                "all": asked.readable is None or grain != "detail",
                "readable": sorted(asked.readable or ()),
                "tenant": tenant_id,
                "grain": GRAINS.index(grain),
                "since": asked.since,
                "until": asked.until,
                "endpoints": [one for one in asked.endpoints or () if one is not None],
            },
        )
        return cast("list[tuple[str | None, bool, str, str, int]]", cursor.fetchall())


class _Sum:
    """Parts of many decisions."""

    def __init__(self) -> None:
        self.decisions = 0
        self.parts_us: Counter[str] = Counter()
        self.main: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    def add(self, kind: str, name: str, count: int, *, own: bool) -> None:
        if kind == "n":
            self.decisions += count
        elif kind == "us":
            self.parts_us.update({name: count} if own else folded({name: count}))
        elif kind == "main":
            self.main["replica" if not own and name in OF_THE_REPLICA else name] += count
        else:
            self.missed[name] += count

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
            missed_tokens=dict(sorted(self.missed.items())),
        )
