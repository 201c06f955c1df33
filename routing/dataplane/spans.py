"""Traces of requests, for whoever runs a collector: one SERVER span, and one CLIENT span for each time an engine was asked. Off unless
``ROUTER_OTLP_ENDPOINT`` is set.

Spans are made from the finished record, after the answer has gone, and wait in a bounded queue (:mod:`routing.dataplane.backlog`), whose newest is
dropped and counted when it is full. No request waits for a collector.

A client's ``traceparent`` is a stranger's: its trace is linked to, not continued, and its sampled flag costs nothing. Where the operator trusts
clients (``ROUTER_TRACE_TRUSTED``) it is the parent. Engines continue our trace either way. Exported are a share of the requests, by decision id, and
all failures.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from routing.core import conventions as names
from routing.core import tracecontext
from routing.core.otlp import Link, Span, Value, document
from routing.core.record import DecisionRecord
from routing.dataplane.backlog import Backlog
from routing.dataplane.metrics import failure

if TYPE_CHECKING:
    from routing.dataplane.attempt import Attempt
    from routing.dataplane.inflight import Flight
    from routing.dataplane.metrics import Metrics
    from routing.dataplane.state import Plane

QUEUE = 4096  # spans
BATCH = 256
WRITE_S = 5.0
RETRY_S = 0.5
RETRY_MAX_S = 15.0
MAX_ANSWER_BYTES = 64 * 1024
_STEPS = 10_000
log = logging.getLogger("saltroute.spans")


@dataclass(frozen=True, slots=True)
class Trace:
    """The SERVER span of a request under way. ``known``: the client's own span, if it named one."""

    trace_id: str
    span_id: str
    sampled: bool
    parent_id: str | None = None
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """An engine that was asked, from dispatch to the end, by the monotonic clock."""

    span_id: str
    url: str
    replica_id: str
    replica_name: str
    engine: str
    part: str
    started_s: float
    ended_s: float
    status: int | None
    error: str | None


class Tracing:
    """The queue and the task that empties it. Without an endpoint nothing is made."""

    def __init__(self, *, endpoint: str | None, share: float, trusted: bool, router_id: str, metrics: Metrics, queue: int = QUEUE) -> None:
        self._url = None if endpoint is None else endpoint.rstrip("/") + "/v1/traces"
        self._share = share
        self._trusted = trusted
        self._resource: dict[str, Value] = {names.SERVICE_NAME: "saltroute-router", names.SERVICE_INSTANCE: router_id}
        self._metrics = metrics
        self.backlog: Backlog[Span] = Backlog(bound=queue, batch=BATCH, retry_s=RETRY_S, retry_max_s=RETRY_MAX_S)

    @property
    def on(self) -> bool:
        return self._url is not None

    def queued(self) -> int:
        return len(self.backlog)

    def begin(self, flight: Flight, presented: list[str]) -> list[str]:
        """Begin the flight's trace; returns the parents that engines' own ``traceparent`` continues."""
        if not self.on:
            return presented
        parent = tracecontext.read(presented)
        sampled = flight.decision_id.int % _STEPS < self._share * _STEPS
        span_id = os.urandom(8).hex()
        if parent is not None and self._trusted:
            flight.trace = Trace(parent.trace_id, span_id, sampled, parent_id=parent.span_id)
        else:
            link = None if parent is None else Link(parent.trace_id, parent.span_id)
            flight.trace = Trace(flight.decision_id.hex, span_id, sampled, link=link)
        return [f"00-{flight.trace.trace_id}-{span_id}-0{int(sampled)}"]

    def finish(self, flight: Flight, record: DecisionRecord) -> None:
        """Queue the spans of a request that has ended."""
        trace = flight.trace
        if trace is None or not (trace.sampled or record.outcome in ("upstream_error", "timeout", "incomplete") or record.status >= 500):
            return
        offset_ns = time.time_ns() - time.monotonic_ns()
        for span in (_server(flight, trace, record, offset_ns), *_clients(flight, trace, record, offset_ns)):
            if not self.backlog.put(span):
                self._metrics.spans_dropped.labels(reason="queue_full").inc()

    async def run(self) -> None:
        """Send what is queued, for ever."""
        if self._url is None:
            return
        async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await self.backlog.run(partial(self._export, session, self._url))

    async def _export(self, session: aiohttp.ClientSession, url: str, batch: list[Span]) -> bool:
        """Send spans; True unless the collector did not answer or asked to come again."""
        try:
            async with asyncio.timeout(WRITE_S):
                headers = {"Content-Type": "application/json", "User-Agent": "saltroute"}
                async with session.post(url, data=document(batch, self._resource), headers=headers, allow_redirects=False) as answer:
                    status = answer.status
                    await answer.content.read(MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.warning("spans wait: %s", type(error).__name__)
            return False
        if status in (429, 502, 503, 504):
            return False
        if 200 <= status < 300:
            self._metrics.spans_sent.inc(len(batch))
        else:
            self._metrics.spans_dropped.labels(reason="refused").inc(len(batch))
            log.warning("the collector refused spans with status %d", status)
        return True


def ended(flight: Flight, attempt: Attempt | None) -> None:
    """Note an attempt whose engine was asked, for its span."""
    if attempt is None or attempt.span_id is None:
        return
    entry = attempt.choice.replica.entry
    flight.asked_engines.append(
        Asked(
            span_id=attempt.span_id,
            url=attempt.engine.url,
            replica_id=str(entry.id),
            replica_name=entry.name,
            engine=entry.engine,
            part=attempt.part,
            started_s=attempt.started_s,
            ended_s=time.monotonic(),
            status=attempt.status,
            error=attempt.error,
        )
    )


def account(plane: Plane, flight: Flight, record: DecisionRecord) -> None:
    """Count a request that has ended: what its time went into, and the conventions' figures of each engine that was asked."""
    metrics = plane.metrics
    if record.cause is not None and flight.probe is None:
        for part, value_us in record.cause.parts_us.items():
            metrics.cause_seconds.labels(part=part).inc(value_us / 1e6)
        if record.cause.main is not None:
            metrics.cause_main.labels(part=record.cause.main).inc()
    operation = operation_of(flight)
    for place, one in enumerate(flight.asked_engines):
        labels = {"gen_ai_operation_name": operation, "gen_ai_provider_name": one.engine}
        metrics.inference_duration.labels(error_type=failure(one.error or ""), **labels).observe(one.ended_s - one.started_s)
        if place == len(flight.asked_engines) - 1 and flight.probe is None:
            _account_answer(metrics, flight, record, one, labels)
    plane.tracing.finish(flight, record)


def _account_answer(metrics: Metrics, flight: Flight, record: DecisionRecord, one: Asked, labels: dict[str, str]) -> None:
    if flight.first_byte_s is not None and record.stream:
        metrics.inference_first_chunk.labels(**labels).observe(max(0.0, flight.first_byte_s - one.started_s))
        if record.completion_tokens is not None and record.completion_tokens > 1:
            metrics.inference_per_chunk.labels(**labels).observe((one.ended_s - flight.first_byte_s) / (record.completion_tokens - 1))
    used = (record.prompt_tokens, metrics.used_input), (record.completion_tokens, metrics.used_output), (record.cached_tokens, metrics.used_cache)
    for count, counter in used:
        if count:
            counter.labels(**labels).inc(count)


def operation_of(flight: Flight) -> names.Operation:
    """The conventions' name for what was asked."""
    return "text_completion" if flight.call is not None and flight.call.api == "completions" else "chat"


def _server(flight: Flight, trace: Trace, record: DecisionRecord, offset_ns: int) -> Span:
    path = "/v1/completions" if operation_of(flight) == "text_completion" else "/v1/chat/completions"
    found: dict[str, Value | None] = {
        names.METHOD: "POST",
        names.ROUTE: path,
        names.URL_SCHEME: "http",
        names.STATUS: record.status,
        names.ERROR_TYPE: record.error_code,
        names.DECISION_ID: str(record.id),
        names.TENANT_ID: str(record.tenant_id),
        names.ENDPOINT: record.endpoint,
        names.NAMESPACE: record.namespace,
        names.OUTCOME: record.outcome,
        names.POLICY: record.policy,
        names.QUEUE_S: record.queue_s,
        names.DECIDE_S: record.decide_s,
        names.EXPECTED_TTFT_S: record.expected_ttft_s,
        names.TTFT_S: record.ttft_s,
        names.MATCHED_TOKENS: record.matched_tokens,
        names.EXPECTED_CACHED_TOKENS: record.expected_cached_tokens,
    }
    if record.cause is not None:
        found[names.CAUSE] = record.cause.main
        found.update({f"{names.CAUSE_PART}{part}": value_us / 1e6 for part, value_us in record.cause.parts_us.items()})
    return Span(
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        name=f"POST {path}",
        kind="server",
        start_ns=_ns(flight.started_s, offset_ns),
        end_ns=_ns(time.monotonic(), offset_ns),
        attributes=_present(found),
        failed=record.status >= 500,
        links=() if trace.link is None else (trace.link,),
    )


def _clients(flight: Flight, trace: Trace, record: DecisionRecord, offset_ns: int) -> list[Span]:
    return [
        _client(flight, trace, record, one, place=place, last=place == len(flight.asked_engines) - 1, offset_ns=offset_ns)
        for place, one in enumerate(flight.asked_engines)
    ]


def _client(flight: Flight, trace: Trace, record: DecisionRecord, one: Asked, *, place: int, last: bool, offset_ns: int) -> Span:
    address = urlsplit(one.url)
    body = flight.call.body.value if flight.call is not None else {}
    model = flight.endpoint.entry.served_model if flight.endpoint is not None else ""
    operation = operation_of(flight)
    found: dict[str, Value | None] = {
        names.OPERATION: operation,
        names.PROVIDER: one.engine,
        names.REQUEST_MODEL: model,
        names.REQUEST_STREAM: record.stream,
        names.REQUEST_MAX_TOKENS: _count(body.get("max_completion_tokens", body.get("max_tokens"))),
        names.REQUEST_CHOICES: _count(body.get("n")),
        names.SERVER_ADDRESS: address.hostname,
        names.SERVER_PORT: address.port or (443 if address.scheme == "https" else 80),
        names.STATUS: one.status,
        names.ERROR_TYPE: one.error,
        names.RESEND_COUNT: place or None,
        names.REPLICA_ID: one.replica_id,
        names.REPLICA_NAME: one.replica_name,
        names.ATTEMPT_PART: None if one.part == "answer" else one.part,
    }
    if last and one.error is None:
        streamed = flight.first_byte_s is not None and record.stream
        found[names.RESPONSE_MODEL] = model
        found[names.TIME_TO_FIRST_CHUNK] = flight.first_byte_s - one.started_s if streamed and flight.first_byte_s is not None else None
        found[names.INPUT_TOKENS] = record.prompt_tokens
        found[names.OUTPUT_TOKENS] = record.completion_tokens
        found[names.CACHE_READ_TOKENS] = record.cached_tokens
    return Span(
        trace_id=trace.trace_id,
        span_id=one.span_id,
        parent_id=trace.span_id,
        name=f"{operation} {model}",
        kind="client",
        start_ns=_ns(one.started_s, offset_ns),
        end_ns=_ns(one.ended_s, offset_ns),
        attributes=_present(found),
        failed=one.error not in (None, "client_error"),
    )


def _present(found: dict[str, Value | None]) -> dict[str, Value]:
    return {key: value for key, value in found.items() if value is not None}


def _count(value: object) -> int | None:
    """A client's number, if it is one that an engine could mean."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _ns(monotonic_s: float, offset_ns: int) -> int:
    return int(monotonic_s * 1e9) + offset_ns
