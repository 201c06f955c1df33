"""Ask an engine, and a second one if the first did not answer as an engine should.

Policy. An answer is judged before the client is told anything: by its status, by its body, by the first event of a stream (comments before it
are held).
Then: a refused or broken connection, a 5xx, a first byte that did not come in time or is not waited for any longer since the engine fell silent
(:mod:`routing.core.silence`), an engine's 401 or redirect, a 429, a model that the engine no longer has, and an answer that was aborted are tried
once more, on the next best replica, after the first connection was closed; that may run a prompt twice, never show it twice. A reused
connection that ended before a byte of the answer is tried again on a new connection to the same replica, once, and counts for nothing. A 4xx is the
client's and goes back unchanged. After the first byte nothing is retried. A prompt that another replica computes first takes the steps of
:mod:`routing.dataplane.transfer`; where those fail, it starts anew as an ordinary one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

from routing.core import filters, sse, tracecontext
from routing.core.breaker import Breaker
from routing.core.verdict import OK, Said, Verdict, judge, may_pass, misses_model, parse, safe_message
from routing.dataplane import errors, outgoing, transfer, upstream
from routing.dataplane.attempt import Attempt
from routing.dataplane.errors import ApiError
from routing.dataplane.inflight import Flight
from routing.dataplane.patience import UNREACHABLE, Patience
from routing.dataplane.state import Plane
from routing.dataplane.upstream import Upstream, UpstreamFailed

MAX_ATTEMPTS = 2
NOT_SERVED = filters.MODEL_NOT_SERVED
MAX_HELD_BYTES = 64 * 1024  # comments and blank lines before the first event


@dataclass(slots=True)
class Answer:
    """A judged answer. A stream brings its first events along; anything else its whole body."""

    upstream: Upstream
    events: list[bytes] = field(default_factory=list)
    splitter: sse.EventSplitter | None = None
    body: bytes = b""
    said: Said | None = None


@dataclass(slots=True)
class _Failures:
    """What went wrong so far in one request: decides the client's error when nobody answers."""

    causes: list[str] = field(default_factory=list)
    status: int = 502
    throttled: ApiError | None = None

    def note(self, verdict: Verdict) -> None:
        self.causes.append(verdict.kind)
        self.status = verdict.status
        self.throttled = None

    def final(self) -> ApiError:
        if self.throttled is not None:
            return self.throttled
        if self.causes and all(cause in ("connect", "connect_timeout", "blocked", "no_socket") for cause in self.causes):
            return errors.no_ready_replica()
        if self.causes and self.causes[-1] == NOT_SERVED:
            return errors.model_not_served()
        if self.causes and self.causes[-1] in ("first_byte_timeout", "idle_timeout", UNREACHABLE):
            return errors.upstream_timeout()
        return errors.upstream_error(503 if self.status == 503 else 502)


async def first_answer(plane: Plane, flight: Flight, *, engine_path: str, trace_parents: list[str]) -> Answer:
    """Dispatch the flight until somebody answers.

    Raises:
        ApiError: the client's own 4xx as the engine said it, or what is left after the attempts.
    """
    tried: list[UUID] = []  # one that fell silent and is back may stand here twice
    failures = _Failures()
    broken: Breaker | None = None  # of the first engine that answered this very body with a failure of its own
    while len(tried) < MAX_ATTEMPTS:
        try:
            attempt = await plane.waiting.turn(plane, flight, tried=tried)
        except ApiError as refusal:
            if not failures.causes or refusal.status == 429:  # the others are busy, which says more than that one failed
                raise
            break
        choice = attempt.choice
        if flight.decide_s is None:
            flight.decide_s = time.monotonic() - flight.started_s - (flight.queue_s or 0.0)
        handed = await transfer.hand_over(plane, flight, path=engine_path, trace_parents=trace_parents)
        if choice.pair is not None and handed.params is None:
            broken = handed.broke
            flight.end_attempt()
            continue
        tried.append(choice.replica.entry.id)
        body = outgoing.body_for(flight, attempt, transfer=handed.params)
        headers = upstream.request_headers(
            choice.replica, stream=_call_streams(flight), presented_parents=trace_parents, trace_id=flight.decision_id.hex, rank=choice.rank
        )
        attempt.span_id = tracecontext.span_id(headers["traceparent"])
        try:
            answer, verdict = await _ask(plane, flight, attempt, path=engine_path, body=body, headers=headers)
        except UpstreamFailed as failed:
            if failed.cause == "blocked":
                choice.engine.health = "blocked"
            blamed = failed.cause != "no_socket" and (handed.params is None or not transfer.unanswered(flight, failed.cause))
            attempt.failed(failed.cause, breaker=blamed)
            failures.causes.append(failed.cause)
            flight.end_attempt()
            continue
        if handed.params is not None and transfer.answered(flight, verdict):
            attempt.failed(f"status_{verdict.status}", breaker=False)
            tried.pop()
            failures.note(verdict)
            flight.end_attempt()
            continue
        if verdict.kind == "ok":
            attempt.succeeded(whole=answer.splitter is None)
            return answer
        if _unlisted(flight, attempt, verdict):
            failures.causes.append(NOT_SERVED)
            flight.end_attempt()
            continue
        error = _error_for(flight, attempt, answer, verdict)
        if verdict.kind == "client":
            attempt.succeeded()
            attempt.error = "client_error"
            raise error
        attempt.failed(f"status_{verdict.status}" if verdict.kind != "aborted" else "aborted", breaker=verdict.kind != "busy" and broken is None)
        if verdict.kind == "replica":
            if broken is not None:
                # Two engines broke on this body: that speaks against the body, and one tenant's body must not take a pool from everybody.
                broken.pardon()
            broken = choice.engine.breaker
        failures.note(verdict)
        failures.throttled = error if verdict.kind == "busy" else None
        flight.end_attempt()
    raise failures.final()


def _unlisted(flight: Flight, attempt: Attempt, verdict: Verdict) -> bool:
    """Whether the engine no longer has the model or adapter, which its list has not said yet. The engine has not failed: another may have it."""
    if flight.endpoint is None or not misses_model(verdict, flight.endpoint.entry.served_model):
        return False
    attempt.failed(NOT_SERVED, breaker=False)
    attempt.engine.adapters.forget(flight.endpoint.entry.served_model)
    attempt.engine.list_again(time.monotonic())
    return True


def _is_shared(flight: Flight) -> bool:
    """Whether other tenants use the flight's pool too."""
    if flight.endpoint is None or flight.caller is None:
        return True
    pool = flight.endpoint.pool
    return pool.shared or pool.owner_tenant_id != flight.caller.grant.tenant.snapshot.tenant_id


def _call_streams(flight: Flight) -> bool:
    return flight.call is not None and flight.call.stream


async def _ask(plane: Plane, flight: Flight, attempt: Attempt, *, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[Answer, Verdict]:
    """One attempt: send, wait for the first byte, judge.

    Raises:
        UpstreamFailed: the replica did not answer, or not in time, or fell silent.
    """
    loop = asyncio.get_running_loop()
    limit_s = plane.config.first_byte_s if _call_streams(flight) else plane.config.answer_s
    async with Patience(attempt.engine, loop.time() + limit_s):
        attempt.sent = True
        attempt.upstream = opened = await upstream.deliver(
            plane.session, plane.fresh_session, attempt.choice.replica, path, body=body, headers=headers
        )
        attempt.headers_seen(opened.status)
        if opened.is_stream and opened.status == 200 and _call_streams(flight):
            return await _first_event(flight, attempt, opened)
        begun = await opened.read()
    whole = await opened.read_all(begun, limit_bytes=plane.config.max_answer_bytes, idle_s=plane.config.idle_s, keep=flight.held.keep)
    flight.first_byte_s = time.monotonic()
    said = parse(whole)
    verdict = judge(opened.status, said)
    if verdict.kind == "ok":
        if said is None:  # a page of some proxy's under 200 is no completion
            verdict = Verdict(kind="replica", status=502)
        else:
            flight.saw_first_byte(attempt, flight.first_byte_s)
    return Answer(upstream=opened, body=whole, said=said), verdict


async def _first_event(flight: Flight, attempt: Attempt, opened: Upstream) -> tuple[Answer, Verdict]:
    """Read a stream up to its first event with data, and judge that."""
    splitter = sse.EventSplitter()
    events: list[bytes] = []
    datas: list[bytes] = []
    size = 0
    while True:
        chunk = await opened.read()
        if not chunk:
            raise UpstreamFailed("broken")  # it ended before it said anything
        size += len(chunk)
        attempt.engine.words += 1
        came = splitter.feed(chunk)
        events.extend(came)
        datas.extend(data for data in map(sse.data_of, came) if data is not None)
        if datas:
            break
        if size > MAX_HELD_BYTES + sse.MAX_EVENT_BYTES:
            raise UpstreamFailed("too_large")
        if not flight.held.passing(size):
            raise errors.no_room()
    verdicts = (judge(200, parse(data)) for data in datas[:2])  # an engine that shuts down says "abort" in the second event of a chat
    verdict = next((one for one in verdicts if one.kind != "ok"), OK)
    if verdict.kind == "ok":
        flight.saw_first_byte(attempt, time.monotonic())
    return Answer(upstream=opened, events=events, splitter=splitter), verdict


def _error_for(flight: Flight, attempt: Attempt, answer: Answer, verdict: Verdict) -> ApiError:
    """The client's view of an answer that is not a success. Words of an engine pass only if they are shaped and safe.

    How busy a shared engine is, others have made it: what such an engine says of that stays here.
    """
    replica = attempt.choice.replica
    shared = _is_shared(flight)
    if verdict.kind == "busy" and shared:
        return errors.engine_busy()
    parts = urlsplit(replica.url)
    secrets = [parts.netloc, parts.hostname or "", replica.credential or ""]
    headers = {"Retry-After": answer.upstream.retry_after} if answer.upstream.retry_after and not shared else {}
    passed = answer.body if answer.body and may_pass(answer.body, verdict, secrets) else None
    code, ours = "engine_refused", "The model server refused the request."
    if verdict.kind == "busy":
        code, ours = "rate_limit_exceeded", "The model server is busy."
    message = safe_message(verdict.error, secrets) or ours
    return ApiError(verdict.status, code, message, headers=headers, body=passed)
