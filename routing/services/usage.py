"""Who used how much: the days' sums, by key, scope and endpoint. Numbers are the engines' own, out of records that a router signed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from uuid import UUID

from django.db.models import Sum

from routing.core.rollup import Usage
from routing.models import Endpoint, UsageRow
from tenants.core.errors import Invalid
from tenants.models import ApiKey, Scope
from tenants.scoping import require_scope

MAX_DAYS = 366
MAX_ROWS = 10_000
DIMENSIONS = ("day", "key", "scope", "endpoint")
METHOD = "cached tokens / the replica's learned prefill rate, at the time of each request"
_COLUMN = {"day": "day", "key": "key_id", "scope": "scope_id", "endpoint": "endpoint_id"}


@dataclass(frozen=True, slots=True)
class Line:
    """The use of one day, key, scope and endpoint, as far as they were asked apart; what was not is None. A name is None where the thing is gone."""

    day: date | None
    key_id: UUID | None
    key: str | None
    scope_id: UUID | None
    scope: str | None
    endpoint_id: UUID | None
    endpoint: str | None
    used: Usage


@dataclass(frozen=True, slots=True)
class Report:
    """Lines, and the sum of all lines that there are. ``truncated``: more lines than ``MAX_ROWS``, of which the total has all."""

    since: date
    until: date  # inclusive
    by: tuple[str, ...]
    lines: tuple[Line, ...]
    total: Usage
    truncated: bool


def report(tenant_id: UUID, *, since: date, until: date, by: Sequence[str] = DIMENSIONS) -> Report:
    """Add up the days from ``since`` to ``until``, both included, in UTC. In the tenant's scope.

    Raises:
        Invalid: more days than ``MAX_DAYS``, none, or something that usage is not kept by.
    """
    require_scope(tenant_id)
    if until < since:
        raise Invalid("The last day is before the first.", field="until")
    if until - since > timedelta(days=MAX_DAYS):
        raise Invalid(f"At most {MAX_DAYS} days.", field="since")
    if not set(by) <= set(DIMENSIONS):
        raise Invalid(f"Use some of: {', '.join(DIMENSIONS)}.", field="by")
    dimensions = tuple(name for name in DIMENSIONS if name in by)
    found = UsageRow.objects.filter(tenant_id=tenant_id, day__gte=since, day__lte=until)
    sums = {f"sum_{name}": Sum(name) for name in Usage._fields}
    whole = found.aggregate(**sums)
    columns = [_COLUMN[name] for name in dimensions]
    rows = list(found.values(*columns).annotate(**sums).order_by(*columns)[: MAX_ROWS + 1]) if columns else []
    names = _Names(tenant_id)
    return Report(
        since=since,
        until=until,
        by=dimensions,
        lines=tuple(names.line(row) for row in rows[:MAX_ROWS]),
        total=_usage(whole),
        truncated=len(rows) > MAX_ROWS,
    )


class _Names:
    """Names of what a tenant's usage refers to."""

    def __init__(self, tenant_id: UUID) -> None:
        self._keys = dict(ApiKey.objects.filter(tenant_id=tenant_id).values_list("id", "name"))
        self._scopes = dict(Scope.objects.filter(tenant_id=tenant_id).values_list("id", "path"))
        self._endpoints = dict(Endpoint.objects.filter(tenant_id=tenant_id).values_list("id", "name"))

    def line(self, row: dict[str, object]) -> Line:
        key_id, scope_id, endpoint_id = (_id(row.get(name)) for name in ("key_id", "scope_id", "endpoint_id"))
        day = row.get("day")
        return Line(
            day=day if isinstance(day, date) else None,
            key_id=key_id,
            key=None if key_id is None else self._keys.get(key_id),
            scope_id=scope_id,
            scope=None if scope_id is None else self._scopes.get(scope_id),
            endpoint_id=endpoint_id,
            endpoint=None if endpoint_id is None else self._endpoints.get(endpoint_id),
            used=_usage(row),
        )


def _id(value: object) -> UUID | None:
    return value if isinstance(value, UUID) else None


def _usage(row: dict[str, object]) -> Usage:
    return Usage(*(int(str(row[f"sum_{name}"] or 0)) for name in Usage._fields))


def as_csv(report: Report) -> str:
    """The lines as a table for spreadsheets: a name that would begin a formula there gets an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*_head(report.by), "requests", "input_tokens", "cached_tokens", "output_tokens", "engine_seconds_saved_estimate"])
    for line in report.lines:
        used = line.used
        figures = [used.requests, used.input_tokens, used.cached_tokens, used.output_tokens, f"{used.saved_us / 1e6:.6f}"]
        writer.writerow([*_place(line, report.by), *figures])
    return out.getvalue()


def _head(by: Iterable[str]) -> list[str]:
    return [name for one in by for name in ([one] if one == "day" else [f"{one}_id", one])]


def _place(line: Line, by: Iterable[str]) -> list[str]:
    found: list[str] = []
    for one in by:
        if one == "day":
            found.append(line.day.isoformat() if line.day else "")
        else:
            found += [str(getattr(line, f"{one}_id") or ""), _plain(getattr(line, one) or "")]
    return found


def _plain(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
