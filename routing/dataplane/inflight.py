"""The guard: one object holds whatever a request takes, and gives all of it back on every way out, cancellation included.

    Flight    the request: the plane's count, its task, the record
    Attempt   one dispatch: the engine's count, ledger tokens, breaker probe, pending residency, upstream connection

Whatever happens in between, after ``Flight.__exit__`` every count is what it was before; a test storms it with mixed endings and asserts exact zeros.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import msgspec

from namespaces.core.probe import Claims
from namespaces.core.salts import Namespace
from routing.core import prefix
from routing.core.breaker import Breaker
from routing.core.fair_queue import Waiter
from routing.core.overload import Spilled
from routing.core.pairs import OUTPUT_TOKENS
from routing.core.record import AttemptRecord, DecisionRecord, Outcome
from routing.core.snapshot import PolicyEntry
from routing.core.stream import Usage
from routing.core.types import Decision, Trial
from routing.core.weighing import Weighed
from routing.dataplane import causes, learn, quotas, record_parts, spans
from routing.dataplane.authenticate import Caller
from routing.dataplane.choice import Choice, Prompt
from routing.dataplane.errors import ApiError
from routing.dataplane.openai import Call
from routing.dataplane.state import Plane
from routing.dataplane.transfer import Transfer
from routing.dataplane.view import EndpointView

if TYPE_CHECKING:
    from routing.dataplane.upstream import Upstream

Part = Literal["answer", "prefill"]

MAX_CANDIDATES = 32  # in a record
# Errors after which no engine holds the prompt.
_NEVER_RAN = frozenset({"connect", "connect_timeout", "blocked", "client_error", "status_429", "model_not_served"})
_AUDITS = b"audits"


class Attempt:
    """One dispatch. Made at the moment of dispatch, released exactly once."""

    def __init__(
        self, plane: Plane, choice: Choice, namespace: Namespace, prompt: Prompt, *, call: Call, owner: bytes, probe: bool, part: Part = "answer"
    ) -> None:
        self._plane = plane
        self.part = part
        self.sent = False
        self.choice = choice
        self.engine, self.place = choice.engine, choice.place
        self.started_s = time.monotonic()
        self.upstream: Upstream | None = None
        self.speed_learned = False  # at the first byte
        self.status: int | None = None
        self.error: str | None = None
        self.span_id: str | None = None  # of the CLIENT span, once the engine is asked
        self._namespace = namespace.key
        self._digests = prompt.digests
        self._owner = owner
        self._headers_seen = self._resident = self._told = self._released = False
        self._first_byte_s = math.inf
        chosen, engine, place = choice.taken, choice.engine, choice.place
        self.tokens_ahead = chosen.queued_tokens + chosen.foreign_tokens
        place.working_set.touch(prefix.marks(prompt.digests), self.started_s)
        self.was_idle = place.in_flight == 0 and plane.siblings.load(place.key, self.started_s).in_flight == 0
        # An answer that does not stream never says when its prefill ended: it stops counting when that was due.
        limit_s = plane.config.first_byte_s if call.stream or choice.pair is not None else 1.5 * chosen.expected_ttft_s + 0.25
        place.take()
        engine.work.change(1, self.started_s)
        self._promised_tokens = prompt.tokens + OUTPUT_TOKENS
        engine.promised_tokens += self._promised_tokens
        engine.sequences += call.sequences
        self._breaker = Breaker() if probe else engine.breaker  # an audit neither opens a door for clients nor closes one
        self._entry = place.ledger.add(chosen.uncached_tokens, until_s=self.started_s + limit_s)
        self._probe = self._breaker.begin(self.started_s)
        self.prediction = learn.predict(plane, choice, prompt, namespace=self._namespace, owner=owner, probe=probe)
        self._serial = plane.outbox.placed(self._namespace, owner, place.key, self._digests, index=plane.index, sequences=call.sequences)
        self._ticket = plane.index.dispatched(self._namespace, self._digests, place.key, owner=owner)

    def headers_seen(self, status: int) -> None:
        self.status = status
        self._headers_seen = True

    def first_byte(self, now_s: float) -> None:
        """Prefill is over: the tokens leave the ledger, the prompt is resident."""
        self._first_byte_s = now_s
        self.place.ledger.release(self._entry)
        self._plane.waiting.wake(self._plane)
        if not self._resident:
            self._resident = True
            self._confirm(now_s)

    def _confirm(self, now_s: float) -> None:
        self._plane.index.confirmed(self._namespace, self._digests, self.place.key, self._ticket, now_s, owner=self._owner)
        self._plane.outbox.settled(self._serial, confirmed=True, at_s=now_s)

    def explained_blocks(self) -> int | None:
        """How much of the prompt the namespace's other requests put at this replica, in history blocks; None where this router cannot tell."""
        if not self.engine.history_is_whole(self._plane.began_at) or len(self._digests) >= prefix.MAX_BLOCKS:
            return None
        if not self._plane.siblings.told_all_before(self._first_byte_s):
            return None
        # Of whatever rank: what stands between may drop the header, and then a hit at another rank is the namespace's own all the same.
        tickets = {key: self._ticket if key == self.place.key else 0 for key in self.engine.keys}
        return self._plane.index.explained_anywhere(self._namespace, self._digests, tickets, owner=self._owner)

    def succeeded(self, *, whole: bool = True) -> None:
        """Say that the replica did well: at the end of a whole answer, or already at its beginning where that answers a half-open breaker's question.

        A replica that begins every stream and finishes none must not look well, so other streams wait for their end. An attempt that ends without
        a word was undecided: the client left, or the replica was merely busy.
        """
        if not self._told and (whole or self._probe):
            self._told = True
            self._breaker.succeeded(probe=self._probe)

    def _count_failure(self) -> None:
        self.engine.failures += 1
        self._breaker.failed(time.monotonic(), probe=self._probe and not self._told)
        self._told = True

    def failed(self, error: str, *, breaker: bool = True) -> None:
        """Note a failure by a code of ours."""
        self.error = error
        self._plane.metrics.attempts_failed.labels(cause=error).inc()
        if breaker:
            self._count_failure()

    def release(self) -> AttemptRecord | None:
        """Give everything back. A prompt cancelled after the engine had answered with headers stays cached there; one that failed does not count."""
        if self._released:
            return None
        self._released = True
        now_s = time.monotonic()
        if self.upstream is not None:
            self.upstream.close()
        self.place.ledger.release(self._entry)
        if not self._resident:
            if self._headers_seen and self.error is None:
                self._confirm(now_s)
            else:
                certain = not self.sent or self.error in _NEVER_RAN
                self._plane.index.dropped(self._namespace, self._digests, self.place.key, self._ticket, owner=self._owner, certain=certain)
                self._plane.outbox.settled(self._serial, confirmed=False, certain=certain, at_s=now_s)
        if not self._told:
            self._breaker.undecided(probe=self._probe)
        self.place.give_back()
        self.engine.work.change(-1, now_s)
        self.engine.promised_tokens = 0.0 if self.engine.in_flight == 0 else self.engine.promised_tokens - self._promised_tokens
        self._plane.outbox.wake()
        if self.engine.in_flight == 0 and self.engine.url not in self._plane.replicas:
            self._plane.forget_unused()
        if not self.sent:
            return None
        return AttemptRecord(
            replica_id=str(self.choice.replica.entry.id),
            status=self.status,
            error=self.error,
            duration_s=now_s - self.started_s,
            part=self.part,
            dp_rank=None if self.choice.rank is None else self.choice.rank.number,
        )


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
    session: bytes | None = None  # the session that the client says it belongs to, as a digest
    decision: Decision | None = None
    candidates: Weighed | None = None
    trial: Trial | None = None
    decide_s: float | None = None
    attempt: Attempt | None = None
    prefill: Attempt | None = None  # at the replica that computes the prompt for the attempt's
    transfer: Transfer | None = None
    attempts: list[AttemptRecord] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    first_byte_s: float | None = None  # monotonic
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
