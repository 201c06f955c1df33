"""What the reconciliation page shows: the last run, what contradicts what, what became of it, and earlier runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from console.reads.isolation import Page, page_of
from routing.core.findings import SEVERITIES, State
from routing.models import ReconciliationFinding, ReconciliationRun
from routing.services.reconciliation import reading, running

RUN_ROWS = 20
RESOLVED_ROWS = 20
SHOWN = 200
LATE = timedelta(minutes=5)  # a run is made every minute


@dataclass(frozen=True, slots=True)
class Found:
    """A finding with its kind in words."""

    row: ReconciliationFinding
    title: str


@dataclass(frozen=True, slots=True)
class Overview:
    """``watched``: seen, and not for long enough to be open. ``late``: no run has ended for some minutes, so what is shown may be old."""

    last: ReconciliationRun | None
    under_way: ReconciliationRun | None
    counts: dict[str, int]
    open: tuple[Found, ...]
    watched: tuple[Found, ...]
    late: bool

    @property
    def gravest(self) -> str:
        """The severity that the page is coloured by, or an empty text."""
        return next((one for one in SEVERITIES if self.counts[one]), "")


def overview(tenant_id: UUID) -> Overview:
    """The last run and what is open, inside the tenant scope."""
    last = reading.last(tenant_id)
    late = last is None or last.finished_at is None or timezone.now() - last.finished_at > LATE
    return Overview(
        last=last,
        under_way=reading.under_way(tenant_id),
        counts=reading.counts(tenant_id),
        open=tuple(_found(row) for row in running.open_findings(tenant_id)[:SHOWN]),
        watched=tuple(_found(row) for row in reading.watched(tenant_id)[:SHOWN]),
        late=late,
    )


def resolved(tenant_id: UUID, cursor: str) -> tuple[tuple[Found, ...], str]:
    """One page of what is over, newest first, and the cursor of the next or an empty text."""
    page = page_of(ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.RESOLVED), cursor, RESOLVED_ROWS)
    return tuple(_found(row) for row in page.rows), page.next


def runs(tenant_id: UUID, cursor: str) -> Page[ReconciliationRun]:
    """One page of runs, newest first."""
    return page_of(reading.runs(tenant_id), cursor, RUN_ROWS)


def _found(row: ReconciliationFinding) -> Found:
    return Found(row=row, title=reading.title(row.kind))
