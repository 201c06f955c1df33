"""What the overview shows of requests: how many, how fast, what went wrong, and reuse as predicted, as realised, and as it could have been.

Reads rollups alone, of the coarsest grain that answers, in a fixed number of queries whatever the number of endpoints and of requests. They are of
whole steps, further back of wider ones, so a range begins with a whole step of its own; times are within two in a hundred of the exact ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from routing.core.histogram import EMPTY, Histogram
from routing.core.rollup import Grain, Key, Rollup
from routing.services import rollups

FAILED = ("upstream_error", "timeout", "incomplete")  # ours or a replica's; a 4xx is the client's and a refusal is counted apart
MAX_PARTS = 25  # of a table, those with most requests
MAX_CODES = 8


@dataclass(frozen=True, slots=True)
class Range:
    """A span the overview can show. Its begin is rounded down to ``grid_s``, in which rows of that age are whole; a point is of ``step_s``, or of
    ``coarse_s`` for one endpoint, whose rows are wider."""

    name: str
    label: str
    span: timedelta
    grid_s: int
    step_s: int
    coarse_s: int


RANGES = (
    Range("15m", "15 minutes", timedelta(minutes=15), 60, 60, 60),
    Range("1h", "1 hour", timedelta(hours=1), 300, 60, 300),
    Range("6h", "6 hours", timedelta(hours=6), 1800, 300, 1800),
    Range("24h", "24 hours", timedelta(hours=24), 3600, 1800, 3600),
    Range("7d", "7 days", timedelta(days=7), 21600, 7200, 21600),
)


def range_named(name: str | None) -> Range:
    """The range called ``name``; anything unknown is an hour."""
    return next((one for one in RANGES if one.name == name), RANGES[1])


def floor(moment: datetime, step_s: int) -> datetime:
    """The begin of its step."""
    return datetime.fromtimestamp(moment.timestamp() // step_s * step_s, tz=UTC)


@dataclass(slots=True)
class Traffic:
    """Sums over requests. Shares are of prompt tokens, and only over requests whose engine reported cached tokens; None is "no data".

    ``late`` of ``timed`` streams had their first token after their objective; ``timed`` counts all streams, with an objective or none.
    """

    requests: int = 0
    failed: int = 0
    refused: int = 0
    client_errors: int = 0
    late: int = 0
    prompt_tokens: int = 0  # of requests whose engine reported
    predicted_tokens: int = 0
    cached_tokens: int = 0
    ceiling_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    saved_s: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)
    ttft: dict[int, int] = field(default_factory=dict)  # counts by bucket

    def add(self, key: Key, one: Rollup) -> None:
        """Take in one row."""
        self.requests += one.requests
        if key.outcome in FAILED:
            self.failed += one.requests
        elif key.outcome == "refused":
            self.refused += one.requests
        elif key.outcome == "client_error":
            self.client_errors += one.requests
        self.late += one.slo_missed
        self.prompt_tokens += one.reported_prompt_tokens
        self.predicted_tokens += one.matched_tokens
        self.cached_tokens += one.cached_tokens
        self.ceiling_tokens += one.ceiling_tokens
        self.input_tokens += one.prompt_tokens
        self.output_tokens += one.completion_tokens
        self.saved_s += one.saved_us / 1e6
        self.codes.update(one.codes)
        for bucket, count in one.histograms.get("ttft_s", EMPTY).counts.items():
            self.ttft[bucket] = self.ttft.get(bucket, 0) + count

    def ttft_s(self, share: float) -> float | None:
        """A quantile of the time to first token."""
        return Histogram(self.ttft).quantile(share)

    @property
    def ttft_p50_s(self) -> float | None:
        return self.ttft_s(0.5)

    @property
    def ttft_p95_s(self) -> float | None:
        return self.ttft_s(0.95)

    @property
    def ttft_p99_s(self) -> float | None:
        return self.ttft_s(0.99)

    @property
    def timed(self) -> int:
        return sum(self.ttft.values())

    @property
    def late_share(self) -> float | None:
        return self.late / self.timed if self.timed else None

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.requests if self.requests else None

    @property
    def refused_share(self) -> float | None:
        return self.refused / self.requests if self.requests else None

    @property
    def predicted_share(self) -> float | None:
        return self._of_prompts(self.predicted_tokens)

    @property
    def cached_share(self) -> float | None:
        return self._of_prompts(self.cached_tokens)

    @property
    def ceiling_share(self) -> float | None:
        return self._of_prompts(self.ceiling_tokens)

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """The most frequent error codes."""
        return self.codes.most_common(MAX_CODES)

    def _of_prompts(self, tokens: int) -> float | None:
        return min(1.0, tokens / self.prompt_tokens) if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a series; ``width_s`` is the part of it that has passed."""

    start: datetime
    width_s: float
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Overview:
    """One range of one tenant, perhaps of one endpoint or scope alone."""

    since: datetime
    until: datetime
    step_s: int
    total: Traffic
    series: tuple[Point, ...]


def overview(tenant_id: UUID, *, span: Range, now: datetime, endpoint_id: UUID | None = None, scope_id: UUID | None = None) -> Overview:
    """Sum up ``span`` until ``now``, inside the tenant scope, in one query."""
    grain: Grain = "total"
    if endpoint_id is not None:
        grain = "endpoint" if scope_id is None else "detail"
    elif scope_id is not None:
        grain = "scope"
    step_s = span.coarse_s if grain == "endpoint" else span.step_s
    since = floor(now - span.span, span.grid_s)
    steps: dict[int, Traffic] = {}
    total = Traffic()
    only = None if endpoint_id is None else [endpoint_id]
    for key, one in _read(tenant_id, since=since, until=now, grain=grain, endpoints=only, scopes=None if scope_id is None else [scope_id]):
        total.add(key, one)
        steps.setdefault(int((key.start_s - since.timestamp()) // step_s), Traffic()).add(key, one)
    return Overview(since=since, until=now, step_s=step_s, total=total, series=tuple(_points(steps, since, now, step_s)))


def _points(steps: Mapping[int, Traffic], since: datetime, until: datetime, step_s: int) -> Iterator[Point]:
    whole_s = (until - since).total_seconds()
    for index in range(int(whole_s // step_s) + 1):
        passed_s = min(step_s, whole_s - index * step_s)
        if passed_s > 0 or index in steps:
            yield Point(since + timedelta(seconds=index * step_s), max(passed_s, 1.0), steps.get(index, Traffic()))


@dataclass(frozen=True, slots=True)
class Ranked:
    """Sums of the endpoints, or scopes, with most requests; ``others`` had requests too. None as id: it was not known yet."""

    rows: Mapping[UUID | None, Traffic]
    others: int


def by_part(tenant_id: UUID, grain: Literal["endpoint", "scope"], *, span: Range, now: datetime, most: int = MAX_PARTS) -> Ranked:
    """The same range by endpoint or by scope, inside the tenant scope, in two queries (three where some requests had none): PostgreSQL adds up which
    they are, and only their rows are read."""
    since = floor(now - span.span, span.grid_s)
    ranked = rollups.busiest(tenant_id, grain, since=since, until=now)
    shown = ranked[:most]
    found: dict[UUID | None, Traffic] = {one: Traffic() for one in shown}
    known = [one for one in shown if one is not None]
    narrowed: list[dict[str, Any]] = [{f"{grain}s": known}]
    if None in found:
        narrowed.append({f"without_{grain}": True})
    for one_of in narrowed:
        for key, one in _read(tenant_id, since=since, until=now, grain=grain, **one_of):
            found[key.endpoint_id if grain == "endpoint" else key.scope_id].add(key, one)
    return Ranked(rows=found, others=len(ranked) - len(shown))


def _read(tenant_id: UUID, *, since: datetime, until: datetime, grain: Grain, **narrowed: Any) -> Iterator[tuple[Key, Rollup]]:
    return rollups.read(tenant_id, since=since, until=until, grain=grain, observed=("ttft_s",), **narrowed)
