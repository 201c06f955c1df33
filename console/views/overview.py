"""The first page of a tenant, and the badge that says whether routers run its configuration."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import plots
from console.access import TenantPage
from console.plots import Line, Plot
from console.reads import decisions, endpoints, happened, measured, routers, traffic
from tenants import queries as tenant_queries

MAX_OPTIONS = 200  # endpoints and scopes that are offered as a list; of more the name is typed


class Overview(TenantPage):
    """Requests, errors, time to first token and reuse over a range, for the tenant, for each endpoint, and what replicas did."""

    tab = "overview"

    def get(self, request: HttpRequest) -> HttpResponse:
        now = timezone.now()
        span = traffic.range_named(request.GET.get("range"))
        names = endpoints.names(self.tenant_id)
        scopes = dict(tenant_queries.scopes(self.tenant_id).order_by("path").values_list("id", "path")[:MAX_OPTIONS])
        endpoint_id = _wanted(request.GET.get("endpoint", ""), names)
        scope_id = decisions.as_uuid(request.GET.get("scope", ""))
        scope_id = scope_id if scope_id in scopes else None
        found = traffic.overview(self.tenant_id, span=span, now=now, endpoint_id=endpoint_id, scope_id=scope_id)
        marks = happened.markers(self.tenant_id, since=found.since, until=now, endpoint_id=endpoint_id)
        drawn = _plots(found, endpoints.targets(self.tenant_id, endpoint_id))
        whole = scope_id is None and endpoint_id is None
        by_endpoint = traffic.by_part(self.tenant_id, "endpoint", span=span, now=now) if whole else None
        by_scope = traffic.by_part(self.tenant_id, "scope", span=span, now=now) if whole else None
        context: dict[str, Any] = {
            "ranges": traffic.RANGES,
            "span": span,
            "overview": found,
            "kept": {"endpoint": endpoint_id or "", "scope": scope_id or ""},
            "endpoint_names": names,
            "endpoint_id": endpoint_id,
            "many_endpoints": len(names) > MAX_OPTIONS,
            "scopes": scopes,
            "scope_id": scope_id,
            "rows": _rows(by_endpoint, names) if by_endpoint is not None else [(endpoint_id, names[endpoint_id], found.total)] if endpoint_id else [],
            "others": 0 if by_endpoint is None else by_endpoint.others,
            "scope_rows": [] if by_scope is None else _scope_rows(by_scope, self.tenant_id),
            "other_scopes": 0 if by_scope is None else by_scope.others,
            "replicas": measured.listed(self.tenant_id, since=found.since, until=now),
            "loads": {},
            "live": False,
            "plots": drawn,
            "markers": marks,
            "document": plots.document([point.start for point in found.series], drawn, marks),
            "router_url": settings.ROUTER_PUBLIC_URL,
        }
        return self.page("console/overview.html", context)


def _wanted(asked: str, names: dict[UUID, str]) -> UUID | None:
    """The endpoint that is asked for by id or by name; anything unknown is none."""
    as_id = decisions.as_uuid(asked)
    if as_id is not None:
        return as_id if as_id in names else None
    return next((key for key, name in names.items() if name == asked), None)


def _rows(found: traffic.Ranked, names: dict[UUID, str]) -> list[tuple[UUID | None, str, traffic.Traffic]]:
    """Those with most requests first, then those without any, as far as there is room."""
    rows = [(key if key in names else None, names.get(key, "a deleted endpoint") if key else "", sums) for key, sums in found.rows.items()]
    seen = set(found.rows)
    if not found.others:
        rows += [(key, name, traffic.Traffic()) for key, name in names.items() if key not in seen]
    rows.sort(key=lambda row: (-row[2].requests, row[1]))
    return rows[: traffic.MAX_PARTS]


def _scope_rows(found: traffic.Ranked, tenant_id: UUID) -> list[tuple[UUID | None, str, traffic.Traffic]]:
    """Those with most requests first; nothing where all requests act in one scope."""
    if len(found.rows) < 2:
        return []
    paths = dict(tenant_queries.scopes(tenant_id).filter(id__in=[one for one in found.rows if one]).values_list("id", "path"))
    rows = [
        (key if key in paths else None, (paths[key] or "(root)") if key in paths else "a deleted scope" if key else "", sums)
        for key, sums in found.rows.items()
    ]
    return sorted(rows, key=lambda row: (-row[2].requests, row[1]))


def _plots(found: traffic.Overview, targets: list[float]) -> list[Plot]:
    points = [point.traffic for point in found.series]
    widths = [point.width_s for point in found.series]
    limits = [("objective" if len(targets) == 1 else f"objective {number}", target) for number, target in enumerate(targets, start=1)]
    return [
        Plot(
            "ttft",
            "Time to first token",
            "of streamed answers",
            "seconds",
            "No streamed answer in this range: only those have a time to first token.",
            [
                Line("p50", [one.ttft_p50_s for one in points]),
                Line("p95", [one.ttft_p95_s for one in points]),
                Line("p99", [one.ttft_p99_s for one in points]),
            ],
            limits,
        ),
        Plot(
            "reuse",
            "Reuse of cached prefixes",
            "share of prompt tokens",
            "share",
            "No engine reported cached tokens in this range.",
            [
                Line("realised", [one.cached_share for one in points]),
                Line("predicted", [one.predicted_share for one in points]),
                Line("ceiling", [one.ceiling_share for one in points]),
            ],
        ),
        Plot(
            "requests",
            "Requests",
            "a second",
            "rate",
            "No request in this range.",
            [
                Line("requests", [one.requests / width for one, width in zip(points, widths, strict=True)]),
                Line("failed", [one.failed / width for one, width in zip(points, widths, strict=True)]),
                Line("refused", [one.refused / width for one, width in zip(points, widths, strict=True)]),
            ],
        ),
        Plot(
            "saved",
            "GPU time saved by reuse",
            "GPU seconds a second, an estimate: cached tokens at the replica's learned prefill rate, one GPU for each engine",
            "rate",
            "No engine reported cached tokens in this range.",
            [Line("saved", [one.saved_s / width if one.prompt_tokens else None for one, width in zip(points, widths, strict=True)])],
        ),
    ]


class Residency(TenantPage):
    """The table of replicas with what routers say of them now, fetched apart: the overview itself waits for no Valkey."""

    tab = "overview"

    def get(self, request: HttpRequest) -> HttpResponse:
        now = timezone.now()
        span = traffic.range_named(request.GET.get("range"))
        replicas = measured.listed(self.tenant_id, since=traffic.floor(now - span.span, span.grid_s), until=now)
        loads = routers.loads(routers.status(self.tenant_id))
        return self.page("console/_replica_measures.html", {"replicas": replicas, "loads": loads, "live": True, "span": span})


class Applied(TenantPage):
    """The badge "applied by N of N routers", fetched apart so that no page waits for Valkey."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/_applied.html", {"badge": routers.badge(routers.status(self.tenant_id))})
