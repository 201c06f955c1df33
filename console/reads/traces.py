"""What the pages about traces show: traces, jobs with their progress, and what came of one in figures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from console.reads.isolation import page_of
from routing import queries
from routing.models import Endpoint, TraceCapture, TraceFile, TraceJob
from routing.services.traces import files, jobs, reading

JOB_ROWS = 20
CHOICES = 200


@dataclass(frozen=True, slots=True)
class Line:
    """A job in a list."""

    row: TraceJob
    title: str
    share: float | None
    ends_at: datetime | None

    @property
    def under_way(self) -> bool:
        return self.row.state in ("queued", "running")

    @property
    def thousandths(self) -> int:
        """How much is done, for an element that counts."""
        return round(1000 * (self.share or 0.0))

    @property
    def tone(self) -> str:
        return {"done": "good", "failed": "bad", "running": "info"}.get(self.row.state, "")


@dataclass(frozen=True, slots=True)
class Overview:
    """``under_way``: somebody should look again soon."""

    files: tuple[TraceFile, ...]
    lines: tuple[Line, ...]
    next: str
    under_way: bool


@dataclass(frozen=True, slots=True)
class Choices:
    """What forms offer. ``captured`` are endpoints of which something was captured."""

    files: tuple[TraceFile, ...]
    captured: tuple[Endpoint, ...]
    endpoints: tuple[Endpoint, ...]
    policies: tuple[str, ...]


def overview(tenant_id: UUID, cursor: str, *, fragment: bool) -> Overview:
    """Inside the tenant's scope; a fragment shows the jobs alone."""
    found = page_of(jobs.jobs(tenant_id), cursor, JOB_ROWS)
    lines = tuple(line(row) for row in found.rows)
    sent = () if fragment else tuple(files.files(tenant_id).order_by("-created_at"))
    return Overview(files=sent, lines=lines, next=found.next, under_way=any(one.under_way for one in lines))


def choices(tenant_id: UUID) -> Choices:
    """Inside the tenant's scope."""
    captured = set(TraceCapture.objects.filter(tenant_id=tenant_id, deleted_at=None).values_list("endpoint_id", flat=True))
    endpoints = tuple(queries.endpoints(tenant_id).order_by("name")[:CHOICES])
    return Choices(
        files=tuple(files.files(tenant_id).order_by("-created_at")),
        captured=tuple(one for one in endpoints if one.id in captured),
        endpoints=endpoints,
        policies=tuple(queries.policies(tenant_id, "routing").order_by("name").values_list("name", flat=True)[:CHOICES]),
    )


def line(row: TraceJob) -> Line:
    return Line(row=row, title=reading.TITLES[row.kind], share=reading.share(row), ends_at=reading.expected_end(row, timezone.now()))


def shown(row: TraceJob, now: datetime) -> dict[str, Any]:
    """One job with its result as the page takes it apart."""
    del now
    result = row.result or {}
    return {
        "job": row,
        "line": line(row),
        "result": result,
        "plots": [(name, reading.PLOTS.get(name, name)) for name in reading.PLOTS if name in row.plots],
        "runs": result.get("runs") or [result[side] for side in ("current", "candidate") if side in result],
        "changes": _changes(result.get("comparison") or {}),
    }


_CHANGES = (
    ("mean_change", "Time to first token, mean"),
    ("p99_change", "Time to first token, p99"),
    ("hit_points", "Hit rate"),
    ("slo_points", "Within the objective"),
    ("tokens_saved", "Prompt tokens saved"),
)


def _change(name: str, value: float) -> str:
    """A share of a share is a percentage; a difference of two shares is points, which are no percentage of anything."""
    if name == "tokens_saved":
        return f"{value:+,.0f}"
    return f"{value * 100:+.1f} {'points' if name.endswith('_points') else '%'}"


def _changes(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(figure, change, interval) in words."""
    lines = []
    for name, title in _CHANGES:
        one = found.get(name)
        if one is not None:
            # Without an interval nothing can be told, so nothing is: a bare figure would be read as a finding.
            sure = one["low"] is not None
            bounds = f"{_change(name, one['low'])} to {_change(name, one['high'])}" if sure else "too little traffic"
            lines.append((title, _change(name, one["value"]) if sure else "–", bounds))  # noqa: RUF001 - a dash
    return lines
