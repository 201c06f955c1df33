"""Trace captures of an endpoint: state, on, off, delete, and what was captured as a file."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api.decisions import moment
from routing.services import captures
from routing.traces.export import mooncake_lines
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.schema import changed
from tenants.core.errors import NotFound
from tenants.core.roles import Permission
from tenants.queries import parse_uuid

FORMAT = "application/x-ndjson"


class CaptureOn(Body):
    """For how long, and which share of the conversations. It ends by itself."""

    days: Annotated[int, msgspec.Meta(ge=1, le=captures.MAX_DAYS)]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)]


class CaptureOut(msgspec.Struct, frozen=True, kw_only=True):
    """One capture. ``estimated``: requests whose tokens were counted as four bytes each. ``lost``: numbered by routers and not stored."""

    id: UUID
    share: float
    began_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    end_reason: str
    begun_by: str
    requests: int
    estimated: int
    lost: int
    size_bytes: int


class CaptureStatusOut(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's captures, newest first. The budget is for all of the tenant's."""

    endpoint_id: UUID
    state: Literal["off", "running", "ended"]
    captures: list[CaptureOut]
    used_bytes: int
    budget_bytes: int


def shown(found: captures.Status) -> CaptureStatusOut:
    """A status as the API answers it."""
    return msgspec.convert(found, CaptureStatusOut, from_attributes=True)


class CaptureView(TenantView):
    """Base: an endpoint, which may be gone while something of it is kept."""

    def endpoint_id(self, reference: str) -> UUID:
        """The endpoint's id.

        Raises:
            NotFound: no such endpoint, and nothing kept of one of this id.
        """
        try:
            return queries.endpoint(self.tenant_id, reference).id
        except NotFound:
            gone = parse_uuid(reference.strip("/"))
            if gone is None:
                raise
            return captures.endpoint_id_of(self.tenant_id, gone)


class EndpointCapture(CaptureView):
    """Whether an endpoint's traffic is captured."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}

    @describe("endpoints_capture_read", "See what is captured of an endpoint", answers=CaptureStatusOut, tag="traces")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Off for every endpoint until somebody switches it on."""
        found = captures.status(tenant_id=self.tenant_id, endpoint_id=self.endpoint_id(reference), now=timezone.now())
        return self.answer(shown(found))

    @describe(
        "endpoints_capture_on", "Capture a share of an endpoint's conversations", body=CaptureOn, answers=changed(CaptureStatusOut), tag="traces"
    )
    def post(self, request: Request, reference: str) -> Response:
        """Times, lengths and block ids under a key of this capture; nothing of what is said."""
        wanted = parse(request, CaptureOn)
        found = captures.enable(
            tenant_id=self.tenant_id,
            actor=self.actor,
            endpoint_id=queries.endpoint(self.tenant_id, reference).id,
            days=wanted.days,
            share=wanted.share,
            now=timezone.now(),
        )
        return self.changed(shown(found))

    @describe("endpoints_capture_delete", "Delete everything captured of an endpoint", answers=changed(CaptureStatusOut), tag="traces")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Ends a running capture too. The key goes first: ids that are left anywhere mean nothing from then on."""
        endpoint_id = self.endpoint_id(reference)
        return self.changed(shown(captures.delete(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, now=timezone.now())))


class EndpointCaptureStop(CaptureView):
    """The end of a running capture."""

    permissions = {"POST": Permission.CONFIGURE}

    @describe("endpoints_capture_stop", "Switch an endpoint's capture off", answers=changed(CaptureStatusOut), tag="traces")
    def post(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """What it holds stays until its time is over or somebody deletes it. Where none runs nothing changes."""
        endpoint_id = self.endpoint_id(reference)
        return self.changed(shown(captures.disable(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, now=timezone.now())))


class EndpointCaptureExport(CaptureView):
    """What was captured, as a file."""

    permissions = {"GET": Permission.OPERATE}

    @describe(
        "endpoints_capture_export",
        "Download what was captured of an endpoint",
        answers={"type": "string"},
        parameters=(
            OpenApiParameter("since", datetime, description="Began at or after; everything that is kept without it."),
            OpenApiParameter("until", datetime, description="Began before; now without it."),
        ),
        tag="traces",
    )
    def get(self, request: Request, reference: str) -> StreamingHttpResponse:
        """Mooncake's JSON lines, for `manage.py trace`: ids numbered anew, times from the first request on, no name of anything of yours."""
        now = timezone.now()
        trace = captures.read_trace(
            tenant=self.tenant_id,
            endpoint_id=self.endpoint_id(reference),
            since=moment(request.query_params.get("since"), "since") or now - captures.LONGEST,
            until=moment(request.query_params.get("until"), "until") or now,
        )
        headers = {**self.default_response_headers, "Content-Disposition": f'attachment; filename="saltroute-trace-{self.tenant.slug}.jsonl"'}
        return StreamingHttpResponse(mooncake_lines(trace), content_type=FORMAT, headers=headers)
