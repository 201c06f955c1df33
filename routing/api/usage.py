"""Usage, and how long records are kept."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Annotated
from uuid import UUID

import msgspec
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing.core.rollup import Usage
from routing.services import retention, usage
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.schema import changed
from tenants.core.errors import Invalid
from tenants.core.roles import Permission

DEFAULT_DAYS = 30


class UsageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was used. ``input_tokens`` include the cached ones; all three counts are the engines' own."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    engine_seconds_saved: float  # an estimate; see the method


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one day, key, scope and endpoint, as far as they were asked apart. Isolation audits of the product's own are in none."""

    day: date | None
    key_id: UUID | None
    key: str | None
    scope_id: UUID | None
    scope: str | None
    endpoint_id: UUID | None
    endpoint: str | None
    used: UsageFigures


class UsageOut(msgspec.Struct, frozen=True, kw_only=True):
    """Days are of UTC, both included. ``total`` is of all lines, also where there are too many to list."""

    since: date
    until: date
    by: list[str]
    lines: list[UsageLine]
    total: UsageFigures
    truncated: bool
    saved_method: str


class RouterRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one router process. ``missing`` were numbered and neither stored nor refused: lost, or still on the way."""

    router_id: str
    started_at: datetime
    last_at: datetime
    numbered: int
    stored: int
    refused: int
    missing: int


class RecordsOut(msgspec.Struct, frozen=True, kw_only=True):
    """How long decisions are kept. ``routers`` is for platform operators alone: routers serve every tenant."""

    keep_days: int
    platform_days: int
    oldest: datetime | None
    routers: list[RouterRecords] | None


class RecordsChange(Body):
    """How long to keep decisions. Rollups and usage stay."""

    keep_days: Annotated[int, msgspec.Meta(ge=1, le=3650)]


_RANGE = (
    OpenApiParameter("since", date, description=f"First day, UTC; {DEFAULT_DAYS} days back without it."),
    OpenApiParameter("until", date, description="Last day, included; today without it."),
    OpenApiParameter("by", str, description=f"What to tell apart, separated by commas: {', '.join(usage.DIMENSIONS)}. All of it without this."),
)


class UsageView(TenantView):
    """Base of what is read of usage."""

    def report(self, request: Request) -> usage.Report:
        """As the query asks."""
        today = timezone.now().date()
        until = _day(request, "until") or today
        since = _day(request, "since") or until - timedelta(days=DEFAULT_DAYS)
        said = request.query_params.get("by")
        by = usage.DIMENSIONS if said is None else tuple(name.strip() for name in said.split(",") if name.strip())
        return usage.report(self.tenant_id, since=since, until=until, by=by)


class UsageCollection(UsageView):
    """Who used how much."""

    permissions = {"GET": Permission.READ}

    @describe("usage_read", "Read usage", answers=UsageOut, parameters=_RANGE, tag="usage")
    def get(self, request: Request) -> Response:
        """By day, key, scope and endpoint: sums of the records, to the token."""
        found = self.report(request)
        lines = [
            UsageLine(
                day=one.day,
                key_id=one.key_id,
                key=one.key,
                scope_id=one.scope_id,
                scope=one.scope,
                endpoint_id=one.endpoint_id,
                endpoint=one.endpoint,
                used=_figures(one.used),
            )
            for one in found.lines
        ]
        return self.answer(
            UsageOut(
                since=found.since,
                until=found.until,
                by=list(found.by),
                lines=lines,
                total=_figures(found.total),
                truncated=found.truncated,
                saved_method=usage.METHOD,
            )
        )


class UsageExport(UsageView):
    """The same as a file."""

    permissions = {"GET": Permission.READ}

    @describe("usage_export", "Export usage as CSV", answers={"type": "string"}, parameters=_RANGE, tag="usage")
    def get(self, request: Request) -> HttpResponse:
        """For spreadsheets; refused where there are more lines than one answer holds."""
        found = self.report(request)
        if found.truncated:
            raise Invalid(f"More than {usage.MAX_ROWS} lines: ask for fewer days, or tell less apart.", field="since")
        name = f"saltroute-usage-{self.tenant.slug}-{found.since}-{found.until}.csv"
        headers = {**self.default_response_headers, "Content-Disposition": f'attachment; filename="{name}"'}
        return HttpResponse(usage.as_csv(found), content_type="text/csv; charset=utf-8", headers=headers)


class RecordsView(TenantView):
    """How long decisions are kept, and what was lost on their way."""

    permissions = {"GET": Permission.READ, "PATCH": Permission.CONFIGURE}

    @describe("records_read", "See how long decisions are kept", answers=RecordsOut, tag="decisions")
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """And, for platform operators, how many records of each router never came."""
        return self.answer(self._shown(retention.kept(self.tenant_id)))

    @describe("records_change", "Set how long decisions are kept", body=RecordsChange, answers=changed(RecordsOut), tag="decisions")
    def patch(self, request: Request) -> Response:
        """Within the platform's bound; what is older goes within the hour."""
        wanted = parse(request, RecordsChange)
        return self.changed(self._shown(retention.set_days(tenant_id=self.tenant_id, actor=self.actor, keep_days=wanted.keep_days)))

    def _shown(self, kept: retention.Kept) -> RecordsOut:
        routers = None
        if self.may(Permission.PLATFORM):
            routers = [
                RouterRecords(
                    router_id=one.router_id,
                    started_at=one.started_at,
                    last_at=one.last_at,
                    numbered=one.numbered,
                    stored=one.stored,
                    refused=one.refused,
                    missing=one.missing,
                )
                for one in retention.accounts()
            ]
        return RecordsOut(keep_days=kept.keep_days, platform_days=kept.platform_days, oldest=kept.oldest, routers=routers)


def _figures(used: Usage) -> UsageFigures:
    return UsageFigures(
        requests=used.requests,
        input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
        engine_seconds_saved=used.saved_us / 1e6,
    )


def _day(request: Request, name: str) -> date | None:
    raw = request.query_params.get(name)
    if raw is None:
        return None
    try:
        day = date.fromisoformat(raw) if len(raw) == len("2027-01-31") else None
    except ValueError:
        day = None
    if day is None:
        raise Invalid("Use a day such as 2027-01-31.", field=name)
    return day
