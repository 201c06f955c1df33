"""The capture of an endpoint's traffic: switch it on, off, delete what it holds, take it away as a file."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from routing import queries
from routing.models import Endpoint
from routing.services import captures
from routing.traces.export import mooncake_lines
from tenants.core.errors import Invalid
from tenants.core.roles import Permission


class CapturePage(TenantPage):
    """Base: an endpoint, and back to its panel."""

    tab = "endpoints"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def endpoint(self, endpoint_id: UUID) -> Endpoint:
        return queries.endpoint(self.tenant_id, str(endpoint_id))

    def back(self, endpoint_id: UUID, said: str) -> HttpResponse:
        """To the panel of captures, where what was done is said and has the focus."""
        messages.success(self.request, said, extra_tags="capture")
        return HttpResponseRedirect(reverse("console:endpoint", args=[self.caller.seat.slug, endpoint_id]) + "#capture-said")


class SwitchOn(CapturePage):
    """For how long, and which share of the conversations."""

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self._form(self.endpoint(endpoint_id), "7", "10")

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        endpoint, days, percent = self.endpoint(endpoint_id), request.POST.get("days", ""), request.POST.get("percent", "")
        try:
            with transaction.atomic():
                found = captures.enable(
                    tenant_id=self.tenant_id,
                    actor=self.actor,
                    endpoint_id=endpoint_id,
                    days=_days(days),
                    share=_share(percent),
                    now=timezone.now(),
                )
        except Invalid as refusal:
            return self._form(endpoint, days, percent, field=refusal.field or "", wrong=refusal.message)
        until = f" until {found.running.ends_at:%d %B %H:%M} UTC" if found.running else ""
        return self.back(endpoint_id, f"{percent} % of {endpoint.name}'s conversations are captured{until}.")

    def _form(self, endpoint: Endpoint, days: str, percent: str, *, field: str = "", wrong: str = "") -> HttpResponse:
        limits = {"max_days": captures.MAX_DAYS, "keep_days": captures.KEEP_DAYS}
        context = {"endpoint": endpoint, "days": days, "percent": percent, "field": field, "wrong": wrong, **limits}
        return self.page("console/capture_on.html", context, status=400 if wrong else 200)


def _days(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 4):
        raise Invalid(f"Give a whole number from 1 to {captures.MAX_DAYS}.", field="days")
    return int(given)


def _share(percent: str) -> float:
    try:
        return float(percent) / 100
    except ValueError:
        raise Invalid("Give a number above 0, up to 100.", field="share") from None


class SwitchOff(CapturePage):
    """What it holds stays."""

    needs = {"POST": Permission.CONFIGURE}

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        endpoint = self.endpoint(endpoint_id)
        captures.disable(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, now=timezone.now())
        return self.back(endpoint_id, f"Nothing of {endpoint.name} is captured any more. What was captured is kept.")


class Delete(CapturePage):
    """GET asks, POST does it."""

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        found = captures.status(tenant_id=self.tenant_id, endpoint_id=endpoint_id, now=timezone.now())
        return self.page("console/capture_delete.html", {"endpoint": self.endpoint(endpoint_id), "capture": found})

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        endpoint = self.endpoint(endpoint_id)
        captures.delete(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, now=timezone.now())
        return self.back(endpoint_id, f"Everything captured of {endpoint.name} is deleted, and the key of its ids with it.")


class Export(CapturePage):
    """The same file as the API's."""

    needs = {"GET": Permission.OPERATE}

    def get(self, request: HttpRequest, endpoint_id: UUID) -> StreamingHttpResponse:  # noqa: ARG002 - the port of a view
        now = timezone.now()
        trace = captures.read_trace(tenant=self.tenant_id, endpoint_id=endpoint_id, since=now - captures.LONGEST, until=now)
        name = f"saltroute-trace-{self.caller.seat.slug}.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"}
        return StreamingHttpResponse(mooncake_lines(trace), content_type="application/x-ndjson", headers=headers)
