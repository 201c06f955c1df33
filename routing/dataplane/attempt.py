"""One dispatch: the engine's count, ledger tokens, breaker probe, pending residency, upstream connection; taken at once and given back at once."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Literal

from namespaces.core.salts import Namespace
from routing.core import prefix
from routing.core.breaker import Breaker
from routing.core.pairs import OUTPUT_TOKENS
from routing.core.record import AttemptRecord
from routing.dataplane import learn
from routing.dataplane.choice import Choice, Prompt
from routing.dataplane.metrics import failure
from routing.dataplane.openai import Call
from routing.dataplane.state import Plane

if TYPE_CHECKING:
    from routing.dataplane.upstream import Upstream

Part = Literal["answer", "prefill"]
# Errors after which no engine holds the prompt.
MAX_ANSWERS = 1024  # of one request that count as work at an engine: no more run there at once, whatever a body asks for
_NEVER_RAN = frozenset({"connect", "connect_timeout", "blocked", "no_socket", "client_error", "status_429", "model_not_served"})


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
        self._answers = min(call.sequences, MAX_ANSWERS)
        place.take(self._answers)
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
        self.engine.words += 1
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
        self._plane.metrics.attempts_failed.labels(cause=failure(error)).inc()
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
        self.place.give_back(self._answers)
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
