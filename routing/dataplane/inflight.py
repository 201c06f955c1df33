"""The guard: one object holds whatever a request takes, and gives all of it back on every way out, cancellation included.

    Flight    the request: the plane's count, its task, the record
    Attempt   one dispatch (:mod:`routing.dataplane.attempt`)

Whatever happens in between, after ``Flight.__exit__`` every count is what it was before; a test storms it with mixed endings and asserts exact zeros.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType
from uuid import UUID

import msgspec

from namespaces.core.probe import Claims
from namespaces.core.salts import Namespace
from routing.core.fair_queue import Waiter
from routing.core.overload import Spilled
from routing.core.record import AttemptRecord, DecisionRecord, Outcome
from routing.core.snapshot import PolicyEntry
from routing.core.stream import Usage
from routing.core.types import Decision, Trial
from routing.core.weighing import Weighed
from routing.dataplane import causes, learn, quotas, record_parts, spans
from routing.dataplane.attempt import Attempt
from routing.dataplane.authenticate import Caller
from routing.dataplane.choice import Choice, Prompt
from routing.dataplane.errors import ApiError
from routing.dataplane.holdings import NOTHING_HELD, Held
from routing.dataplane.openai import Call
from routing.dataplane.patience import UNREACHABLE
from routing.dataplane.state import Plane
from routing.dataplane.tokens import Inexact
from routing.dataplane.transfer import Transfer
from routing.dataplane.view import EndpointView

MAX_CANDIDATES = 32  # in a record
_AUDITS = b"audits"


@dataclass(slots=True)
class Flight:
    """One request from its first line to its record. Used as a context manager, once."""

    plane: Plane
    route: str
    decision_id: UUID
    request_id: str | None
    started_at: float = field(default_factory=time.time)
    started_s: float = field(default_factory=time.monotonic)
    caller: Caller | None = None
    call: Call | None = None
    endpoint: EndpointView | None = None
    asked: EndpointView | None = None  # what the client asked for, where another model serves it
    spilled: Spilled | None = None
    namespace: Namespace | None = None
    prompt: Prompt | None = None
    alone: bool = False  # a transfer was tried: from now on one replica does it
    held: Held = NOTHING_HELD  # of what all tenants share in this process
    session: bytes | None = None  # the session that the client says it belongs to, as a digest
    decision: Decision | None = None
    candidates: Weighed | None = None
    trial: Trial | None = None
    decide_s: float | None = None
    attempt: Attempt | None = None
    prefill: Attempt | None = None  # at the replica that computes the prompt for the attempt's
    transfer: Transfer | None = None
    attempts: list[AttemptRecord] = field(default_factory=list)
    inexact: Inexact | None = None  # why its prompt's tokens are not all exact
    usage: Usage = field(default_factory=Usage)
    first_byte_s: float | None = None  # monotonic
    unread_since_s: float | None = None  # monotonic; a stream ended while nothing had come of it from then on
    outcome: Outcome | None = None
    status: int = 200
    error_code: str | None = None
    alarm: str | None = None
    serial: int = 0  # among the requests that lead or follow a burst
    burst: bytes | None = None  # the prefix by which it does
    waiter: Waiter | None = None  # its place in the pool's queue, once it was taken from there
    queue_s: float | None = None  # waited in the router; None: it did not
    waited_again_s: float = 0.0  # before further attempts; part of what they cost, not of queue_s
    noted: causes.Noted | None = None  # of the latest dispatch
    trace: spans.Trace | None = None
    asked_engines: list[spans.Asked] = field(default_factory=list)
    prefill_tokens_per_s: float | None = None  # of the replica that it was dispatched to, as learned by then
    reservation: quotas.Reservation = field(default_factory=quotas.Reservation)

    @property
    def probe(self) -> Claims | None:
        """What an audit's token says, where the request is an audit's."""
        return None if self.caller is None else self.caller.probe

    @property
    def owner(self) -> bytes:
        """Against whose budget of the index the request counts: its tenant's, or that of all audits."""
        if self.caller is None:
            raise RuntimeError("nobody is calling")
        return self.caller.grant.tenant.snapshot.tenant_id.bytes if self.probe is None else _AUDITS

    @property
    def slo_s(self) -> float | None:
        """The objective for its first token where it is served, in s; None: there is none."""
        return None if self.endpoint is None or self.endpoint.slo is None else self.endpoint.slo.ttft_s

    @property
    def stranded(self) -> bool:
        """Its last attempt was given up because the engine fell silent."""
        return bool(self.attempts) and self.attempts[-1].error == UNREACHABLE

    def __enter__(self) -> Flight:
        self.plane.in_flight += 1
        task = asyncio.current_task()
        if task is not None:
            self.plane.tasks.add(task)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._conclude(error)
            learn.learn(self)
            self.end_attempt()
            self._report()
        finally:
            self.end_attempt()
            quotas.settle(self.plane, self)
            self.plane.waiting.left(self.plane, self)
            self.held.close()
            self.plane.in_flight -= 1
            task = asyncio.current_task()
            if task is not None:
                self.plane.tasks.discard(task)

    def begin_attempt(self, choice: Choice) -> Attempt:
        """Take what one dispatch takes. The one before must have ended: two engines never work on one request."""
        if self.attempt is not None or self.prefill is not None or self.namespace is None or self.prompt is None or self.call is None:
            raise RuntimeError("attempt out of order")
        self.decision = choice.decision
        self.candidates = choice.decision.candidates
        self.noted = causes.note(self.plane, self, choice)
        self.prefill_tokens_per_s = choice.engine.calibration.rate(None, self.started_s)
        audit = self.probe is not None
        if choice.prefill is not None and choice.pair is not None:
            self.transfer = Transfer(choice.pair, choice.prefill, choice.replica.url)
            prefill = choice.prefill
            self.prefill = Attempt(self.plane, prefill, self.namespace, self.prompt, call=self.call, owner=self.owner, probe=audit, part="prefill")
        self.attempt = Attempt(self.plane, choice, self.namespace, self.prompt, call=self.call, owner=self.owner, probe=audit)
        return self.attempt

    def saw_first_byte(self, attempt: Attempt, now_s: float) -> None:
        """Prefill is over, and whoever waited for this prompt's prefix need not wait any longer."""
        self.first_byte_s = now_s
        attempt.first_byte(now_s)
        learn.first_byte(self, attempt, now_s)
        self.plane.waiting.bursts.first_byte(self)

    def end_prefill(self) -> None:
        """Give back what computing the prompt elsewhere took; safe to repeat."""
        spans.ended(self, self.prefill)
        attempt, self.prefill = self.prefill, None
        if attempt is not None and (entry := attempt.release()) is not None:
            self.attempts.append(entry)

    def end_attempt(self) -> None:
        """Give back what the dispatch took, on both its replicas where there are two; safe to repeat."""
        self.end_prefill()
        spans.ended(self, self.attempt)
        attempt, self.attempt = self.attempt, None
        if attempt is not None and (entry := attempt.release()) is not None:
            self.attempts.append(entry)

    def end(self, outcome: Outcome, *, status: int, error_code: str | None = None) -> None:
        """Say how it went, where no exception says it."""
        self.outcome, self.status, self.error_code = outcome, status, error_code

    def _conclude(self, error: BaseException | None) -> None:
        if isinstance(error, ApiError):
            self.end(record_parts.outcome(error), status=error.status, error_code=error.code)
        elif isinstance(error, asyncio.CancelledError | ConnectionError):
            self.end("client_cancelled", status=499, error_code=self.error_code)
        elif error is not None or self.outcome is None:
            self.end("refused", status=500, error_code="internal_error")
        quotas.count(self)

    def _report(self) -> None:
        metrics, usage = self.plane.metrics, self.usage
        outcome = self.outcome or "refused"
        metrics.requests.labels(route=self.route, outcome=outcome).inc()
        if self.error_code is not None:
            metrics.refused.labels(code=self.error_code).inc()
        for kind, count in (("prompt", usage.prompt_tokens), ("completion", usage.completion_tokens), ("cached", usage.cached_tokens)):
            if count and self.probe is None:
                metrics.tokens.labels(kind=kind).inc(count)
        ttft_s = self._ttft_s()
        if ttft_s is not None:
            metrics.ttft.observe(ttft_s)
        if self.decide_s is not None:
            metrics.decide.observe(self.decide_s)
        if self.transfer is not None:
            self.transfer.count(metrics)
        if self.caller is not None:
            record = self._record(outcome, ttft_s)
            spans.account(self.plane, self, record)
            self.plane.telemetry.add(record)
            self.plane.captures.note(self)

    def _ttft_s(self) -> float | None:
        """Time to first token, of streams only: the first byte of a whole answer comes when the last token is known."""
        if self.first_byte_s is None or self.call is None or not self.call.stream:
            return None
        return self.first_byte_s - self.started_s

    def _policies(self) -> tuple[PolicyEntry | None, PolicyEntry | None]:
        """The policy that decided, and the one on trial beside it."""
        if self.endpoint is None:
            return None, None
        live, candidate = self.endpoint.entry.routing_policy, self.endpoint.entry.candidate_policy
        return (candidate, live) if self.trial is not None and self.trial.placed else (live, candidate)

    def _record(self, outcome: Outcome, ttft_s: float | None) -> DecisionRecord:
        if self.caller is None:
            raise RuntimeError("a record needs a caller")
        tenant = self.caller.grant.tenant.snapshot
        key = self.caller.grant.key if self.probe is None else None  # a probe's key and scope exist nowhere but in its namespace
        scope = self.caller.grant.tenant.scopes.get(self.caller.scope_path) if self.probe is None else None
        endpoint, decision, usage = self.asked or self.endpoint, self.decision, self.usage
        chosen = decision.chosen if decision is not None and self.attempts else None
        decided_by, beside = self._policies()
        made = DecisionRecord(
            id=self.decision_id,
            tenant_id=tenant.tenant_id,
            started_at=self.started_at,
            route=self.route,
            outcome=outcome,
            status=self.status,
            router_id=self.plane.config.router_id,
            config_version=tenant.version,
            request_id=self.request_id,
            endpoint_id=endpoint.entry.id if endpoint else None,
            endpoint=endpoint.entry.name if endpoint else None,
            key_id=key.id if key else None,
            scope_id=scope.id if scope else None,
            namespace=self.namespace.public_id if self.namespace else None,
            model=self.endpoint.entry.model.name if self.endpoint else None,
            policy=decided_by.spec.get("policy", "ettft") if decided_by else None,
            policy_version=decided_by.version if decided_by else None,
            stream=self.call.stream if self.call else False,
            error_code=self.error_code,
            replica_id=chosen.replica_id if chosen else None,
            replica_name=chosen.replica_name if chosen else None,
            matched_tokens=chosen.matched_tokens if chosen else 0,
            expected_cached_tokens=chosen.expected_cached_tokens if chosen else 0.0,
            estimated_prompt_tokens=self.prompt.tokens if self.prompt else 0,
            inexact=self.inexact,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            partial_usage=usage.counted or (outcome != "ok" and usage.completion_tokens is not None),
            expected_ttft_s=chosen.expected_ttft_s if chosen else None,
            ttft_s=ttft_s,
            e2e_s=time.monotonic() - self.started_s,
            decide_s=self.decide_s,
            queue_s=self.queue_s,
            slo_ttft_s=endpoint.slo.ttft_s if endpoint and endpoint.slo else None,
            slo_attainable=decision.attainable if decision else True,
            spilled=self.spilled,
            considered=0 if self.candidates is None else self.candidates.considered(),
            best_matched_tokens=0 if self.candidates is None else self.candidates.best_matched_tokens(),
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            trial=record_parts.trial(self.trial, beside),
            transfer=None if self.transfer is None else self.transfer.record(),
            cause=causes.conclude(self.plane, self, now_s=time.monotonic()),
            alarm=self.alarm,
            audit=self.probe is not None,
            attempts=tuple(self.attempts),
        )
        asked = endpoint is not None and self.started_at < endpoint.entry.explain_until
        if not self.candidates or not self.plane.telemetry.keeps_candidates(made, asked=asked):
            return made
        return msgspec.structs.replace(made, candidates=tuple(record_parts.candidate(one) for one in self.candidates[:MAX_CANDIDATES]))
