"""Decisions, routers and the tenant's status."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast, get_args

import msgspec
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import rows, shapes
from routing.core.record import Outcome
from routing.services.disclosure import Disclosed, disclose
from tenants.api.base import TenantView, describe
from tenants.api.pagination import page
from tenants.api.schema import PAGING, page_of
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid, NotFound
from tenants.core.roles import Permission
from tenants.queries import key, parse_uuid

_FILTERS = (
    OpenApiParameter("endpoint", str, description="Id or name of an endpoint; the id of a deleted one too."),
    OpenApiParameter("key", str, description="Id or name of an inference key."),
    OpenApiParameter("replica", str, description="Id or name of an own replica."),
    OpenApiParameter("outcome", str, enum=list(get_args(Outcome))),
    OpenApiParameter("since", datetime, description="Started at or after; RFC 3339 with a time zone."),
    OpenApiParameter("until", datetime, description="Started before."),
    OpenApiParameter("slower_than_ms", int, description="Time to first token above this."),
    OpenApiParameter("audits", str, enum=list(get_args(queries.Audits)), description="Probes of isolation audits: none of them without it."),
    OpenApiParameter("order", str, enum=["newest", "slowest"], description="Newest first without it; slowest by time to first token."),
)


class DecisionView(TenantView):
    """Base of what is read of decisions."""

    def readable(self) -> set[str] | None:
        """Ids of the replicas that may be named to the caller; None is all."""
        return None if self.may(Permission.PLATFORM) else queries.own_replica_ids(self.tenant_id)


class DecisionCollection(DecisionView):
    """Why requests went where they went."""

    permissions = {"GET": Permission.READ}

    @describe("decisions_list", "List decisions", answers=page_of(shapes.DecisionOut), parameters=(*PAGING, *_FILTERS), tag="decisions")
    def get(self, request: Request) -> Response:
        """Narrowed by any of the filters together."""
        order = word(request, "order", ("newest", "slowest")) or "newest"
        found = queries.decisions(self.tenant_id, self._filter(request))
        readable = self.readable()
        if order == "slowest":
            found = found.filter(ttft_s__isnull=False)
        answer = page(request, found, by="-started_at" if order == "newest" else "-ttft_s")
        return self.answer(answer.render(lambda row: rows.decision(row, readable)))

    def _filter(self, request: Request) -> queries.DecisionFilter:
        query = request.query_params
        slower = query.get("slower_than_ms")
        if slower is not None and not (slower.isascii() and slower.isdigit() and len(slower) < 10):
            raise Invalid("Use a whole number of milliseconds.", field="slower_than_ms")
        return queries.DecisionFilter(
            endpoint_id=reference(query.get("endpoint"), lambda ref: queries.endpoint(self.tenant_id, ref).id, "endpoint"),
            key_id=reference(query.get("key"), lambda ref: key(self.tenant_id, Kind.INFERENCE, ref).id, "key"),
            replica_id=self._replica(query.get("replica")),
            outcome=word(request, "outcome", get_args(Outcome)),
            since=moment(query.get("since"), "since"),
            until=moment(query.get("until"), "until"),
            slower_than_s=None if slower is None else int(slower) / 1000,
            audits=cast(queries.Audits, word(request, "audits", get_args(queries.Audits)) or "none"),
        )

    def _replica(self, reference: str | None) -> str | None:
        # Asking by a foreign replica's id would tell which decisions went there.
        if reference is None:
            return None
        if self.may(Permission.PLATFORM) and parse_uuid(reference) is not None:
            return reference
        try:
            return str(queries.replica(self.tenant_id, reference).id)
        except NotFound:
            raise Invalid("You have no replica of this id or name.", field="replica") from None


def reference(given: str | None, find: Any, field: str) -> Any:
    """The id that a reference means; an id is taken as it is, since its object may be gone."""
    if given is None:
        return None
    row_id = parse_uuid(given)
    if row_id is not None:
        return row_id
    try:
        return find(given)
    except NotFound:
        raise Invalid("There is none of this name.", field=field) from None


def word(request: Request, name: str, allowed: tuple[str, ...]) -> str | None:
    value = request.query_params.get(name)
    if value is not None and value not in allowed:
        raise Invalid(f"Use one of: {', '.join(allowed)}.", field=name)
    return value


def moment(raw: str | None, field: str) -> datetime | None:
    if raw is None:
        return None
    try:
        moment = parse_datetime(raw.replace(" ", "+"))  # a plus sign that nobody escaped
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Invalid("Use RFC 3339 with a time zone, such as 2027-01-31T12:00:00Z.", field=field)
    return moment


class DecisionDetail(shapes.DecisionOut, frozen=True, kw_only=True):
    """One request with everything that was weighed."""

    decision: Disclosed


class DecisionItem(DecisionView):
    """One decision."""

    permissions = {"GET": Permission.READ}

    @describe("decisions_read", "Read a decision", answers=DecisionDetail, tag="decisions")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With its candidates. On a pool of the platform's: own terms and one rounded wait, no replica by name and no load of others."""
        decision_id = parse_uuid(reference.strip("/"))
        if decision_id is None:
            raise NotFound
        row, record = queries.decision(self.tenant_id, decision_id)
        readable = self.readable()
        return self.answer(
            {**msgspec.to_builtins(rows.decision(row, readable)), "decision": msgspec.to_builtins(disclose(record, own_replica_ids=readable))}
        )


class RoutersView(TenantView):
    """Which routers run the newest configuration."""

    permissions = {"GET": Permission.READ}

    @describe("routers_read", "See which routers applied the newest configuration", answers=shapes.RoutersOut, tag="status")
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """From the routers' own reports, which expire within seconds."""
        found = queries.routers(self.tenant_id, self.tenant.config_version)
        return self.answer(rows.routers(found, platform=self.may(Permission.PLATFORM)))


class StatusView(TenantView):
    """The tenant at a glance."""

    permissions = {"GET": Permission.READ}

    @describe("status_read", "See the tenant at a glance", answers=shapes.StatusOut, tag="status")
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """Versions, and what there is."""
        found = queries.routers(self.tenant_id, self.tenant.config_version)
        pools = queries.usable_pools(self.tenant_id)
        states: dict[str, int] = {}
        for pool in pools:
            for state, count in pool.replicas.items():
                states[state] = states.get(state, 0) + count
        return self.answer(
            shapes.StatusOut(
                tenant=self.tenant.slug,
                suspended=self.tenant.suspended,
                config_version=self.tenant.config_version,
                published_version=found.published_version,
                applied=found.summary,
                endpoints=queries.endpoints(self.tenant_id).count(),
                pools=len(pools),
                replicas=states,
            )
        )
