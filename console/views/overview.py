"""The first page of a tenant, and the badge that says whether routers run its configuration."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import charts
from console.access import TenantPage
from console.reads import endpoints, routers, traffic


class Overview(TenantPage):
    """Requests, errors, time to first token and reuse over a range, for the tenant and for each endpoint."""

    tab = "overview"

    def get(self, request: HttpRequest) -> HttpResponse:
        span = traffic.range_named(request.GET.get("range"))
        found = traffic.overview(self.tenant_id, span=span, now=timezone.now())
        names = endpoints.names(self.tenant_id)
        rows: list[tuple[UUID | None, str, traffic.Traffic]]
        rows = [(key, name, found.by_endpoint.get(key, traffic.Traffic(endpoint_id=key))) for key, name in names.items()]
        rows += [(None, "", sums) for key, sums in found.by_endpoint.items() if key not in names]
        rows.sort(key=lambda row: (-row[2].requests, row[1]))
        context: dict[str, Any] = {
            "ranges": traffic.RANGES,
            "span": span,
            "overview": found,
            "rows": rows,
            "ttft_chart": charts.line_chart(
                [("p95", [point.traffic.ttft_p95_s for point in found.series]), ("p50", [point.traffic.ttft_p50_s for point in found.series])]
            ),
            "reuse_chart": charts.line_chart(
                [
                    ("predicted", [point.traffic.predicted_share for point in found.series]),
                    ("realised", [point.traffic.cached_share for point in found.series]),
                ],
                top_value=1.0,
            ),
            "router_url": settings.ROUTER_PUBLIC_URL,
        }
        return self.page("console/overview.html", context)


class Applied(TenantPage):
    """The badge "applied by N of N routers", fetched apart so that no page waits for Valkey."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/_applied.html", {"badge": routers.badge(routers.status(self.tenant_id))})
