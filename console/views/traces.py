"""Traces: sending one, asking for an analysis, a replay or a review, following it, and what came of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage, is_fragment
from console.reads import traces as reads
from routing.services import policy_text
from routing.services.traces import files, jobs, reading
from routing.services.traces.jobs import Input
from tenants.core.errors import Conflict, Forbidden, Invalid, NotFound, Refusal
from tenants.core.roles import Permission

_MANY_MB = files.MAX_UPLOAD_BYTES >> 20


class TracePages(TenantPage):
    """Base of the pages about traces."""

    tab = "traces"

    def overview(self, *, wrong: Refusal | None = None, form: str = "", given: Any = None, of_file: str = "") -> HttpResponse:
        """The page itself; with ``wrong`` in the form it came from, the file it is about, and what was typed there."""
        found = reads.overview(self.tenant_id, self.request.GET.get("before", ""), fragment=is_fragment(self.request))
        choices = None if is_fragment(self.request) else reads.choices(self.tenant_id)
        context = {"found": found, "choices": choices, "wrong": wrong, "form": form, "given": given or {}, "of_file": of_file, "upload_mb": _MANY_MB}
        return self.page("console/traces.html", context, status=200 if wrong is None else wrong.http_status)

    def back(self, *job_id: UUID) -> HttpResponse:
        name = "console:trace_job" if job_id else "console:traces"
        return HttpResponseRedirect(reverse(name, args=[self.caller.seat.slug, *job_id]))


class Traces(TracePages):
    """What was sent and what was asked for; POST sends a trace."""

    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest) -> HttpResponse:
        """``policy`` and ``endpoint`` fill in the form of a review, for links that lead to it."""
        asked = request.GET if "policy" in request.GET or "endpoint" in request.GET else None
        return self.overview(form="review" if asked else "", given=asked)

    def post(self, request: HttpRequest) -> HttpResponse:
        sent, name = request.FILES.get("file"), ""
        try:
            if not isinstance(sent, UploadedFile):
                raise Invalid(f"Choose a file of at most {_MANY_MB} MiB.", field="content")
            name = request.POST.get("name", "") or (sent.name or "")[-200:]
            with transaction.atomic():
                row = files.store(tenant_id=self.tenant_id, actor=self.actor, name=name, content=sent.read())
        except Forbidden:
            raise
        except Refusal as refusal:
            return self.overview(wrong=refusal, form="send", given=request.POST, of_file=name)
        messages.success(request, f"{row.name} is read: {row.requests:,} requests. Of text nothing was kept.")
        return self.back()


class DeleteTrace(TracePages):
    """A trace goes; what was found in it stays."""

    needs = {"POST": Permission.OPERATE}

    def post(self, request: HttpRequest, file_id: UUID) -> HttpResponse:
        try:
            with transaction.atomic():
                files.delete(tenant_id=self.tenant_id, actor=self.actor, file_id=file_id)
        except Conflict as refusal:
            messages.error(request, refusal.message)
        return self.back()


class AskForJob(TracePages):
    """The form of one kind of job."""

    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, kind: str) -> HttpResponse:  # noqa: ARG002 - a reloaded refusal leads back
        return self.back()

    def post(self, request: HttpRequest, kind: str) -> HttpResponse:
        try:
            with transaction.atomic():
                row = self._ask(kind, request)
        except (Forbidden, NotFound):
            raise
        except Refusal as refusal:
            return self.overview(wrong=refusal, form=kind, given=request.POST)
        return self.back(row.id)

    def _ask(self, kind: str, request: HttpRequest) -> Any:
        given = request.POST
        common: dict[str, Any] = {"tenant_id": self.tenant_id, "actor": self.actor}
        source = _input(given.get("source", ""), given.get("hours", ""))
        if kind == "analyze":
            return jobs.analyze(**common, of=source)
        fleet: dict[str, Any] = {
            "speeds": _numbers(given.get("speeds", ""), "speeds"),
            "cache_tokens": _whole(given.get("cache_tokens", ""), "cache_tokens"),
        }
        if kind == "replay":
            wanted: list[Any] = list(given.getlist("policy"))
            if given.get("document", "").strip():
                wanted.append(policy_text.parse(given["document"], "routing", field="document"))
            return jobs.replay(**common, of=source, policies_wanted=wanted, slo_ttft_s=_number(given.get("slo_ttft_s", ""), "slo_ttft_s"), **fleet)
        candidate: Any = given.get("policy", "")
        if given.get("document", "").strip():
            candidate = policy_text.parse(given["document"], "routing", field="document")
        if not candidate:
            raise Invalid("Choose a policy, or write one.", field="candidate")
        more: dict[str, Any] = {"file": source.file, "hours": None if source.file else source.hours}
        return jobs.review(**common, endpoint=given.get("endpoint", "") or source.endpoint or "", candidate=candidate, **more, **fleet)


class JobPage(TracePages):
    """One job: how far it is, or what came of it."""

    def get(self, request: HttpRequest, job_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        row = jobs.job(self.tenant_id, str(job_id), whole=True)
        return self.page("console/trace_job.html", reads.shown(row, timezone.now()))


class CancelJob(TracePages):
    """The way to end one."""

    needs = {"POST": Permission.OPERATE}

    def post(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        row = jobs.cancel(tenant_id=self.tenant_id, actor=self.actor, job_id=job_id)
        messages.success(request, "The job is cancelled." if row.state == "cancelled" else f"The job was {row.state} already.")
        return self.back(row.id)


class DeleteJob(TracePages):
    """A job and its result go."""

    needs = {"POST": Permission.OPERATE}

    def post(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        try:
            with transaction.atomic():
                jobs.delete(tenant_id=self.tenant_id, actor=self.actor, job_id=job_id)
        except Conflict as refusal:
            messages.error(request, refusal.message)
        return self.back()


class JobFile(TracePages):
    """What came of a job as a file: figures as JSON, or the report with its plots."""

    def get(self, request: HttpRequest, job_id: UUID, ending: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        row = reading.whole(jobs.job(self.tenant_id, str(job_id), whole=True))
        headers = {"Cache-Control": "private, no-store"}
        return reading.as_file(row, headers) if ending == "html" else reading.as_json(row, headers)


class JobPlot(TracePages):
    """One plot as an image. It is a document of its own, with a policy that lets it run and fetch nothing."""

    def get(self, request: HttpRequest, job_id: UUID, name: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        row = jobs.job(self.tenant_id, str(job_id), whole=True)
        if row.state != "done" or name not in row.plots:
            raise Http404
        return reading.as_image(row.plots[name])


# ---- what is typed -----------------------------------------------------------------------------------------------------


def _input(source: str, hours: str) -> Input:
    """``file:NAME`` or ``endpoint:NAME``, as the form's list names them."""
    kind, _, name = source.partition(":")
    if kind == "file":
        return Input(file=name)
    if kind == "endpoint":
        return Input(endpoint=name, hours=_number(hours, "hours"))
    raise Invalid("Choose a trace, or an endpoint whose traffic is captured.", field="source")


def _number(text: str, field: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e12:
        raise Invalid("Use a number.", field=field)
    return value


def _whole(text: str, field: str) -> int | None:
    value = _number(text.replace(",", ""), field)
    return None if value is None else int(value)


def _numbers(text: str, field: str) -> list[float] | None:
    parts = [_number(part, field) for part in text.split(",")] if text.strip() else []
    return [part for part in parts if part is not None] or None
