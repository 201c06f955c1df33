"""Isolation: the state of replicas, audits and their evidence, and what made cached blocks unreachable."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage, is_fragment
from console.reads import decisions, isolation
from routing import queries
from routing.services import endpoints
from routing.services.audits import orders, targets, wake
from tenants.core.errors import Invalid, NotFound
from tenants.core.roles import Permission


class Isolation(TenantPage):
    """Replicas, audits and identity events; POST orders audits as the API does."""

    tab = "isolation"
    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest) -> HttpResponse:
        now = timezone.now()
        operator = Permission.PLATFORM in self.caller.permissions
        runs = isolation.runs(self.tenant_id, request.GET.get("before", ""))
        refresh = is_fragment(request)  # takes the live part alone; the events below it are costly to count
        page = None if refresh else isolation.events(self.tenant_id, request.GET.get("events", ""))
        held = isolation.held(self.tenant_id, now=now, operator=operator)
        enabled = isolation.enabled(self.tenant_id)
        context = {
            "held": held,
            "quarantined": any(one.replica.isolation_state == "quarantined" for one in held),
            "granted": () if operator else isolation.granted_names(self.tenant_id),
            "budget_tokens": settings.AUDIT_TOKENS_A_DAY,
            "runs": runs.rows,
            "runs_next": runs.next,
            "runs_later": bool(request.GET.get("before")),
            "grid": None if request.GET.get("before") else isolation.grid(self.tenant_id, now=now),
            "active": any(one.state in ("queued", "running") for one in runs.rows),
            "endpoints": enabled,
            "auditable": isolation.auditable(self.tenant_id, enabled, operator=operator),
            "events": isolation.explained(self.tenant_id, page.rows) if page else (),
            "events_next": page.next if page else "",
            "events_later": bool(request.GET.get("events")),
        }
        return self.page("console/isolation.html", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        wanted = decisions.as_uuid(request.POST.get("endpoint", ""))
        if wanted is None:
            raise NotFound
        endpoint = queries.endpoint(self.tenant_id, str(wanted))
        platform = Permission.PLATFORM in self.caller.permissions
        ordered = 0
        for target in targets.chosen(self.tenant_id, endpoint, None):
            run, _ = orders.order(target=target, actor=self.actor, trigger="demand", now=timezone.now(), platform=platform)
            wake.on_commit(self.tenant_id, run.id, run.trigger)
            ordered += 1
        what = "One audit is" if ordered == 1 else f"{ordered} audits are"
        when = "A worker begins as soon as it is free and the replica's budget of the day allows it."
        messages.success(request, f"{what} ordered through {endpoint.name}, one for each replica. {when}")
        return HttpResponseRedirect(reverse("console:isolation", args=[self.caller.seat.slug]))


class AuditRunPage(TenantPage):
    """One audit with the verdict of every case."""

    tab = "isolation"

    def get(self, request: HttpRequest, run_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        run = isolation.run(self.tenant_id, run_id)
        context = {
            "run": run,
            "verdicts": isolation.verdicts(run.cases),
            "bound": None if run.failure_bound_ppm is None else run.failure_bound_ppm / 1_000_000,
            "took_s": (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else None,
            "signed": run.evidence is not None and run.signature is not None and run.evidence_key is not None,
        }
        return self.page("console/audit_run.html", context)


class AuditReport(TenantPage):
    """The signed report as a file. The API exports the same bytes; a link cannot name the tenant in a header, so it is given out here too."""

    tab = "isolation"

    def get(self, request: HttpRequest, run_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        run = isolation.run(self.tenant_id, run_id)
        headers = {"Content-Disposition": f'attachment; filename="saltroute-audit-{run.id}.json"'}
        return HttpResponse(isolation.report(run), content_type="application/json", headers=headers)


class RotateEpoch(TenantPage):
    """Rotate an endpoint's epoch: GET says what it is expected to cost, POST does it."""

    tab = "endpoints"
    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self._ask(endpoint_id)

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        reason = request.POST.get("reason", "").strip()
        try:
            with transaction.atomic():
                endpoint = endpoints.rotate_epoch(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, reason=reason)
        except Invalid as refusal:
            return self._ask(endpoint_id, reason=reason, wrong=refusal.message, status=refusal.http_status)
        messages.success(request, f"Endpoint {endpoint.name} is at epoch {endpoint.epoch}. What was cached through it before is unreachable.")
        return HttpResponseRedirect(reverse("console:isolation", args=[self.caller.seat.slug]) + "#events")

    def _ask(self, endpoint_id: UUID, *, reason: str = "", wrong: str = "", status: int = 200) -> HttpResponse:
        endpoint = queries.endpoint(self.tenant_id, str(endpoint_id))
        impact = isolation.expected(self.tenant_id, endpoint, now=timezone.now())
        context = {"endpoint": endpoint, "impact": impact, "reason": reason, "wrong": wrong}
        return self.page("console/endpoint_rotate.html", context, status=status)
