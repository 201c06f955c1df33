"""The router in a replay: the live router's own ledger, calibration, history and scheduler, filled as the live router fills them.

What is modelled here and not shared with it: events arrive as digests (no ZMQ, no tokens), in order and without gaps; there is one router, one
tenant, one namespace; every answer streams; no client leaves. Of trust its kappa counts; its verdicts change nothing, since nothing can be replayed
or asked for again. With events, blocks that the router has just sent count too: as promised while their prefill is under way, as inferred for
``YOUNG_S`` after it, until the events say so themselves.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from routing.core import prefix, scheduler
from routing.core.calibration import ENOUGH, Calibration
from routing.core.candidates import ramp
from routing.core.ledger import Ledger
from routing.core.policy import RoutingPolicy
from routing.core.residency import P_EVENT, P_INFERRED, P_PENDING, HistoryIndex
from routing.core.trust import Answer
from routing.core.trust_table import TrustTable
from routing.core.types import Ask, Decision, Replica
from routing.core.working_set import WorkingSet
from routing.traces.fleet import FleetConfig

YOUNG_S = 2.0  # how long an answer may show what no event has said yet
MIN_KAPPA = 0.01  # below it, what was predicted before kappa is no longer told from the product
OWNER = b"tenant"  # whose prompts all of them are
FIRST_BYTE_S = 600.0  # after which a ledger entry stops counting whatever happens
DOWN = "unreachable"


class _Events:
    """What events have said of one replica, and what was sent there and is not yet in them."""

    __slots__ = ("held", "pending", "young", "youth")

    def __init__(self) -> None:
        self.held: dict[bytes, int] = {}
        self.pending: dict[bytes, int] = {}
        self.young: dict[bytes, float] = {}  # until when it counts, s
        self.youth: deque[tuple[float, Sequence[bytes]]] = deque()

    def apply(self, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        for digest in stored:
            self.held[digest] = self.held.get(digest, 0) + 1
        for digest in removed:
            copies = self.held.get(digest, 0)
            if copies > 1:
                self.held[digest] = copies - 1
            elif copies:
                del self.held[digest]

    def sent(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            self.pending[digest] = self.pending.get(digest, 0) + 1

    def settled(self, digests: Sequence[bytes], now_s: float, *, ran: bool) -> None:
        for digest in digests:
            left = self.pending.get(digest, 0) - 1
            if left > 0:
                self.pending[digest] = left
            else:
                self.pending.pop(digest, None)
            if ran:
                self.young[digest] = now_s + YOUNG_S
        if ran:
            self.youth.append((now_s + YOUNG_S, digests))
        while self.youth and self.youth[0][0] < now_s:
            for digest in self.youth.popleft()[1]:
                if self.young.get(digest, now_s) < now_s:
                    del self.young[digest]

    def match(self, digests: Sequence[bytes], now_s: float) -> tuple[int, float, str]:
        """(leading blocks, mean confidence, evidence). Whatever touches a block touches all before it, so bisection finds the ends."""
        held, young, pending = self.held, self.young, self.pending
        confirmed = bisect_left(range(len(digests)), True, key=lambda place: digests[place] not in held)
        shown = bisect_left(range(len(digests)), True, lo=confirmed, key=lambda place: young.get(digests[place], -1.0) < now_s)
        promised = bisect_left(range(len(digests)), True, lo=shown, key=lambda place: digests[place] not in pending)
        if promised == 0:
            return 0, 0.0, "none"
        blocks = confirmed * P_EVENT + (shown - confirmed) * P_INFERRED + (promised - shown) * P_PENDING
        return promised, blocks / promised, "pending" if promised > shown else "inferred" if shown > confirmed else "event"


@dataclass(slots=True)
class _Engine:
    """One replica as the router knows it."""

    name: str
    up: bool = True
    ledger: Ledger = field(default_factory=Ledger)
    calibration: Calibration = field(default_factory=Calibration)
    events: _Events = field(default_factory=_Events)
    working_set: WorkingSet = field(default_factory=WorkingSet)
    returned_at_s: float = -math.inf
    in_flight: int = 0
    last_chosen: int = 0
    generation: int = 0


@dataclass(slots=True)
class Dispatch:
    """One request on its way: what its record needs, and what has to be given back."""

    replica: int
    at_s: float
    digests: Sequence[bytes]
    decision: Decision
    was_idle: bool
    ledger_entry: int
    ticket: int
    generation: int
    prompt_tokens: int
    exact: bool  # predicted from events alone, so right to the block where nothing is wrong
    kappa: float
    first_byte_s: float | None = None
    cached_tokens: int = 0


class Router:
    """One router over one fleet. ``seed`` names the namespace: it ranks cold replicas."""

    def __init__(self, fleet: FleetConfig, policy: RoutingPolicy, *, ttft_slo_s: float | None, seed: int) -> None:
        self.fleet, self.policy, self.ttft_slo_s = fleet, policy, ttft_slo_s
        self.engines = [_Engine(f"r{number:02}") for number in range(len(fleet.speeds))]
        self._seed = seed.to_bytes(16, "big")
        self._history = HistoryIndex()
        self._capacity_blocks = fleet.cache_tokens // fleet.block_tokens
        for engine in self.engines:
            self._history.set_capacity(engine.name, self._capacity_blocks)
            for _ in range(ENOUGH):
                engine.calibration.observe_network(2 * fleet.network_s)
        self._by_events = fleet.residency == "events"
        self._trust = TrustTable()
        self._sequence = 0

    def choose(self, prompt_tokens: int, digests: Sequence[bytes], now_s: float, *, session: str = "", again: bool = False) -> Dispatch | None:
        """Pick a replica and take what a dispatch takes; None if nobody may serve it."""
        decision = self.decide(prompt_tokens, digests, now_s, session=session, again=again)
        return None if decision is None else self.take(decision, prompt_tokens, digests, now_s)

    def decide(
        self, prompt_tokens: int, digests: Sequence[bytes], now_s: float, *, session: str = "", again: bool = False, waited_s: float = 0.0
    ) -> Decision | None:
        """Pick a replica; None if nobody may serve the request. ``waited_s`` is gone from its objective."""
        head = b"".join(digests[:2]) or b"short" + self._sequence.to_bytes(8, "big")
        key = session.encode() if session and self.policy.policy == "session" else None
        left_s = None if self.ttft_slo_s is None else max(0.0, self.ttft_slo_s - waited_s)
        ask = Ask(prompt_tokens=prompt_tokens, prefix_key=head, ttft_slo_s=left_s, session_key=key, sequence=self._sequence)
        if not again:
            self._sequence += 1
        rates = [one.calibration.own_rate for one in self.engines if one.calibration.own_rate is not None]
        pool_rate = median(rates) if rates else None
        pictures = [self._picture(engine, ask, digests, pool_rate, now_s) for engine in self.engines]
        decision = scheduler.decide(ask, pictures, self.policy)
        return decision if isinstance(decision, Decision) else None

    def take(self, decision: Decision, prompt_tokens: int, digests: Sequence[bytes], now_s: float) -> Dispatch:
        """Take what a dispatch takes."""
        number = int(decision.chosen.replica_id[1:])
        engine = self.engines[number]
        engine.last_chosen = self._sequence
        was_idle = engine.in_flight == 0
        engine.in_flight += 1
        engine.working_set.touch(digests, now_s)
        ticket = 0
        if self._by_events:
            engine.events.sent(digests)
        else:
            ticket = self._history.dispatched(self._seed, digests, engine.name)
        entry = engine.ledger.add(decision.chosen.uncached_tokens, until_s=now_s + FIRST_BYTE_S)
        evidence = decision.chosen.evidence
        exact, kappa = self._by_events and evidence in ("event", "none"), self._kappa(engine, evidence, now_s)
        return Dispatch(number, now_s, digests, decision, was_idle, entry, ticket, engine.generation, prompt_tokens, exact, kappa)

    def _picture(self, engine: _Engine, ask: Ask, digests: Sequence[bytes], pool_rate: float | None, now_s: float) -> Replica:
        """One candidate as the scheduler sees it."""
        if not engine.up:
            return Replica(id=engine.name, name=engine.name, refusal=DOWN, in_flight=engine.in_flight)
        age_s = 0.0
        if self._by_events:
            blocks, confidence, evidence = engine.events.match(digests, now_s)
        else:
            match = self._history.match(self._seed, digests, engine.name, now_s)
            blocks, confidence, evidence, age_s = match.blocks, match.confidence, match.source or "none", match.age_s
        queued_tokens, waiting = engine.ledger.queued(now_s)
        return Replica(
            id=engine.name,
            name=engine.name,
            queued_tokens=queued_tokens,
            active_decodes=max(0, engine.in_flight - waiting),
            in_flight=engine.in_flight,
            last_chosen=engine.last_chosen,
            matched_tokens=min(blocks, (ask.prompt_tokens - 1) // self.fleet.block_tokens)
            * self.fleet.block_tokens,  # an engine computes the last token
            confidence=confidence * self._kappa(engine, evidence, now_s),
            evidence=evidence,
            evidence_age_s=age_s,
            prefill_tokens_per_s=engine.calibration.rate(pool_rate, now_s),
            fixed_s=engine.calibration.fixed_s,
            network_s=engine.calibration.network_s,
            decode_interference=engine.calibration.gamma,
            ramp=ramp(now_s - engine.returned_at_s),
            working_set_blocks=engine.working_set.size(now_s),
            capacity_blocks=self._capacity_blocks,
            reuse_share=engine.calibration.reuse_share,
            new_blocks=max(0, len(digests) - blocks),
            rank=prefix.rendezvous(self._seed, (ask.session_key or ask.prefix_key,), engine.name.encode()),
        )

    def first_byte(self, dispatch: Dispatch, cached_tokens: int, now_s: float) -> None:
        """Prefill is over: its tokens leave the ledger, the prompt is resident."""
        engine = self.engines[dispatch.replica]
        dispatch.first_byte_s, dispatch.cached_tokens = now_s, cached_tokens
        engine.ledger.release(dispatch.ledger_entry)
        self._settle(dispatch, now_s, ran=True)
        if dispatch.exact:
            self._learn_speed(dispatch, dispatch.prompt_tokens - dispatch.decision.chosen.matched_tokens, now_s)

    def ended(self, dispatch: Dispatch, prompt_tokens: int, now_s: float) -> None:
        """The whole answer is there with its usage: learn from it."""
        engine = self.engines[dispatch.replica]
        engine.in_flight -= 1
        engine.calibration.observe_reuse(prompt_tokens=prompt_tokens, cached_tokens=dispatch.cached_tokens)
        self._judge(dispatch, prompt_tokens, now_s)
        if not dispatch.exact:
            self._learn_speed(dispatch, prompt_tokens - dispatch.cached_tokens, now_s)

    def _learn_speed(self, dispatch: Dispatch, uncached_tokens: int, now_s: float) -> None:
        if dispatch.first_byte_s is None:
            return
        chosen = dispatch.decision.chosen
        self.engines[dispatch.replica].calibration.observe_ttft(
            tokens_ahead=chosen.queued_tokens,
            uncached_tokens=max(1.0, float(uncached_tokens)),
            idle=dispatch.was_idle,
            ttft_s=dispatch.first_byte_s - dispatch.at_s,
            expected_s=chosen.expected_ttft_s,
            now_s=now_s,
            decodes=chosen.decodes,
        )

    def _kappa(self, engine: _Engine, evidence: str, now_s: float) -> float:
        return min(1.0, self._trust.kappa((engine.name, 0), OWNER, self._seed, exact=evidence == "event", now_s=now_s))

    def _judge(self, dispatch: Dispatch, prompt_tokens: int, now_s: float) -> None:
        """Hold the answer against what was predicted, where it was settled: not another request's to make true."""
        chosen = dispatch.decision.chosen
        if not dispatch.exact and (self._by_events or chosen.evidence == "pending"):
            return
        answer = Answer(
            matched_tokens=chosen.matched_tokens,
            predicted_tokens=min(float(chosen.matched_tokens), chosen.expected_cached_tokens / max(MIN_KAPPA, dispatch.kappa)),
            cached_tokens=dispatch.cached_tokens,
            prompt_tokens=prompt_tokens,
            exact=dispatch.exact,
            block_tokens=self.fleet.block_tokens,
            counted_tokens=prompt_tokens,
            age_s=chosen.evidence_age_s,
        )
        self._trust.observe((self.engines[dispatch.replica].name, 0), OWNER, self._seed, answer, now_s)

    def lost(self, dispatch: Dispatch, now_s: float) -> None:
        """The connection broke."""
        engine = self.engines[dispatch.replica]
        engine.in_flight -= 1
        if dispatch.first_byte_s is None:
            engine.ledger.release(dispatch.ledger_entry)
            self._settle(dispatch, now_s, ran=False)

    def _settle(self, dispatch: Dispatch, now_s: float, *, ran: bool) -> None:
        engine = self.engines[dispatch.replica]
        if self._by_events:
            if dispatch.generation == engine.generation:
                engine.events.settled(dispatch.digests, now_s, ran=ran)
        elif ran:
            self._history.confirmed(self._seed, dispatch.digests, engine.name, dispatch.ticket, now_s)
        else:
            self._history.dropped(self._seed, dispatch.digests, engine.name, dispatch.ticket)

    def heard(self, replica: int, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """A batch of KV events arrived."""
        self.engines[replica].events.apply(stored, removed)

    def set_up(self, replica: int, up: bool, now_s: float) -> None:
        """The router noticed that a replica went away or came back empty."""
        engine = self.engines[replica]
        if up and not engine.up:
            engine.returned_at_s = now_s
        engine.up = up
        if not up:
            engine.working_set.clear()
            engine.generation += 1
            engine.events = _Events()
            self._trust.forget((engine.name, 0))
            self._history.forget(engine.name)
            self._history.set_capacity(engine.name, self._capacity_blocks)

    def queued_tokens(self, now_s: float) -> float:
        """All ledgers together: 0 when nothing is in flight."""
        return sum(engine.ledger.queued(now_s)[0] for engine in self.engines)
