"""Replay of a trace in simulated time: the router's scheduler in front of block engines. Deterministic: the same trace, fleet, policy and seed give
the same result, to the last digit.

A request without ``after_s`` arrives at its recorded time; one with it also keeps that distance from the end of its session's previous answer, so a
slow fleet slows its sessions down instead of being overrun. Requests longer than the model allows, and those that no replica is up for, are
*refused*; those whose replica goes away are tried again elsewhere before the first byte and *cut* after it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from routing.core import admission, gate
from routing.core.fair_queue import OUTPUT_WEIGHT, FairQueue, Waiter
from routing.core.policy import RoutingPolicy
from routing.core.types import Decision
from routing.traces.engine import BlockEngine, Ended, FirstToken
from routing.traces.fleet import Fault, FleetConfig
from routing.traces.measure import Measures
from routing.traces.request import Trace, TraceRequest
from routing.traces.router import Dispatch, Router

# What happens at one instant happens in this order.
_STRETCH_ENDS, _EVENTS, _FIRST_BYTE, _ENDED, _FAULT, _NOTICED, _ARRIVAL, _RELEASE, _LOOK, _SUBMIT, _BEGIN = range(11)
SAMPLES_S = 30.0  # between two looks at what is resident where
TICK_S = 0.05  # between two looks at the line of waiting requests, besides those when something was freed
EXPECTED_OUTPUT_TOKENS = 128.0
MIXER = 0x9E3779B97F4A7C15F39CC0605CEDC835  # odd: a bijection of 128-bit ids that spreads small ones


@dataclass(slots=True)
class _Flight:
    request: TraceRequest
    digests: list[bytes]
    arrived_s: float
    dispatch: Dispatch | None = None
    tries: int = 0
    queued_s: float = 0.0
    burst: bytes | None = None  # the prefix by which it leads or follows a burst
    following: bool = False


class Replay:
    """One run. ``run()`` returns what was measured.

    ``late_binding``: requests wait as in the live router, behind the leader of a burst and in line while every replica has others' work to do.
    Nobody is refused for waiting long, so that all policies answer the same requests.
    """

    def __init__(
        self, trace: Trace, fleet: FleetConfig, policy: RoutingPolicy, *, ttft_slo_s: float | None = None, seed: int = 1, late_binding: bool = False
    ) -> None:
        if trace.block_tokens != fleet.block_tokens:
            raise ValueError(f"the trace has blocks of {trace.block_tokens} tokens, the fleet of {fleet.block_tokens}")
        self.fleet = fleet
        self.router = Router(fleet, policy, ttft_slo_s=ttft_slo_s, seed=seed)
        self.engines = [BlockEngine(fleet.engine()) for _ in fleet.speeds]
        for engine, speed in zip(self.engines, fleet.speeds, strict=True):
            engine.speed = speed
        self.measures = Measures(replicas=len(fleet.speeds), ttft_slo_s=ttft_slo_s)
        self._trace: Iterator[TraceRequest] = trace.requests
        self._queue: list[tuple[float, int, int, object]] = []
        self._serial = 0
        self._flights: dict[int, _Flight] = {}
        self._flight_number = 0
        self._busy_sessions: dict[str, deque[TraceRequest]] = {}  # requests that wait for their session's answer
        self._ended_sessions: dict[str, float] = {}
        self._ends_s = [0.0] * len(self.engines)
        self._away = [False] * len(self.engines)
        self._next_sample_s = 0.0
        self._slo_s = ttft_slo_s
        self._late = late_binding
        self._gate = gate.Gate()
        self._line = FairQueue(max_waiters=1_000_000)
        self._look_at_s = -1.0

    def run(self) -> Measures:
        """Replay everything and wait for the last answer."""
        for fault in self.fleet.faults:
            self._at(fault.at_s, _FAULT, fault)
        self._pull()
        handlers: dict[int, Callable[[float, Any], None]] = {
            _STRETCH_ENDS: self._stretch_ends, _EVENTS: self._events, _FIRST_BYTE: self._first_byte, _ENDED: self._ended, _FAULT: self._fault,
            _NOTICED: self._noticed, _RELEASE: self._release, _LOOK: self._look, _ARRIVAL: self._arrival, _SUBMIT: self._submit, _BEGIN: self._begin,
        }  # fmt: skip
        now_s = 0.0
        while self._queue:
            now_s, kind, _, what = heapq.heappop(self._queue)
            handlers[kind](now_s, what)
        self.measures.finish(now_s, [engine.busy_s for engine in self.engines], sum(engine.evicted_blocks for engine in self.engines))
        return self.measures

    def _at(self, at_s: float, kind: int, what: object) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (at_s, kind, self._serial, what))

    # -- arrivals ------------------------------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Put the next request of the trace into the queue, or behind its session's answer: one at a time, so memory does not grow with the trace."""
        for request in self._trace:
            waiting = self._busy_sessions.get(request.session) if request.session and request.after_s is not None else None
            if waiting is not None:
                waiting.append(request)
                continue
            if request.session:
                self._busy_sessions.setdefault(request.session, deque())
            self._at(self._due_s(request), _ARRIVAL, (request, True))
            return

    def _due_s(self, request: TraceRequest) -> float:
        ended_s = self._ended_sessions.get(request.session) if request.after_s is not None else None
        return request.at_s if ended_s is None else max(request.at_s, ended_s + (request.after_s or 0.0))

    def _session_over(self, session: str, now_s: float) -> None:
        if not session:
            return
        waiting = self._busy_sessions.get(session)
        self._ended_sessions[session] = now_s
        if waiting:
            request = waiting.popleft()
            self._at(max(now_s, self._due_s(request)), _ARRIVAL, (request, False))
        else:
            self._busy_sessions.pop(session, None)

    def _arrival(self, now_s: float, what: tuple[TraceRequest, bool]) -> None:
        request, pulled = what
        if pulled:
            self._pull()
        if now_s >= self._next_sample_s:
            self._next_sample_s = now_s + SAMPLES_S
            self.measures.sample([engine.pool.cached_digests for engine in self.engines])
        size = self.fleet.block_tokens
        digests = [(one * MIXER % (1 << 128)).to_bytes(16, "big") for one in request.blocks[: request.prompt_tokens // size]]
        self.measures.arrived(request)
        self._flight_number += 1
        self._flights[self._flight_number] = _Flight(request, digests, now_s)
        self._dispatch(self._flight_number, now_s)

    def _dispatch(self, number: int, now_s: float) -> None:
        flight = self._flights[number]
        request = flight.request
        too_long = request.prompt_tokens + request.output_tokens > self.engines[0].config.max_model_len_tokens
        if self._late and flight.tries == 0 and not too_long:
            self._turn(number, now_s, followed=False)
            return
        dispatch = None if too_long else self._choose(flight, now_s)
        if dispatch is None:
            self._refuse(number, now_s)
        else:
            self._send(number, dispatch, now_s)

    def _refuse(self, number: int, now_s: float) -> None:
        flight = self._flights.pop(number)
        self.measures.refused += 1
        self._left(number, flight, now_s)
        self._session_over(flight.request.session, now_s)

    def _send(self, number: int, dispatch: Dispatch, now_s: float) -> None:
        flight = self._flights[number]
        flight.dispatch = dispatch
        flight.tries += 1
        self._at(now_s + self.fleet.network_s, _SUBMIT, (number, dispatch))

    def _choose(self, flight: _Flight, now_s: float) -> Dispatch | None:
        request = flight.request
        return self.router.choose(request.prompt_tokens, flight.digests, now_s, session=request.session, again=flight.tries > 0)

    # -- waiting, as in the live router --------------------------------------------------------------------------------

    def _decide(self, flight: _Flight, now_s: float, *, again: bool) -> Decision | None:
        waited_s, prompt_tokens = now_s - flight.arrived_s, flight.request.prompt_tokens
        return self.router.decide(prompt_tokens, flight.digests, now_s, session=flight.request.session, again=again, waited_s=waited_s)

    def _turn(self, number: int, now_s: float, *, followed: bool) -> None:
        """Send the request, or let it wait."""
        flight = self._flights[number]
        decision = self._decide(flight, now_s, again=followed)
        if decision is None:
            self._refuse(number, now_s)
        elif not followed and (hold_s := self._hold_s(number, flight, decision, now_s)) is not None:
            flight.following = True
            self._at(now_s + hold_s, _RELEASE, number)
        elif not len(self._line) and admission.commits(decision, self._slo_s):
            self._send(number, self._take(decision, flight, now_s), now_s)
        else:
            cost_tokens = decision.chosen.uncached_tokens + OUTPUT_WEIGHT * EXPECTED_OUTPUT_TOKENS
            self._line.add(Waiter(id=number, tenant=b"t", key=b"k", cost_tokens=cost_tokens, deadline_s=now_s))
            self._look(now_s, None)

    def _take(self, decision: Decision, flight: _Flight, now_s: float) -> Dispatch:
        return self.router.take(decision, flight.request.prompt_tokens, flight.digests, now_s)

    def _hold_s(self, number: int, flight: _Flight, decision: Decision, now_s: float) -> float | None:
        if self.router.policy.policy != "ettft":  # as in the live router: the baselines are what they are called
            return None
        chosen, size = decision.chosen, self.fleet.block_tokens
        held_tokens = chosen.matched_tokens if chosen.evidence == "event" else 0
        position = held_tokens // size + gate.MIN_TOKENS // size
        if position >= len(flight.digests) or chosen.uncached_tokens < gate.MIN_TOKENS:
            return None
        flight.burst = flight.digests[position]
        return self._gate.arrive(
            flight.burst,
            number,
            uncached_tokens=chosen.uncached_tokens,
            expected_ttft_s=chosen.expected_ttft_s,
            joins=chosen.evidence == "pending",
            bound_s=gate.bound_s(self._slo_s),
            now_s=now_s,
        )

    def _release(self, now_s: float, number: int) -> None:
        """A follower may go: its leader's first byte is there, or it waited as long as it may."""
        flight = self._flights.get(number)
        if flight is None or not flight.following:
            return
        flight.following = False
        if flight.burst is not None:
            self._gate.gave_up(flight.burst, number)
        self._turn(number, now_s, followed=True)

    def _left(self, number: int, flight: _Flight, now_s: float) -> None:
        heir = None if flight.burst is None else self._gate.lost(flight.burst, number)
        if heir is not None:
            self._at(now_s, _RELEASE, heir)

    def _look(self, now_s: float, _what: None) -> None:
        """Send whoever can go, in order."""
        while (head := self._line.peek()) is not None:
            flight = self._flights[head.id]
            decision = self._decide(flight, now_s, again=True)
            if decision is not None and not admission.commits(decision, self._slo_s):
                break
            self._line.take(head.id)
            if decision is None:
                self._refuse(head.id, now_s)
            else:
                self._send(head.id, self._take(decision, flight, now_s), now_s)
        if len(self._line) and self._look_at_s <= now_s:
            self._look_at_s = now_s + TICK_S
            self._at(self._look_at_s, _LOOK, None)

    # -- engines -------------------------------------------------------------------------------------------------------

    def _submit(self, now_s: float, what: tuple[int, Dispatch]) -> None:
        number, dispatch = what
        replica, flight = dispatch.replica, self._flights[number]
        if self._away[replica]:
            self._lost(number, now_s)
            return
        engine = self.engines[replica]
        self._interrupt(replica, now_s)
        engine.submit(number, flight.request.prompt_tokens, flight.request.output_tokens, flight.digests, now_s)
        if not engine.stretching:
            self._at(now_s, _BEGIN, replica)

    def _interrupt(self, replica: int, now_s: float) -> None:
        """Let a long stretch end at its next step."""
        engine = self.engines[replica]
        if engine.stretching:
            end_s = engine.cut(now_s)
            if end_s != self._ends_s[replica]:
                self._ends_s[replica] = end_s
                self._at(end_s, _STRETCH_ENDS, (replica, engine))

    def _begin(self, now_s: float, replica: int) -> None:
        engine = self.engines[replica]
        if engine.stretching or not engine.has_work:
            return
        end_s = self._ends_s[replica] = engine.begin(now_s)
        self._at(end_s, _STRETCH_ENDS, (replica, engine))
        if engine.stored_events or engine.removed_events:
            if self.fleet.residency == "events":
                batch = (replica, engine, engine.stored_events, engine.removed_events)
                self._at(engine.first_step_ends_s + self.fleet.event_lag_s, _EVENTS, batch)
            engine.stored_events, engine.removed_events = [], []

    def _stretch_ends(self, now_s: float, what: tuple[int, BlockEngine]) -> None:
        replica, engine = what
        if engine is not self.engines[replica] or not engine.stretching or now_s != self._ends_s[replica]:
            return  # cut short, or another process now
        first, ended = engine.complete()
        for token in first:
            self._at(now_s + self.fleet.network_s, _FIRST_BYTE, (token, self._flights[token.request].dispatch))
        for end in ended:
            self._at(now_s + self.fleet.network_s, _ENDED, (end, self._flights[end.request].dispatch))
        self._at(now_s, _BEGIN, replica)

    def _events(self, _now_s: float, what: tuple[int, BlockEngine, list[bytes], list[bytes]]) -> None:
        replica, engine, stored, removed = what
        if engine is self.engines[replica] and self.router.engines[replica].up:
            self.router.heard(replica, stored, removed)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _first_byte(self, now_s: float, what: tuple[FirstToken, Dispatch]) -> None:
        token, dispatch = what
        flight = self._flights.get(token.request)
        if flight is None or flight.dispatch is not dispatch:
            return
        self.router.first_byte(dispatch, token.cached_tokens, now_s)
        flight.queued_s = token.queued_s
        if flight.burst is not None:
            for follower in self._gate.opened(flight.burst, token.request):
                self._at(now_s, _RELEASE, follower)
        if len(self._line):
            self._look(now_s, None)

    def _ended(self, now_s: float, what: tuple[Ended, Dispatch]) -> None:
        end, dispatch = what
        flight = self._flights.get(end.request)
        if flight is None or flight.dispatch is not dispatch or dispatch.first_byte_s is None:
            return
        del self._flights[end.request]
        self.router.ended(dispatch, flight.request.prompt_tokens, now_s)
        self._left(end.request, flight, now_s)
        if len(self._line):
            self._look(now_s, None)
        self.measures.answered(
            flight.request,
            replica=dispatch.replica,
            ttft_s=dispatch.first_byte_s - flight.arrived_s,
            e2e_s=now_s - flight.arrived_s,
            queued_s=flight.queued_s,
            cached_tokens=dispatch.cached_tokens,
            expected_cached_tokens=dispatch.decision.chosen.expected_cached_tokens,
            expected_ttft_s=dispatch.decision.chosen.expected_ttft_s,
            engine_ttft_s=dispatch.first_byte_s - dispatch.at_s,
            at_s=flight.arrived_s,
        )
        self._session_over(flight.request.session, now_s)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fault(self, now_s: float, fault: Fault) -> None:
        replica = fault.replica
        self._interrupt(replica, now_s)
        if fault.speed is not None:
            self.engines[replica].speed = self.fleet.speeds[replica] * fault.speed
            return
        if self._away[replica]:  # it comes back
            self._away[replica] = False
            self._at(now_s + self.fleet.refresh_s, _NOTICED, (replica, True))
            return
        old = self.engines[replica]
        fresh = self.engines[replica] = BlockEngine(self.fleet.engine())
        fresh.speed, fresh.busy_s, fresh.evicted_blocks = old.speed, old.busy_s, old.evicted_blocks
        self._away[replica] = True
        self._noticed(now_s, (replica, False))  # connections break: the router knows at once
        for number in old.unfinished():
            self._lost(number, now_s)
        self._at(now_s + (fault.down_s or 0.0), _FAULT, replace(fault))

    def _noticed(self, now_s: float, what: tuple[int, bool]) -> None:
        self.router.set_up(*what, now_s)

    def _lost(self, number: int, now_s: float) -> None:
        flight = self._flights[number]
        if flight.dispatch is None:
            raise RuntimeError("nothing was sent")
        began = flight.dispatch.first_byte_s is not None
        self.router.lost(flight.dispatch, now_s)
        self._left(number, flight, now_s)
        if began:
            del self._flights[number]
            self.measures.cut += 1
            self._session_over(flight.request.session, now_s)
        else:
            self.measures.retried += 1
            self._dispatch(number, now_s)
