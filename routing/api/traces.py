"""Traces that a tenant sends, and jobs over them or over captured traffic."""

from __future__ import annotations

from datetime import datetime
from typing import IO, Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from routing.models import TraceFile, TraceJob
from routing.services.traces import files, jobs, reading
from routing.services.traces.jobs import Input
from routing.trace_job_models import KINDS, STATES
from routing.traces.work import MAX_POLICIES, MAX_REPLAYS, MAX_REPLICAS
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.errors import TooLarge
from tenants.api.pagination import filtered, page
from tenants.api.schema import PAGING, page_of
from tenants.core.roles import Permission

TAG = "traces"
Speed = Annotated[float, msgspec.Meta(gt=0, le=100)]
Speeds = Annotated[list[Speed], msgspec.Meta(min_length=1, max_length=MAX_REPLICAS, description="One factor for each replica; 1 is the model's own.")]
Hours = Annotated[float, msgspec.Meta(gt=0, le=jobs.MAX_HOURS, description="Of captured traffic, back from now; 24 without it.")]
CacheTokens = Annotated[int, msgspec.Meta(ge=1024, le=1 << 30, description="KV cache of each replica.")]
Policy = str | dict[str, Any]


class TraceFileOut(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was sent. Kept are numbers alone; ``timed`` false: it has no times, and made-up ones stand for them."""

    id: UUID
    name: str
    requests: int
    prompt_tokens: int
    block_tokens: int
    timed: bool
    span_s: float
    size_bytes: int
    created_at: datetime
    created_by: str


class TraceJobOut(msgspec.Struct, frozen=True, kw_only=True):
    """A job and how far it is: ``done`` of ``total`` steps, each a request in one run. ``sentence`` is the outcome of a review."""

    id: UUID
    kind: str
    state: str
    input: str
    file_id: UUID | None
    endpoint_id: UUID | None
    since: datetime | None
    until: datetime | None
    parameters: dict[str, Any]
    requested_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    done: int
    total: int
    share: float | None
    expected_end: datetime | None
    attempts: int
    spent_s: float
    error: str


class TraceAnalysisNew(Body):
    """What to analyse: a trace (``file``) or an endpoint's captured traffic."""

    file: str | None = None
    endpoint: str | None = None
    hours: Hours | None = None
    limit_blocks: (
        Annotated[int, msgspec.Meta(ge=1000, le=2_000_000, description="Beyond so many distinct blocks figures come from a sample.")] | None
    ) = None


class TraceReplayNew(Body):
    """What to replay under which policies. The fleet is the endpoint's as far as it is known, and as stated here where it is stated."""

    policies: Annotated[list[Policy], msgspec.Meta(min_length=1, max_length=MAX_POLICIES)]
    file: str | None = None
    endpoint: str | None = None
    hours: Hours | None = None
    speeds: Speeds | None = None
    cache_tokens: CacheTokens | None = None
    residency: Literal["events", "history"] | None = None
    slo_ttft_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    speedup: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1


class TraceReviewNew(Body):
    """A candidate beside the endpoint's present policy, over its captured traffic, or over a trace (``file``) if one is given."""

    endpoint: str
    candidate: Policy
    hours: Hours | None = None
    file: str | None = None
    replays: Annotated[int, msgspec.Meta(ge=2, le=MAX_REPLAYS, description="Of each policy.")] | None = None
    speeds: Speeds | None = None
    cache_tokens: CacheTokens | None = None


def shown_file(row: TraceFile) -> TraceFileOut:
    return TraceFileOut(**{name: getattr(row, name) for name in TraceFileOut.__struct_fields__})


def shown(row: TraceJob) -> TraceJobOut:
    own: dict[str, Any] = {"input": row.input_name, "share": reading.share(row), "expected_end": reading.expected_end(row, timezone.now())}
    return TraceJobOut(**{name: getattr(row, name) for name in TraceJobOut.__struct_fields__ if name not in own}, **own)


class TraceParser(BaseParser):
    """A trace as it is, plain or gzip, up to its bound."""

    media_type = "application/octet-stream"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:  # noqa: ARG002 - DRF's signature
        """Read the whole body, as ``content``."""
        raw = stream.read(files.MAX_UPLOAD_BYTES + 1)
        if len(raw) > files.MAX_UPLOAD_BYTES:
            raise TooLarge(f"The body is larger than {files.MAX_UPLOAD_BYTES} bytes; send it packed (gzip).")
        return {"content": raw}


class TraceFileCollection(TenantView):
    """Traces that were sent."""

    permissions = {"GET": Permission.READ, "POST": Permission.OPERATE}
    parser_classes = [TraceParser]
    max_body_bytes = files.MAX_UPLOAD_BYTES

    @describe("trace_files_list", "List traces", answers=page_of(TraceFileOut), parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.answer(page(request, files.files(self.tenant_id)).render(shown_file))

    @describe(
        "trace_files_send",
        "Send a trace",
        body={"application/octet-stream": bytes},
        answers=TraceFileOut,
        status=201,
        parameters=(OpenApiParameter("name", str, description="What it is called; it may end like a file of its format.", required=True),),
        tag=TAG,
    )
    def post(self, request: Request) -> Response:
        """Mooncake's JSON lines, as our export of a capture too, an agent session, or OpenAI-style JSON lines; plain or gzip. Text is not kept."""
        content = cast(dict[str, Any], request.data).get("content", b"")
        row = files.store(tenant_id=self.tenant_id, actor=self.actor, name=request.query_params.get("name", ""), content=content)
        return self.answer(shown_file(row), status=201)


class TraceFileItem(TenantView):
    """One trace, by id or name."""

    permissions = {"GET": Permission.READ, "DELETE": Permission.OPERATE}

    @describe("trace_files_read", "Read what is known of a trace", answers=TraceFileOut, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its size, not its content."""
        return self.answer(shown_file(files.file(self.tenant_id, reference)))

    @describe("trace_files_delete", "Delete a trace", answers=TraceFileOut, tag=TAG)
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Refused while a job needs it. What was found in it stays."""
        row = files.file(self.tenant_id, reference)
        answer = shown_file(row)
        files.delete(tenant_id=self.tenant_id, actor=self.actor, file_id=row.id)
        return self.answer(answer)


_FILTERS = (OpenApiParameter("kind", str, enum=list(KINDS)), OpenApiParameter("state", str, enum=list(STATES)))


class TraceJobCollection(TenantView):
    """Jobs."""

    permissions = {"GET": Permission.READ}

    @describe("trace_jobs_list", "List jobs over traces", answers=page_of(TraceJobOut), parameters=(*PAGING, *_FILTERS), tag=TAG)
    def get(self, request: Request) -> Response:
        """Newest first; kept for thirty days, two hundred at most."""
        return self.answer(page(request, filtered(request, jobs.jobs(self.tenant_id), _FILTERS)).render(shown))


class TraceAnalyses(TenantView):
    """Analyses."""

    permissions = {"POST": Permission.OPERATE}

    @describe("trace_jobs_analyze", "Analyse a trace", body=TraceAnalysisNew, answers=TraceJobOut, status=202, tag=TAG)
    def post(self, request: Request) -> Response:
        """Ceilings by scope, capacity curve, reuse gaps, concentration, where prompts part, class and advice."""
        wanted = parse(request, TraceAnalysisNew)
        of = Input(file=wanted.file, endpoint=wanted.endpoint, hours=wanted.hours)
        row = jobs.analyze(tenant_id=self.tenant_id, actor=self.actor, of=of, limit_blocks=wanted.limit_blocks)
        return self.answer(shown(row), status=202)


class TraceReplays(TenantView):
    """Replays."""

    permissions = {"POST": Permission.OPERATE}

    @describe("trace_jobs_replay", "Replay policies on a trace", body=TraceReplayNew, answers=TraceJobOut, status=202, tag=TAG)
    def post(self, request: Request) -> Response:
        """Each policy over the same requests in simulated time: times to first token, hits beside the ceiling, share within the objective."""
        wanted = parse(request, TraceReplayNew)
        given = {name: getattr(wanted, name) for name in ("speeds", "cache_tokens", "residency", "slo_ttft_s", "speedup", "seed")}
        of = Input(file=wanted.file, endpoint=wanted.endpoint, hours=wanted.hours)
        row = jobs.replay(tenant_id=self.tenant_id, actor=self.actor, of=of, policies_wanted=wanted.policies, **given)
        return self.answer(shown(row), status=202)


class TraceReviews(TenantView):
    """Reviews of a candidate policy."""

    permissions = {"POST": Permission.OPERATE}

    @describe("trace_jobs_review", "Review a candidate policy", body=TraceReviewNew, answers=TraceJobOut, status=202, tag=TAG)
    def post(self, request: Request) -> Response:
        """How much sooner, with its uncertainty, in one sentence. Without captured traffic it is refused, and says how to switch capture on."""
        wanted = parse(request, TraceReviewNew)
        given = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
        return self.answer(shown(jobs.review(tenant_id=self.tenant_id, actor=self.actor, **given)), status=202)


class TraceJobItem(TenantView):
    """One job."""

    permissions = {"GET": Permission.READ, "DELETE": Permission.OPERATE}

    @describe("trace_jobs_read", "Read a job and how far it is", answers=TraceJobOut, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Ask again for progress."""
        return self.answer(shown(jobs.job(self.tenant_id, reference)))

    @describe("trace_jobs_delete", "Delete a job and its result", answers=TraceJobOut, tag=TAG)
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Once it is over."""
        row = jobs.job(self.tenant_id, reference)
        jobs.delete(tenant_id=self.tenant_id, actor=self.actor, job_id=row.id)
        return self.answer(shown(row))


class TraceJobCancel(TenantView):
    """The way to end one."""

    permissions = {"POST": Permission.OPERATE}

    @describe("trace_jobs_cancel", "Cancel a job", answers=TraceJobOut, tag=TAG)
    def post(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its worker stops within a second or two. One that is over stays as it is."""
        row = jobs.cancel(tenant_id=self.tenant_id, actor=self.actor, job_id=jobs.job(self.tenant_id, reference).id)
        return self.answer(shown(row))


class TraceJobResult(TenantView):
    """What came of it, as figures."""

    permissions = {"GET": Permission.READ}

    @describe("trace_jobs_result", "Read a job's result", answers={"type": "object"}, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its members depend on the kind; docs/traces.md names them. A job that is not done has none."""
        return self.answer(reading.whole(jobs.job(self.tenant_id, reference, whole=True)).result)


class TraceJobReport(TenantView):
    """What came of it, as a page."""

    permissions = {"GET": Permission.READ}

    @describe("trace_jobs_report", "Download a job's report", answers={"type": "string"}, tag=TAG)
    def get(self, request: Request, reference: str) -> HttpResponse:
        """One self-contained HTML file with plots, no scripts and nothing from elsewhere."""
        del request
        row = reading.whole(jobs.job(self.tenant_id, reference, whole=True))
        return reading.as_file(row, self.default_response_headers)
