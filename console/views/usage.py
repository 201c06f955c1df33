"""Who used how much."""

from __future__ import annotations

from datetime import date, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.access import TenantPage
from routing.core.rollup import Usage as Used
from routing.services import usage
from tenants.core.errors import Invalid

ROWS = 200
DAYS = 30
_DEFAULT_BY = ("day", "key")


class UsagePage(TenantPage):
    """Sums by day, key, scope and endpoint."""

    tab = "usage"

    def report(self, request: HttpRequest) -> usage.Report:
        """As the query string asks; what is malformed is as if it were not there, so that an old link still opens."""
        today = timezone.now().date()
        until = _day(request.GET.get("until")) or today
        since = _day(request.GET.get("since")) or date.fromordinal(max(1, until.toordinal() - DAYS))
        asked = [name for name in request.GET.getlist("by") if name in usage.DIMENSIONS]
        by = asked if asked or "since" in request.GET else _DEFAULT_BY
        try:
            return usage.report(self.tenant_id, since=since, until=until, by=by)
        except Invalid:
            return usage.report(self.tenant_id, since=today - timedelta(days=DAYS), until=today, by=by)

    def get(self, request: HttpRequest) -> HttpResponse:
        report = self.report(request)
        total = report.total
        rows = [([_place(line, name) for name in report.by], line.used, line.used.saved_us / 1e6) for line in report.lines[:ROWS]]
        context = {
            "report": report,
            "rows": rows,
            "more": len(report.lines) > ROWS,
            "dimensions": [(name, name in report.by) for name in usage.DIMENSIONS],
            "cached_share": _share(total),
            "saved_s": total.saved_us / 1e6,
            "method": usage.METHOD,
            "query": urlencode({"since": report.since.isoformat(), "until": report.until.isoformat(), "by": report.by}, doseq=True),
        }
        return self.page("console/usage.html", context)


class UsageExport(UsagePage):
    """The same lines as a file, all of them."""

    def get(self, request: HttpRequest) -> HttpResponse:
        report = self.report(request)
        if report.truncated:
            return self.refuse(Invalid(f"More than {usage.MAX_ROWS} lines: ask for fewer days, or tell less apart.", field="since"), status=400)
        name = f"saltroute-usage-{self.caller.seat.slug}-{report.since}-{report.until}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"}
        return HttpResponse(usage.as_csv(report), content_type="text/csv; charset=utf-8", headers=headers)


def _place(line: usage.Line, dimension: str) -> tuple[str, str, bool]:
    """(dimension, text, whether it is a note rather than a name)."""
    if dimension == "day":
        return dimension, line.day.isoformat() if line.day else "", False
    row_id, name = getattr(line, f"{dimension}_id"), getattr(line, dimension)
    if row_id is None:
        return dimension, "isolation audits" if dimension == "key" else "none", True
    if name is None:
        return dimension, f"deleted ({str(row_id)[:8]})", True
    return dimension, name or "(root)", False


def _share(total: Used) -> float | None:
    return total.cached_tokens / total.input_tokens if total.input_tokens else None


def _day(raw: str | None) -> date | None:
    try:
        return date.fromisoformat(raw or "")
    except ValueError:
        return None
