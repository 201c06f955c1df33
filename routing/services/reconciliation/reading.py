"""Runs and findings as API, command and console show them. Inside the tenant's scope; nothing here changes a row."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from routing.core.findings import KINDS, SEVERITIES, State
from routing.models import ReconciliationFinding, ReconciliationRun
from tenants.core.errors import NotFound
from tenants.queries import parse_uuid


def runs(tenant_id: UUID) -> Any:
    """The history, without what is only for the next run."""
    return ReconciliationRun.objects.filter(tenant_id=tenant_id).defer("observed")


def last(tenant_id: UUID) -> ReconciliationRun | None:
    """The last run that ended by itself."""
    found: ReconciliationRun | None = runs(tenant_id).filter(state="finished").order_by("-finished_at", "-id").first()
    return found


def under_way(tenant_id: UUID) -> ReconciliationRun | None:
    """The run that waits or runs now."""
    found: ReconciliationRun | None = runs(tenant_id).filter(state__in=("queued", "running")).order_by("-created_at").first()
    return found


def finding(tenant_id: UUID, reference: str) -> ReconciliationFinding:
    """One finding, whatever its state.

    Raises:
        NotFound: absent, or another tenant's.
    """
    row_id = parse_uuid(reference.strip("/"))
    row = ReconciliationFinding.objects.filter(tenant_id=tenant_id, id=row_id).first() if row_id is not None else None
    if row is None:
        raise NotFound
    return row


def watched(tenant_id: UUID) -> tuple[ReconciliationFinding, ...]:
    """What was seen and has not lasted for as long as its kind must, the gravest first."""
    rows = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.WATCHING)
    return tuple(sorted(rows, key=lambda row: (SEVERITIES.index(row.severity), row.first_seen_at, row.kind, row.subject)))


def counts(tenant_id: UUID) -> dict[str, int]:
    """How many findings are open, by severity, the gravest first."""
    rows = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.OPEN).values_list("severity", flat=True)
    found = list(rows)
    return {severity: found.count(severity) for severity in SEVERITIES}


def title(kind: str) -> str:
    """A kind in words; one that is not known any more in its own."""
    return KINDS[kind].title if kind in KINDS else kind.replace("_", " ").capitalize()


def run_shown(row: ReconciliationRun) -> dict[str, Any]:
    """The members of a run as answered."""
    names = ("id", "state", "trigger", "requested_by", "created_at", "started_at", "finished_at", "took_s", "repeats", "routers")
    counted = ("watching", "open", "opened", "resolved", "repairs", "dropped", "reason")
    return {name: getattr(row, name) for name in (*names, *counted)}


def finding_shown(row: ReconciliationFinding) -> dict[str, Any]:
    """The members of a finding as answered."""
    names = ("id", "kind", "severity", "state", "subject_kind", "subject_id", "subject", "explanation", "done", "repairs")
    moments = {"first_seen_at": row.first_seen_at, "last_seen_at": row.last_seen_at, "resolved_at": row.resolved_at, "repaired_at": row.repaired_at}
    return {**{name: getattr(row, name) for name in names}, "title": title(row.kind), **moments}
