"""What the overview shows: requests, errors, time to first token, and reuse as predicted against reuse as realised.

Reads rollups alone, in one query whatever the number of endpoints and of requests. They are of whole minutes, further back of ten minutes and
hours, so a range begins and ends with one; times are within two in a hundred of the exact ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from routing.core.histogram import EMPTY
from routing.core.rollup import MINUTE_S, Key, Rollup
from routing.services import rollups

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
    step_s = span.step.total_seconds()
    by_endpoint: dict[UUID | None, list[tuple[Key, Rollup]]] = {}
    steps: dict[int, list[tuple[Key, Rollup]]] = {}
    first = since - timedelta(seconds=MINUTE_S)  # exclusive: the minute in which the range begins
    for key, one in rollups.read(tenant_id, since=first + timedelta(microseconds=1), until=until):
        by_endpoint.setdefault(key.endpoint_id, []).append((key, one))
        step = min(SERIES_POINTS - 1, max(0, int((key.start_s - since.timestamp()) / step_s)))
        steps.setdefault(step, []).append((key, one))
    return Overview(
        since=since,
        until=until,
        total=_traffic(None, [one for found in by_endpoint.values() for one in found]),
        by_endpoint={endpoint_id: _traffic(endpoint_id, found) for endpoint_id, found in by_endpoint.items()},
        series=tuple(Point(start=since + index * span.step, traffic=_traffic(None, steps.get(index, ()))) for index in range(SERIES_POINTS)),
    )


def _traffic(endpoint_id: UUID | None, found: Iterable[tuple[Key, Rollup]]) -> Traffic:
    by_outcome: dict[str, int] = {}
    ttft = EMPTY
    prompt = predicted = cached = 0
    for key, one in found:
        by_outcome[key.outcome] = by_outcome.get(key.outcome, 0) + one.requests
        ttft = ttft.plus(one.histograms.get("ttft_s", EMPTY))
        prompt += one.reported_prompt_tokens
        predicted += one.matched_tokens
        cached += one.cached_tokens
    return Traffic(
        endpoint_id=endpoint_id,
        requests=sum(by_outcome.values()),
        failed=sum(by_outcome.get(outcome, 0) for outcome in FAILED),
        refused=by_outcome.get("refused", 0),
        client_errors=by_outcome.get("client_error", 0),
        ttft_p50_s=ttft.quantile(0.5),
        ttft_p95_s=ttft.quantile(0.95),
        prompt_tokens=prompt,
        predicted_tokens=predicted,
        cached_tokens=cached,
    )
