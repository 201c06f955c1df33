"""Isolation audits: their verdicts, their cost, their signed evidence; ordering one; the way out of quarantine."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from namespaces.audit import evidence
from routing import queries
from routing.api import pool_shapes, rows
from routing.models import AuditRun
from routing.services import isolation
from routing.services.audits import orders, running, targets
from routing.services.audits.wake import on_commit
from tenants.api.base import ApiView, TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.core.errors import Invalid, NotFound, Unavailable
from tenants.core.roles import Permission
from tenants.queries import parse_uuid

STATES = ("queued", "running", "finished", "refused")


class AuditCase(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which two namespaces might share. ``rows`` are those of the negative matrix that it covers."""

    name: str
    title: str
    rows: list[int]
    outcome: str
    reason: str
    rounds: int
    negative_probes: int
    controls_seen: int


class IsolationAudit(msgspec.Struct, frozen=True, kw_only=True):
    """An audit of one replica through one endpoint. ``failure_rate_bound`` is the upper 95 % bound after ``negative_probes`` clean probes."""

    id: UUID
    state: str
    outcome: str | None
    reason: str
    trigger: str
    requested_by: str
    endpoint: str
    endpoint_id: UUID
    pool: str
    pool_id: UUID
    replica_id: UUID
    replica: str | None
    build: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    probes: int
    negative_probes: int
    failure_rate_bound: float | None
    tokens_spent: int


class IsolationAuditDetail(IsolationAudit, frozen=True, kw_only=True):
    """With the verdict of every case."""

    cases: list[AuditCase]


class IsolationAuditNew(Body):
    """Which endpoint; without ``replica`` every replica of its pool. ``repeat``: rounds of the main case, two negative probes each."""

    endpoint: str
    replica: str | None = None
    repeat: Annotated[int, msgspec.Meta(ge=1, le=250)] | None = None


class AuditsOrdered(msgspec.Struct, frozen=True, kw_only=True):
    """What was ordered; each is carried out by a worker within its replica's daily budget."""

    results: list[IsolationAudit]


class Repaired(Body):
    """``flushed``: the cache was emptied by hand. Without it the engine must have been restarted since, as routers see it."""

    reason: str
    flushed: bool = False


class EvidenceKey(msgspec.Struct, frozen=True, kw_only=True):
    """The Ed25519 key that signs audit reports."""

    algorithm: str
    public_key: str


def shown(row: AuditRun) -> dict[str, Any]:
    """The members of an audit as answered."""
    return {
        "id": row.id,
        "state": row.state,
        "outcome": row.outcome or None,
        "reason": row.reason,
        "trigger": row.trigger,
        "requested_by": row.requested_by,
        "endpoint": row.endpoint_name,
        "endpoint_id": row.endpoint_id,
        "pool": row.pool_name,
        "pool_id": row.pool_id,
        "replica_id": row.replica_id,
        "replica": row.replica_name or None,
        "build": row.build or None,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "probes": row.probes,
        "negative_probes": row.negative_probes,
        "failure_rate_bound": None if row.failure_bound_ppm is None else row.failure_bound_ppm / 1_000_000,
        "tokens_spent": row.tokens_spent,
    }


_FILTERS = (
    OpenApiParameter("endpoint", str, description="Id or name of an endpoint."),
    OpenApiParameter("state", str, enum=list(STATES)),
)


class AuditCollection(TenantView):
    """Audits of the replicas that the tenant's endpoints use."""

    permissions = {"GET": Permission.READ, "POST": Permission.OPERATE}

    @describe("audits_list", "List isolation audits", answers=page_of(IsolationAudit), parameters=(*PAGING, *_FILTERS), tag="audits")
    def get(self, request: Request) -> Response:
        """Newest first."""
        found = AuditRun.objects.filter(tenant_id=self.tenant_id).defer("evidence", "cases")
        if (state := request.query_params.get("state")) is not None:
            if state not in STATES:
                raise Invalid(f"Use one of: {', '.join(STATES)}.", field="state")
            found = found.filter(state=state)
        if (reference := request.query_params.get("endpoint")) is not None:
            found = found.filter(endpoint_id=self._endpoint(reference, "endpoint").id)
        return self.answer(page(request, found).render(lambda row: IsolationAudit(**shown(row))))

    @describe("audits_order", "Order isolation audits", body=IsolationAuditNew, answers=AuditsOrdered, status=202, tag="audits")
    def post(self, request: Request) -> Response:
        """They begin when a worker is free and the replica's budget of the day allows it; watch their state. On a granted pool only a platform
        operator orders them."""
        wanted = parse(request, IsolationAuditNew)
        endpoint = self._endpoint(wanted.endpoint, "endpoint")
        platform, sizes = self.may(Permission.PLATFORM), running.repeated(wanted.repeat)
        made = []
        for target in targets.chosen(self.tenant_id, endpoint, wanted.replica):
            run, _ = orders.order(target=target, actor=self.actor, trigger="demand", now=timezone.now(), sizes=sizes, platform=platform)
            on_commit(self.tenant_id, run.id, run.trigger)
            made.append(IsolationAudit(**shown(run)))
        return self.answer(AuditsOrdered(results=made), status=202)

    def _endpoint(self, reference: str, field: str) -> Any:
        try:
            return queries.endpoint(self.tenant_id, reference)
        except NotFound:
            raise Invalid("There is no endpoint of this id or name.", field=field) from None


class AuditView(TenantView):
    """Base of what is read of one audit."""

    def run_of(self, reference: str) -> AuditRun:
        """The tenant's own.

        Raises:
            NotFound: absent, or another tenant's.
        """
        run_id = parse_uuid(reference.strip("/"))
        row = AuditRun.objects.filter(tenant_id=self.tenant_id, id=run_id).first() if run_id is not None else None
        if row is None:
            raise NotFound
        return row


class AuditItem(AuditView):
    """One audit."""

    permissions = {"GET": Permission.READ}

    @describe("audits_read", "Read an isolation audit", answers=IsolationAuditDetail, tag="audits")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With the verdict of every case, those that were proved elsewhere or cannot be expressed included."""
        row = self.run_of(reference)
        return self.answer(IsolationAuditDetail(**shown(row), cases=[msgspec.convert(one, AuditCase) for one in row.cases]))


class AuditExport(AuditView):
    """The signed report of one audit."""

    permissions = {"GET": Permission.READ}

    @describe("audits_export", "Export an audit's signed report", answers={"type": "object"}, tag="audits")
    def get(self, request: Request, reference: str) -> HttpResponse:
        """The file that ``manage.py audit verify`` checks: numbers and verdicts, no content. 404 until the audit has ended."""
        del request
        row = self.run_of(reference)
        if row.evidence is None or row.signature is None or row.evidence_key is None:
            raise NotFound
        document = evidence.report(row.evidence, bytes(row.signature), bytes(row.evidence_key))
        headers = {**self.default_response_headers, "Content-Disposition": f'attachment; filename="saltroute-audit-{row.id}.json"'}
        return HttpResponse(document, content_type="application/json", headers=headers)


class EvidenceKeyView(ApiView):
    """The key that signs evidence. Open to everybody: whoever was handed a report must be able to check it."""

    authentication_classes = []
    permission_classes = []

    @describe("evidence_key_read", "Read the key that signs audit reports", answers=EvidenceKey, tag="audits", in_tenant=False)
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """To hold exported reports against."""
        key: bytes | None = settings.EVIDENCE_PUBLIC_KEY
        if key is None:
            raise Unavailable("This process does not know the evidence key.")
        return self.answer(EvidenceKey(algorithm="ed25519", public_key=key.hex()))


class ReplicaRepaired(TenantView):
    """The way out of quarantine."""

    permissions = {"POST": Permission.OPERATE}

    @describe("replicas_repaired", "Say that a quarantined replica is fixed", body=Repaired, answers=changed(pool_shapes.ReplicaOut), tag="pools")
    def post(self, request: Request, reference: str) -> Response:
        """Raises the epochs of every endpoint on its pools. Two clean audits, ten minutes apart, then isolate it again."""
        wanted = parse(request, Repaired)
        row = queries.replica(self.tenant_id, reference)
        isolation.repaired(
            tenant_id=self.tenant_id, actor=self.actor, replica_id=row.id, reason=wanted.reason, flushed=wanted.flushed, now=timezone.now()
        )
        heard = queries.routers(self.tenant_id, self.tenant.config_version)
        return self.changed(rows.replica(queries.replica(self.tenant_id, str(row.id)), heard))
