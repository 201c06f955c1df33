"""Reconciliation: what routers, engines and the database contradict each other in, and starting a run."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.access import TenantPage, is_fragment
from console.reads import reconciliation
from routing.services.reconciliation import orders
from tenants.core.roles import Permission


class Reconciliation(TenantPage):
    """The last run, findings and history; POST starts a run as the API does."""

    tab = "reconciliation"
    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest) -> HttpResponse:
        refresh = is_fragment(request)  # takes the live part alone
        past, past_next = ((), "") if refresh else reconciliation.resolved(self.tenant_id, request.GET.get("resolved", ""))
        runs = None if refresh else reconciliation.runs(self.tenant_id, request.GET.get("before", ""))
        context = {
            "now": reconciliation.overview(self.tenant_id),
            "resolved": past,
            "resolved_next": past_next,
            "resolved_later": bool(request.GET.get("resolved")),
            "runs": runs.rows if runs else (),
            "runs_next": runs.next if runs else "",
            "runs_later": bool(request.GET.get("before")),
        }
        return self.page("console/reconciliation.html", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        orders.request(tenant_id=self.tenant_id, actor=self.actor)
        messages.success(request, "A run is ordered. A worker begins at once; this page shows it when it has ended.")
        return HttpResponseRedirect(reverse("console:reconciliation", args=[self.caller.seat.slug]))
