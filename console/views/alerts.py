"""Alerts: what fires, how objectives are kept, and the webhooks that hear of it."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.access import TenantPage, is_fragment
from console.reads import alerts
from routing.services import webhooks
from tenants.core.roles import Permission


class Alerts(TenantPage):
    """What fires, and for those who configure the webhooks: an address may be a secret of its own."""

    tab = "alerts"

    def get(self, request: HttpRequest) -> HttpResponse:
        refresh = is_fragment(request)  # takes the live part alone
        past, past_next = ((), "") if refresh else alerts.resolved(self.tenant_id, request.GET.get("resolved", ""))
        objectives = sorted(alerts.objectives(self.tenant_id), key=lambda one: -one.worst_rate)
        context = {
            "firing": alerts.firing(self.tenant_id),
            "objectives": objectives[: alerts.OBJECTIVE_ROWS],
            "objectives_left": max(0, len(objectives) - alerts.OBJECTIVE_ROWS),
            "resolved": past,
            "resolved_next": past_next,
            "resolved_later": bool(request.GET.get("resolved")),
            "webhooks": alerts.webhooks(self.tenant_id) if self.caller.can_configure and not refresh else (),
            "deliveries": alerts.deliveries(self.tenant_id) if self.caller.can_configure and not refresh else (),
        }
        return self.page("console/alerts.html", context)


class WebhookTest(TenantPage):
    """Send a test message."""

    tab = "alerts"
    needs = {"POST": Permission.CONFIGURE}

    def post(self, request: HttpRequest, webhook_id: UUID) -> HttpResponse:
        webhooks.send_test(tenant_id=self.tenant_id, actor=self.actor, webhook_id=webhook_id)
        messages.success(request, "A test message is queued. A worker sends it at once; it shows below with what came of it.")
        return HttpResponseRedirect(reverse("console:alerts", args=[self.caller.seat.slug]) + "#deliveries")
