"""Rollups as they are read and kept small: ingest adds rows with each batch, :func:`fold` merges those of one key, wider the older they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from django.db import connection, transaction

from routing.core import replica_state
from routing.core.cause_sum import CauseSum
from routing.core.histogram import EMPTY, Histogram, HistogramError
from routing.core.rollup import GRAINS, MINUTE_S, OBSERVED, SUMS, WIDTHS_OF, Grain, Key, Rollup, decode_histograms, width_s
from routing.services.record_store import ROLLUP, USAGE, insert_rows, rollup_row
from tenants.scoping import require_scope

SETTLED = timedelta(minutes=2)  # of a minute's start; later rows for it are merged by a later run
FOLD_EVERY_S = 60.0  # the schedule of routing.tend_records
FOLD_STARTS = 120  # starts that one run merges: about two hours of minutes
FOLD_ROWS = 20_000  # rows that one run takes away
LATE = timedelta(hours=26)  # rows of one key are looked for so far back; of records that came later there are several, which readers add up
_COLUMNS = ("start_at", "width_s", "endpoint_id", "scope_id", "replica_id", "outcome", "grain", *SUMS, "codes", "causes", "histograms")
_SELECTED = ", ".join(_COLUMNS)
_KEY = "start_at, width_s, endpoint_id, scope_id, replica_id, outcome, grain"
STATES_LATE = timedelta(days=30)
STATE_WIDTHS = ((25 * 3600, 3600), (2 * 3600, 600))
_STATE_KEY = "start_at, width_s, replica_id, router_id"
_STATE_SUMS = replica_state.Sums._fields
_USAGE_KEY = "tenant_id, day, key_id, scope_id, endpoint_id"
_USAGE_SUMS = tuple(USAGE)[-5:]


def read(
    tenant_id: UUID,
    *,
    since: datetime,
    until: datetime,
    grain: Grain = "detail",
    endpoints: Sequence[UUID] | None = None,
    scopes: Sequence[UUID] | None = None,
    without_endpoint: bool = False,
    without_scope: bool = False,
    observed: Collection[str] = OBSERVED,
) -> Iterator[tuple[Key, Rollup]]:
    """Rollups of one grain that begin in ``[since, until)``, in any order, several of one key possible; histograms included. In the tenant's scope.

    Only of ``endpoints`` and of ``scopes``, where given, or of no endpoint (``without_endpoint``) or scope; the grain must tell them apart.
    ``observed``: the distributions that are wanted.
    """
    require_scope(tenant_id)
    where = "tenant_id = %s AND grain = %s AND start_at >= %s AND start_at < %s"
    values: list[Any] = [tenant_id, GRAINS.index(grain), since, until]
    if endpoints is not None:
        where += " AND endpoint_id = ANY(%s)"
        values.append(list(endpoints))
    if without_endpoint:
        where += " AND endpoint_id IS NULL"
    if scopes is not None:
        where += " AND scope_id = ANY(%s)"
        values.append(list(scopes))
    if without_scope:
        where += " AND scope_id IS NULL"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_SELECTED} FROM routing_rolluprow WHERE {where}", values)  # noqa: S608 - names of ours
        while rows := cursor.fetchmany(2000):
            for row in rows:
                yield _parsed(tenant_id, row, observed)


def fold(tenant_id: UUID, now: datetime) -> int:
    """Merge rows of one key, and widen old ones; returns how many rows fewer there are. Safe to repeat, and beside another: a row is taken once."""
    require_scope(tenant_id)
    fewer = _fold_minutes(tenant_id, now)
    for grain, widths in WIDTHS_OF.items():
        for older_than_s, width in widths:
            fewer += _widen(tenant_id, now, grain, older_than_s, width)
    return fewer + _fold_usage(tenant_id) + _fold_states(tenant_id, now)


def forget(tenant_id: UUID, *, rollups_before: datetime, usage_before: datetime) -> int:
    """Delete what is older; returns how many rows."""
    require_scope(tenant_id)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM routing_rolluprow WHERE tenant_id = %s AND start_at < %s", [tenant_id, rollups_before])
        gone = cursor.rowcount
        cursor.execute("DELETE FROM routing_replicastaterow WHERE tenant_id = %s AND start_at < %s", [tenant_id, rollups_before])
        gone += cursor.rowcount
        cursor.execute("DELETE FROM routing_usagerow WHERE tenant_id = %s AND day < %s", [tenant_id, usage_before.date()])
        return int(gone + cursor.rowcount)


def busiest(tenant_id: UUID, grain: Literal["endpoint", "scope"], *, since: datetime, until: datetime) -> list[UUID | None]:
    """Endpoints or scopes by their requests in ``[since, until)``, the most first; None: requests before it was known. In the tenant's scope."""
    require_scope(tenant_id)
    column = f"{grain}_id"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {column} FROM routing_rolluprow WHERE tenant_id = %s AND grain = %s AND start_at >= %s AND start_at < %s"  # noqa: S608 - ours
            f" GROUP BY {column} ORDER BY sum(requests) DESC, 1",
            [tenant_id, GRAINS.index(grain), since, until],
        )
        return [row[0] for row in cursor.fetchall()]


def step_of(moment: datetime, now: datetime, grain: Grain = "detail") -> datetime:
    """The begin of the step that holds ``moment``, as wide as rows of its age are or may soon be: rows from it on are wholly within."""
    unix_s = moment.timestamp()
    wide_s = width_s(now.timestamp() - unix_s + FOLD_EVERY_S, grain)
    return datetime.fromtimestamp(unix_s // wide_s * wide_s, tz=UTC)


def _fold_minutes(tenant_id: UUID, now: datetime) -> int:
    """Of the starts at which some key has several rows."""
    taken = f"""
        start_at IN (SELECT DISTINCT start_at FROM (
            SELECT start_at FROM routing_rolluprow
             WHERE tenant_id = %(tenant)s AND grain = ANY(%(grains)s) AND start_at < %(settled)s AND start_at >= %(late)s
             GROUP BY {_KEY} HAVING count(*) > 1 LIMIT {FOLD_STARTS}) several)
    """  # noqa: S608 - names of ours
    return _merge(tenant_id, now, taken, {"settled": now - SETTLED, "late": now - LATE, "grains": list(range(len(GRAINS)))})


def _widen(tenant_id: UUID, now: datetime, grain: Grain, older_than_s: int, width: int) -> int:
    """Whole steps of ``width`` only, so that no later run finds half of one."""
    edge_s = (int(now.timestamp()) - older_than_s) // width * width
    taken = f"""
        id IN (SELECT id FROM routing_rolluprow
                WHERE tenant_id = %(tenant)s AND grain = %(grain)s AND start_at < %(edge)s AND width_s < %(width)s LIMIT {FOLD_ROWS})
    """  # noqa: S608 - as above
    values = {"edge": datetime.fromtimestamp(edge_s, tz=UTC), "width": width, "grain": GRAINS.index(grain)}
    return _merge(tenant_id, now, taken, values)


def _merge(tenant_id: UUID, now: datetime, taken: str, values: dict[str, Any]) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM routing_rolluprow WHERE tenant_id = %(tenant)s AND {taken} RETURNING {_SELECTED}",  # noqa: S608 - pieces of this file
            {"tenant": tenant_id, **values},
        )
        rows = cursor.fetchall()
        if not rows:
            return 0
        merged = merge((_parsed(tenant_id, row) for row in rows), now.timestamp())
        insert_rows("routing_rolluprow", ROLLUP, [rollup_row(key, one, now) for key, one in merged.items()])
    return len(rows) - len(merged)


def merge(found: Iterable[tuple[Key, Rollup]], now_s: float) -> dict[Key, Rollup]:
    """Sums by key, each as wide as its age wants it."""
    merged: dict[Key, Rollup] = {}
    for key, one in found:
        wide_s = max(key.width_s, width_s(now_s - key.start_s, key.grain))
        at = key._replace(start_s=key.start_s // wide_s * wide_s, width_s=wide_s)
        merged[at] = merged[at].plus(one) if at in merged else one
    return merged


def _parsed(tenant_id: UUID, row: Sequence[Any], observed: Collection[str] = OBSERVED) -> tuple[Key, Rollup]:
    start_at, width, endpoint_id, scope_id, replica_id, outcome, grain, *sums, codes, causes, histograms = row
    try:
        decoded: dict[str, Histogram] = decode_histograms(bytes(histograms), observed)
    except HistogramError:
        decoded = {}  # damage costs the distribution, not the sums
    key = Key(tenant_id, int(start_at.timestamp()), width, endpoint_id, scope_id, replica_id, outcome, GRAINS[grain])
    said, why = (one if isinstance(one, dict) else msgspec.json.decode(one) for one in (codes, causes))
    return key, Rollup(**dict(zip(SUMS, sums, strict=True)), codes=said, causes=CauseSum.of_document(why), histograms=decoded)


def _fold_usage(tenant_id: UUID) -> int:
    """Usage has no distribution, so PostgreSQL merges it in one statement."""
    sums = ", ".join(f"sum({name})" for name in _USAGE_SUMS)
    names = ", ".join(_USAGE_SUMS)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH several AS (SELECT day FROM routing_usagerow WHERE tenant_id = %(tenant)s GROUP BY {_USAGE_KEY} HAVING count(*) > 1 LIMIT 50),
                 gone AS (DELETE FROM routing_usagerow WHERE tenant_id = %(tenant)s AND day IN (SELECT day FROM several) RETURNING *),
                 kept AS (INSERT INTO routing_usagerow (id, created_at, {_USAGE_KEY}, {names})
                          SELECT gen_random_uuid(), now(), {_USAGE_KEY}, {sums} FROM gone GROUP BY {_USAGE_KEY} RETURNING 1)
            SELECT (SELECT count(*) FROM gone) - (SELECT count(*) FROM kept)
            """,  # noqa: S608 - names of ours
            {"tenant": tenant_id},
        )
        return int(cursor.fetchone()[0])


def _fold_states(tenant_id: UUID, now: datetime) -> int:
    """States of replicas likewise: those of a minute become one, then ten minutes, then an hour. Whole steps, so that no step is folded twice."""
    fewer = 0
    names, sums = ", ".join(_STATE_SUMS), ", ".join(f"sum({name})" for name in _STATE_SUMS)
    start = "to_timestamp(floor(extract(epoch FROM start_at) / %(width)s) * %(width)s)"
    within = "tenant_id = %(tenant)s AND start_at < %(edge)s AND start_at >= %(late)s"
    several = f"start_at IN (SELECT start_at FROM routing_replicastaterow WHERE {within} GROUP BY {_STATE_KEY} HAVING count(*) > 1)"  # noqa: S608 - names of ours
    for older_than_s, width in ((int(SETTLED.total_seconds()), MINUTE_S), *reversed(STATE_WIDTHS)):
        taken, late = (several, LATE) if width == MINUTE_S else ("width_s < %(width)s", STATES_LATE)
        edge_s = (int(now.timestamp()) - older_than_s) // width * width
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                WITH gone AS (DELETE FROM routing_replicastaterow WHERE {within} AND {taken} RETURNING *),
                     kept AS (INSERT INTO routing_replicastaterow (id, created_at, tenant_id, start_at, width_s, replica_id, router_id, {names})
                              SELECT gen_random_uuid(), now(), tenant_id, {start}, %(width)s, replica_id, router_id, {sums}
                                FROM gone GROUP BY tenant_id, {start}, replica_id, router_id RETURNING 1)
                SELECT (SELECT count(*) FROM gone) - (SELECT count(*) FROM kept)
                """,  # noqa: S608 - names of ours
                {"tenant": tenant_id, "edge": datetime.fromtimestamp(edge_s, tz=UTC), "late": now - late, "width": width},
            )
            fewer += int(cursor.fetchone()[0])
    return fewer


def total(found: Iterable[Rollup]) -> Rollup:
    """All of them together."""
    whole = Rollup()
    for one in found:
        whole = whole.plus(one)
    return whole


def quantile(one: Rollup, name: str, share: float) -> float | None:
    """A quantile of what was observed, within the histograms' stated error."""
    return one.histograms.get(name, EMPTY).quantile(share)
