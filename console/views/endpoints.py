"""Endpoints: the list, and one endpoint with its identity, policies and snippets to call it."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from console.reads import alerts, endpoints, pools, routers, tokens, traffic
from routing import queries
from routing.services import captures, trials
from tenants.models import Tenant


class Endpoints(TenantPage):
    """Endpoints of the tenant by name, a page at a time; ``q`` is a part of a name."""

    tab = "endpoints"

    def get(self, request: HttpRequest) -> HttpResponse:
        part, after = (request.GET.get(name, "").replace("\0", "")[:200] for name in ("q", "after"))
        wanted = queries.endpoints(self.tenant_id).filter(name__gt=after, name__icontains=part).order_by("name")
        rows = list(wanted[: endpoints.PAGE_ROWS + 1])
        following = rows[endpoints.PAGE_ROWS - 1].name if len(rows) > endpoints.PAGE_ROWS else ""
        paging = {"part": part, "after": after, "next_query": urlencode({"q": part, "after": following}) if following else ""}
        context = {
            **paging,
            "endpoints": rows[: endpoints.PAGE_ROWS],
            "pool_names": pools.names(self.tenant_id),
            "router_url": settings.ROUTER_PUBLIC_URL,
        }
        return self.page("console/endpoints.html", context)


class EndpointPage(TenantPage):
    """One endpoint."""

    tab = "endpoints"

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        endpoint = queries.endpoint(self.tenant_id, str(endpoint_id))
        epoch = Tenant.objects.values_list("epoch", flat=True).get(id=self.tenant_id)
        found = traffic.overview(self.tenant_id, span=traffic.range_named("24h"), now=timezone.now(), endpoint_id=endpoint.id)
        whole = trials.may_read_load(self.tenant_id, endpoint, platform=self.caller.seat.platform)
        pool_name, said = pools.names(self.tenant_id).get(endpoint.grant_id, ""), routers.status(self.tenant_id)
        context = {
            "endpoint": endpoint,
            "pool_name": pool_name,
            "lacking": tokens.lacking(self.tenant_id, endpoint, said, pool=pool_name),
            "heard": bool(said.routers),
            "identity": endpoints.identity(endpoint, tenant_slug=self.caller.seat.slug, tenant_epoch=epoch),
            "traffic": found.total,
            "trial": trials.report(tenant_id=self.tenant_id, endpoint=endpoint, whole=whole, now=timezone.now()),
            "objectives": alerts.objectives(self.tenant_id, endpoint.id),
            "capture": captures.status(tenant_id=self.tenant_id, endpoint_id=endpoint.id, now=timezone.now()),
            "router_url": settings.ROUTER_PUBLIC_URL,
            "places": ("trial", "capture"),  # of messages, beside the page's top
        }
        return self.page("console/endpoint.html", context)


class EndpointByName(TenantPage):
    """The page of an endpoint by the name that clients send, for links that people write themselves. Ids stand before names."""

    tab = "endpoints"

    def get(self, request: HttpRequest, name: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        found = queries.endpoint(self.tenant_id, name)
        return HttpResponseRedirect(reverse("console:endpoint", args=[self.caller.seat.slug, found.id]))
