"""What the overview shows: requests, errors, time to first token, and reuse as predicted against reuse as realised.

Reads the columns of stored decisions over a bounded range, in two queries whatever the number of endpoints. This module is the only one to
change once minute rollups exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

SERIES_POINTS = 48
FAILED = ("upstream_error", "timeout", "incomplete")  # ours or a replica's; a 4xx is the client's and a refusal is counted apart


@dataclass(frozen=True, slots=True)
class Range:
    """A span the overview can show."""

    name: str
    label: str
    span: timedelta

    @property
    def step(self) -> timedelta:
        return self.span / SERIES_POINTS


RANGES = (
    Range("15m", "15 minutes", timedelta(minutes=15)),
    Range("1h", "1 hour", timedelta(hours=1)),
    Range("6h", "6 hours", timedelta(hours=6)),
    Range("24h", "24 hours", timedelta(hours=24)),
    Range("7d", "7 days", timedelta(days=7)),
)


def range_named(name: str | None) -> Range:
    """The range called ``name``; anything unknown is an hour."""
    return next((one for one in RANGES if one.name == name), RANGES[1])


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums over requests. Shares are of prompt tokens, and only over requests whose engine reported cached tokens; None is "no data"."""

    endpoint_id: UUID | None
    requests: int = 0
    failed: int = 0
    refused: int = 0
    client_errors: int = 0
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    cached_tokens: int = 0

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.requests if self.requests else None

    @property
    def predicted_share(self) -> float | None:
        return self.predicted_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def cached_share(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a series."""

    start: datetime
    traffic: Traffic


_SUMS = """
  count(*),
  count(*) FILTER (WHERE outcome = ANY(%(failed)s)),
  count(*) FILTER (WHERE outcome = 'refused'),
  count(*) FILTER (WHERE outcome = 'client_error'),
  percentile_cont(0.5) WITHIN GROUP (ORDER BY ttft_s),
  percentile_cont(0.95) WITHIN GROUP (ORDER BY ttft_s),
  coalesce(sum(prompt_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0),
  coalesce(sum(least(matched_tokens, prompt_tokens)) FILTER (WHERE cached_tokens IS NOT NULL), 0),
  coalesce(sum(cached_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0)
"""
_WHERE = "FROM routing_decisionrow WHERE tenant_id = %(tenant)s AND started_at >= %(since)s AND started_at < %(until)s"
_BY_ENDPOINT = f"SELECT grouping(endpoint_id), endpoint_id, {_SUMS} {_WHERE} GROUP BY GROUPING SETS ((endpoint_id), ())"
_STEP = "floor(extract(epoch FROM started_at - %(since)s) / %(step)s)::int"
_SERIES = f"SELECT {_STEP}, NULL::uuid, {_SUMS} {_WHERE} GROUP BY 1 ORDER BY 1"


@dataclass(frozen=True, slots=True)
class Overview:
    """One range of one tenant. ``by_endpoint`` lists endpoints that had requests; None as id is "no endpoint" (unknown model, wrong key)."""

    since: datetime
    until: datetime
    total: Traffic
    by_endpoint: dict[UUID | None, Traffic]
    series: tuple[Point, ...]


def overview(tenant_id: UUID, *, span: Range, now: datetime) -> Overview:
    """Sum up ``span`` until ``now``, inside the tenant scope."""
    until = now
    since = until - span.span
    values: dict[str, Any] = {"tenant": tenant_id, "since": since, "until": until, "failed": list(FAILED), "step": span.step.total_seconds()}
    total = Traffic(endpoint_id=None)
    by_endpoint: dict[UUID | None, Traffic] = {}
    with connection.cursor() as cursor:
        cursor.execute(_BY_ENDPOINT, values)
        for is_total, *rest in cursor.fetchall():
            traffic = _traffic(rest)
            if is_total:
                total = traffic
            else:
                by_endpoint[traffic.endpoint_id] = traffic
        cursor.execute(_SERIES, values)
        found = {row[0]: _traffic(row[1:]) for row in cursor.fetchall()}
    empty = Traffic(endpoint_id=None)
    series = tuple(Point(start=since + index * span.step, traffic=found.get(index, empty)) for index in range(SERIES_POINTS))
    return Overview(since=since, until=until, total=total, by_endpoint=by_endpoint, series=series)


def _traffic(row: Sequence[Any]) -> Traffic:
    endpoint_id, requests, failed, refused, client_errors, p50, p95, prompt, predicted, cached = row
    return Traffic(
        endpoint_id=endpoint_id,
        requests=requests,
        failed=failed,
        refused=refused,
        client_errors=client_errors,
        ttft_p50_s=p50,
        ttft_p95_s=p95,
        prompt_tokens=prompt,
        predicted_tokens=predicted,
        cached_tokens=cached,
    )
