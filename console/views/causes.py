"""Where requests' time went, summed."""

from __future__ import annotations

from typing import cast, get_args

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import charts
from console.access import TenantPage
from console.reads import decisions, endpoints, traffic
from console.views.decisions import IN_ORDER
from routing import queries
from routing.services.causes import By, Group, summed
from tenants import queries as tenant_queries

_PAGE_GROUPS = 24


class CausesPage(TenantPage):
    """The parts of requests' time by endpoint, scope or hour, over all requests of a range."""

    tab = "decisions"

    def get(self, request: HttpRequest) -> HttpResponse:
        asked = request.GET.get("by", "")
        by = cast(By, asked if asked in get_args(By) else "endpoint")
        span = traffic.range_named(request.GET.get("range") or ("24h" if by == "hour" else None))
        readable = None if self.caller.seat.platform else queries.own_replica_ids(self.tenant_id)
        endpoint_id = decisions.as_uuid(request.GET.get("endpoint", ""))
        now = timezone.now()
        found = summed(self.tenant_id, by=by, readable=readable, endpoint_id=endpoint_id, since=now - span.span, until=now, most=_PAGE_GROUPS)
        known = endpoints.names(self.tenant_id)
        scopes = dict(tenant_queries.scopes(self.tenant_id).values_list("id", "path")) if by == "scope" else {}
        names = {str(one): name for one, name in (known if by == "endpoint" else {key: path or "(root)" for key, path in scopes.items()}).items()}
        groups = [(_label(by, group, names), group) for group in found.groups[:_PAGE_GROUPS]]
        context = {
            "found": found,
            "by": by,
            "choices": get_args(By),
            "groups": groups,
            "ranges": traffic.RANGES,
            "span": span,
            "endpoint_names": known,
            "endpoint_id": endpoint_id,
            "left_out": found.left_out + len(found.groups) - len(groups),
            "chart": _chart(groups),
        }
        return self.page("console/causes.html", context)


def _label(by: By, group: Group, names: dict[str, str]) -> str:
    if group.of is None:
        return "none"
    return group.of[:13].replace("T", " ") + "h" if by == "hour" else names.get(group.of, group.of)


def _chart(groups: list[tuple[str, Group]]) -> charts.StackedBars | None:
    """Mean seconds of a request by part, a bar for each group."""
    if not groups:
        return None
    rows = []
    for label, group in groups:
        spent = {one.part: one.seconds / group.decisions for one in group.parts}
        rows.append((label, False, [(part, spent[part]) for part in IN_ORDER if part in spent], None))
    return charts.stacked_bars(rows, slots=IN_ORDER)
