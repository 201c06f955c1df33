"""Jobs over traces: asked for, cancelled, deleted. Who carries them out is :mod:`routing.services.traces.running`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from routing import queries
from routing.models import Endpoint, TraceFile, TraceJob
from routing.services import captures, policies, support
from routing.services.audits import wake
from routing.services.traces import files, fleet
from routing.traces.work import MAX_POLICIES, Analyze, FleetShape, NamedPolicy, Replay, Review, Work
from tenants import changes
from tenants.actor import Actor
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.queries import parse_uuid
from tenants.services import locks

TASK = "routing.trace_job"
PRIORITY = 9  # behind whatever else waits in the queue
MAX_WAITING = 10  # jobs of one tenant that wait or run
MAX_KEPT = 200  # jobs of one tenant; the oldest that are over go first
KEPT_FOR = timedelta(days=30)
MAX_HOURS = 14 * 24
MAX_REPLAY_REQUESTS = 50_000  # of one replay or review
DEFAULT_HOURS = 24.0
OVER = ("done", "failed", "cancelled")
_HEAVY = ("checkpoint", "result", "plots", "html")

W = TypeVar("W", bound=Work)


@dataclass(frozen=True, slots=True)
class Input:
    """What a job reads: a trace that was sent, or an endpoint's captured traffic of the last ``hours``. One of both, by id or name."""

    file: str | None = None
    endpoint: str | None = None
    hours: float | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    file: TraceFile | None = None
    endpoint: Endpoint | None = None
    since: datetime | None = None
    until: datetime | None = None


def jobs(tenant_id: UUID) -> QuerySet[TraceJob]:
    """A tenant's jobs, without what came of them."""
    return TraceJob.objects.filter(tenant_id=tenant_id).defer(*_HEAVY)


def job(tenant_id: UUID, reference: str, *, whole: bool = False) -> TraceJob:
    """A job by its id, ``whole`` with what came of it.

    Raises:
        NotFound: none of this tenant's.
    """
    row_id = parse_uuid(reference.strip("/"))
    rows = TraceJob.objects.filter(tenant_id=tenant_id).defer("checkpoint") if whole else jobs(tenant_id)
    found = rows.filter(id=row_id).first() if row_id is not None else None
    if found is None:
        raise NotFound
    return found


# ---- asking ------------------------------------------------------------------------------------------------------------


def analyze(*, tenant_id: UUID, actor: Actor, of: Input, limit_blocks: int | None = None) -> TraceJob:
    """Ask for an analysis.

    Raises:
        Invalid, NothingCaptured, LimitReached: the field says what.
    """
    found = _input(tenant_id, of)
    given = {} if limit_blocks is None else {"limit_blocks": limit_blocks}
    return _ask(tenant_id, actor, found, _checked(given, Analyze))


def replay(
    *,
    tenant_id: UUID,
    actor: Actor,
    of: Input,
    policies_wanted: list[Any],
    speeds: list[float] | None = None,
    cache_tokens: int | None = None,
    residency: str | None = None,
    slo_ttft_s: float | None = None,
    speedup: float = 1.0,
    seed: int = 1,
) -> TraceJob:
    """Ask for a replay of policies, each a name, ``{name, version}`` or a document. The fleet is the endpoint's, where one is given, or as stated.

    Raises:
        Invalid, NothingCaptured, LimitReached: the field says what.
    """
    if not 1 <= len(policies_wanted) <= MAX_POLICIES:
        raise Invalid(f"Give 1 to {MAX_POLICIES} policies.", field="policies")
    endpoint = None if of.endpoint is None else _endpoint(tenant_id, of.endpoint)
    named = [_policy(tenant_id, endpoint, wanted, field=f"policies[{place}]") for place, wanted in enumerate(policies_wanted)]
    found = _input(tenant_id, of, replayed=True)
    shape, assumed = _fleet(tenant_id, found.endpoint, speeds, cache_tokens, residency)
    target_s = slo_ttft_s if slo_ttft_s is not None or found.endpoint is None else fleet.slo_ttft_s(found.endpoint)
    given = {"policies": named, "fleet": shape, "slo_ttft_s": target_s, "speedup": speedup, "seed": seed}
    return _ask(tenant_id, actor, found, _checked(given, Replay), notes=assumed)


def review(
    *,
    tenant_id: UUID,
    actor: Actor,
    endpoint: str,
    candidate: Any,
    hours: float | None = None,
    file: str | None = None,
    replays: int | None = None,
    speeds: list[float] | None = None,
    cache_tokens: int | None = None,
) -> TraceJob:
    """Ask for a review: the endpoint's captured traffic (or a trace that was sent) under its present policy and under a candidate.

    ``candidate`` is a name, ``{name, version}``, ``{version}`` of the endpoint's own policy, or a document.

    Raises:
        Invalid, NothingCaptured, LimitReached: the field says what.
    """
    row = _endpoint(tenant_id, endpoint)
    wanted = _policy(tenant_id, row, candidate, field="candidate")
    found = _input(tenant_id, Input(file=file, hours=hours) if file is not None else Input(endpoint=endpoint, hours=hours), replayed=True)
    shape, assumed = _fleet(tenant_id, row, speeds, cache_tokens, None)
    given: dict[str, Any] = {
        "current": NamedPolicy(name=_version_name(row.routing_policy), spec=row.routing_policy.spec),
        "candidate": wanted,
        "fleet": shape,
        "slo_ttft_s": fleet.slo_ttft_s(row),
        "assumed": assumed,
    }
    return _ask(tenant_id, actor, found, _checked(given | ({} if replays is None else {"replays": replays}), Review))


def _input(tenant_id: UUID, of: Input, *, replayed: bool = False) -> _Found:
    if (of.file is None) == (of.endpoint is None):
        raise Invalid("Give either a trace (file) or an endpoint whose captured traffic is read.", field="file")
    if of.file is not None:
        if of.hours is not None:
            raise Invalid("Hours are of captured traffic: leave them out with a file.", field="hours")
        try:
            row = files.file(tenant_id, of.file)
        except NotFound:
            raise Invalid("There is no such trace.", field="file") from None
        if replayed and row.requests > MAX_REPLAY_REQUESTS:
            raise Invalid(f"A replay takes at most {MAX_REPLAY_REQUESTS} requests; this trace has {row.requests}.", field="file")
        return _Found(row.name, file=row)
    endpoint = _endpoint(tenant_id, of.endpoint or "")
    hours = DEFAULT_HOURS if of.hours is None else of.hours
    if not 0 < hours <= MAX_HOURS:
        raise Invalid(f"Use more than 0 and at most {MAX_HOURS} hours.", field="hours")
    until = timezone.now()
    since = until - timedelta(hours=hours)
    captures.read_trace(tenant=tenant_id, endpoint_id=endpoint.id, since=since, until=until)  # refuses where there is nothing
    return _Found(endpoint.name, endpoint=endpoint, since=since, until=until)


def _endpoint(tenant_id: UUID, reference: str) -> Endpoint:
    try:
        return queries.endpoint(tenant_id, reference)
    except NotFound:
        raise Invalid("There is no such endpoint.", field="endpoint") from None


def _policy(tenant_id: UUID, endpoint: Endpoint | None, wanted: object, *, field: str) -> NamedPolicy:
    if isinstance(wanted, dict) and set(wanted) == {"version"} and endpoint is not None:
        wanted = {"name": endpoint.routing_policy.policy.name, **wanted}
    if isinstance(wanted, str) or (isinstance(wanted, dict) and "name" in wanted):
        version = policies.referred(tenant_id=tenant_id, kind="routing", wanted=wanted, field=field)
        return NamedPolicy(name=_version_name(version), spec=version.spec)
    policies.compiled("routing", wanted, field=field)
    spec: dict[str, Any] = dict(wanted)  # type: ignore[call-overload]  # compiled: a mapping
    more = ", ".join(f"{name} {value}" for name, value in spec.items() if name != "policy")
    name = f"{spec.get('policy', 'ettft')} ({more})" if more else str(spec.get("policy", "ettft"))
    return NamedPolicy(name=name if len(name) <= 80 else f"{name[:77]}...", spec=spec)


def _version_name(version: Any) -> str:
    return f"{version.policy.name} v{version.version}"


def _fleet(
    tenant_id: UUID, endpoint: Endpoint | None, speeds: list[float] | None, cache_tokens: int | None, residency: str | None
) -> tuple[FleetShape, tuple[str, ...]]:
    """The endpoint's fleet, with what is stated in its place."""
    stated = {"speeds": speeds, "cache_tokens": cache_tokens, "residency": residency}
    given = {name: value for name, value in stated.items() if value is not None}
    known, assumed = (FleetShape(), ()) if endpoint is None or {"speeds", "cache_tokens"} <= set(given) else fleet.of_endpoint(tenant_id, endpoint)
    return _checked(msgspec.structs.asdict(known) | given, FleetShape), assumed


S = TypeVar("S", bound=msgspec.Struct)


def _checked(given: dict[str, Any], shape: type[S]) -> S:
    """``given`` as ``shape``; what is out of range is refused by its name."""
    try:
        return msgspec.convert(msgspec.to_builtins(given), shape)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        field = place.strip("`").lstrip(".").removeprefix("fleet.") or None
        raise Invalid(f"{text.replace('`', '')}.", field=field) from None


def _ask(tenant_id: UUID, actor: Actor, found: _Found, work: Work, *, notes: tuple[str, ...] = ()) -> TraceJob:
    locks.tenant(tenant_id)
    rows = TraceJob.objects.filter(tenant_id=tenant_id)
    if rows.exclude(state__in=OVER).count() >= MAX_WAITING:
        raise LimitReached(f"At most {MAX_WAITING} jobs may wait or run; cancel one, or wait.")
    parameters: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({"work": work, "notes": notes}))
    kind = str(parameters["work"]["kind"])
    row = TraceJob.objects.create(
        tenant_id=tenant_id,
        kind=kind,
        file=found.file,
        input_name=found.name,
        endpoint_id=None if found.endpoint is None else found.endpoint.id,
        since=found.since,
        until=found.until,
        parameters=parameters,
        requested_by=actor.label[:254],
    )
    forget(tenant_id, timezone.now())
    after = {"kind": kind, "input": found.name}
    _note(row, actor, "trace_job.create", after=after)
    post(row)
    return row


def post(row: TraceJob) -> None:
    """Wake a worker when the transaction has committed; what is lost the sweep sends again."""
    arguments = (str(row.tenant_id), str(row.id))
    transaction.on_commit(lambda: wake.post(TASK, arguments, PRIORITY))


def _note(row: TraceJob, actor: Actor, action: str, *, after: dict[str, Any] | None = None) -> None:
    label = f"{row.kind} {row.input_name}"
    changes.record(tenant_id=row.tenant_id, actor=actor, action=action, object_id=row.id, object_label=label, after=after, publishes=False)


# ---- ending ------------------------------------------------------------------------------------------------------------


def cancel(*, tenant_id: UUID, actor: Actor, job_id: UUID) -> TraceJob:
    """End a job that waits or runs; its worker notices within a second or two. One that is over stays as it is.

    Raises:
        NotFound: no such job of this tenant.
    """
    row = support.locked(TraceJob, tenant_id=tenant_id, row_id=job_id)
    if row.state not in OVER:
        row.state, row.finished_at, row.holder, row.checkpoint = "cancelled", timezone.now(), None, None
        row.save(update_fields=["state", "finished_at", "holder", "checkpoint"])
        _note(row, actor, "trace_job.cancel")
    return row


def delete(*, tenant_id: UUID, actor: Actor, job_id: UUID) -> None:
    """Delete a job that is over, with all that came of it.

    Raises:
        NotFound: no such job of this tenant.
        Conflict: it waits or runs.
    """
    row = support.locked(TraceJob, tenant_id=tenant_id, row_id=job_id)
    if row.state not in OVER:
        raise Conflict("The job waits or runs: cancel it first.")
    _note(row, actor, "trace_job.delete")
    row.delete()


def forget(tenant_id: UUID, now: datetime) -> int:
    """Delete jobs that are over and past their time, or more than are kept; returns how many."""
    over = TraceJob.objects.filter(tenant_id=tenant_id, state__in=OVER)
    oldest = over.order_by("-created_at").values_list("created_at", flat=True)[MAX_KEPT : MAX_KEPT + 1].first()
    old = Q(finished_at__lt=now - KEPT_FOR) | (Q(created_at__lte=oldest) if oldest else Q(pk__in=()))
    return int(over.filter(old).delete()[0])
