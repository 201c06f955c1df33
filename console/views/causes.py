"""Where requests' time went, summed."""

from __future__ import annotations

from typing import cast, get_args

from django.http import HttpRequest, HttpResponse

from console import charts
from console.access import TenantPage
from console.reads import decisions, endpoints
from console.views.decisions import IN_ORDER
from routing import queries
from routing.services.causes import By, Group, summed

_PAGE_GROUPS = 24


class CausesPage(TenantPage):
    """The parts of requests' time by endpoint, scope or hour. The newest 5,000 decisions of the last hour; of the last day by hour."""

    tab = "decisions"

    def get(self, request: HttpRequest) -> HttpResponse:
        asked = request.GET.get("by", "")
        by = cast(By, asked if asked in get_args(By) else "endpoint")
        readable = None if self.caller.seat.platform else queries.own_replica_ids(self.tenant_id)
        endpoint_id = decisions.as_uuid(request.GET.get("endpoint", ""))
        found = summed(self.tenant_id, by=by, readable=readable, endpoint_id=endpoint_id, hours=24 if by == "hour" else 1)
        names = {str(one): name for one, name in endpoints.names(self.tenant_id).items()}
        groups = [(_label(by, group, names), group) for group in found.groups[:_PAGE_GROUPS]]
        context = {
            "found": found,
            "by": by,
            "choices": get_args(By),
            "groups": groups,
            "left_out": len(found.groups) - len(groups),
            "chart": _chart(groups),
        }
        return self.page("console/causes.html", context)


def _label(by: By, group: Group, names: dict[str, str]) -> str:
    if group.of is None:
        return "none"
    return names.get(group.of, group.of) if by == "endpoint" else group.of[:13].replace("T", " ") + "h" if by == "hour" else group.of


def _chart(groups: list[tuple[str, Group]]) -> charts.StackedBars | None:
    """Mean seconds of a request by part, a bar for each group."""
    if not groups:
        return None
    rows = []
    for label, group in groups:
        spent = {one.part: one.seconds / group.decisions for one in group.parts}
        rows.append((label, False, [(part, spent[part]) for part in IN_ORDER if part in spent], None))
    return charts.stacked_bars(rows, slots=IN_ORDER)
