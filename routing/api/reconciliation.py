"""Reconciliation: what routers, engines and the database contradict each other in, what was done about it, and starting a run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing.core.findings import KINDS, SEVERITIES
from routing.core.findings import State as FindingState
from routing.models import ReconciliationFinding
from routing.services.reconciliation import orders, reading, running
from tenants.api.base import TenantView, describe
from tenants.api.pagination import filtered, page
from tenants.api.schema import PAGING, page_of
from tenants.core.roles import Permission

TAG = "reconciliation"
SHOWN = 100  # findings in the overview; the list has them all


class ReconciliationRunOut(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. ``repeats``: how many runs in a row this one stands for, since none of them found anything new."""

    id: UUID
    state: str
    trigger: str
    requested_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    took_s: float | None
    repeats: int
    routers: Annotated[int | None, msgspec.Meta(description="Routers that were heard; null where Valkey did not answer.")]
    watching: Annotated[int, msgspec.Meta(description="Seen, and not yet for long enough to be said.")]
    open: int
    opened: int
    resolved: int
    repairs: int
    dropped: Annotated[int, msgspec.Meta(description="Beyond what one run keeps.")]
    reason: str


class ReconciliationFindingOut(msgspec.Struct, frozen=True, kw_only=True):
    """One contradiction, in words. ``done`` is what was done about it, or why it could not be."""

    id: UUID
    kind: str
    title: str
    severity: str
    state: str
    subject_kind: str
    subject_id: str
    subject: str
    explanation: str
    done: str
    repairs: int
    first_seen_at: datetime
    last_seen_at: datetime
    resolved_at: datetime | None
    repaired_at: datetime | None


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The last run and what is open. ``under_way`` is a run that waits or runs now."""

    last_run: ReconciliationRunOut | None
    under_way: ReconciliationRunOut | None
    open: dict[str, int]
    findings: list[ReconciliationFindingOut]


def shown(row: ReconciliationFinding) -> ReconciliationFindingOut:
    return ReconciliationFindingOut(**reading.finding_shown(row))


class ReconciliationView(TenantView):
    """The last run, and starting one."""

    permissions = {"GET": Permission.READ, "POST": Permission.OPERATE}

    @describe("reconciliation_read", "See what reconciliation found", answers=Reconciliation, tag=TAG)
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """Open findings, the gravest first. A run is made every minute."""
        last, under_way = reading.last(self.tenant_id), reading.under_way(self.tenant_id)
        return self.answer(
            Reconciliation(
                last_run=None if last is None else ReconciliationRunOut(**reading.run_shown(last)),
                under_way=None if under_way is None else ReconciliationRunOut(**reading.run_shown(under_way)),
                open=reading.counts(self.tenant_id),
                findings=[shown(row) for row in running.open_findings(self.tenant_id)[:SHOWN]],
            )
        )

    @describe("reconciliation_start", "Reconcile now", answers=ReconciliationRunOut, status=202, tag=TAG)
    def post(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """A worker begins at once; where one waits already, it is that one."""
        run = orders.request(tenant_id=self.tenant_id, actor=self.actor)
        return self.answer(ReconciliationRunOut(**reading.run_shown(run)), status=202)


class ReconciliationRuns(TenantView):
    """The history of runs."""

    permissions = {"GET": Permission.READ}

    @describe("reconciliation_runs_list", "List runs of reconciliation", answers=page_of(ReconciliationRunOut), parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """Newest first; kept for seven days."""
        return self.answer(page(request, reading.runs(self.tenant_id)).render(lambda row: ReconciliationRunOut(**reading.run_shown(row))))


_FILTERS = (
    OpenApiParameter("state", str, enum=[one.value for one in FindingState]),
    OpenApiParameter("severity", str, enum=list(SEVERITIES)),
    OpenApiParameter("kind", str, enum=sorted(KINDS)),
)


class ReconciliationFindings(TenantView):
    """All findings."""

    permissions = {"GET": Permission.READ}

    @describe(
        "reconciliation_findings_list",
        "List findings of reconciliation",
        answers=page_of(ReconciliationFindingOut),
        parameters=(*PAGING, *_FILTERS),
        tag=TAG,
    )
    def get(self, request: Request) -> Response:
        """Newest first; resolved ones are kept for thirty days."""
        found = ReconciliationFinding.objects.filter(tenant_id=self.tenant_id)
        return self.answer(page(request, filtered(request, found, _FILTERS)).render(shown))


class ReconciliationFindingItem(TenantView):
    """One finding."""

    permissions = {"GET": Permission.READ}

    @describe("reconciliation_findings_read", "Read a finding of reconciliation", answers=ReconciliationFindingOut, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With what was done about it, and when it was resolved."""
        return self.answer(shown(reading.finding(self.tenant_id, reference)))
