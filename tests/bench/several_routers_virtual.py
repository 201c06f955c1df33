"""``python -m tests.bench.several_routers_virtual``: what ``tests.bench.several_routers`` asks, in virtual time, where no machine is too slow.

The router's own scheduler, history, ledger, scrapes, outbox and merging; engines that prefill one prompt after the other at 8,000 tokens/s and decode
beside it. A beat leaves 10 ms after something happened and takes ``--transit-ms``. Load is the share of time in which engines prefill.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from routing.core import prefix, scheduler
from routing.core.breaker import Breaker
from routing.core.exposition import EngineLoad
from routing.core.peering import BEAT, Head, Load, Outbox, engine_id
from routing.core.policy import RoutingPolicy, compile_routing
from routing.core.residency import HistoryIndex
from routing.core.siblings import Here, Siblings
from routing.core.types import Ask, Decision, Replica
from routing.dataplane.engine import Engine
from routing.dataplane.feeds.peers import BATCH_S, BEAT_S

NAMESPACE, OWNER, SEED = b"n" * 16, b"o" * 16, b"s" * 32
BLOCK_TOKENS = 32  # of the history's 128 bytes at 4 bytes a token
RATE = 8000.0
FIXED_S = 0.03
SCRAPE_S = 1.0
GAPS_S = (0.0, 0.005, 0.02, 0.06, 0.15)


class Clock:
    """Events in order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._serial), what))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()


@dataclass
class Server:
    """A simulated engine."""

    url: str
    free_at_s: float = 0.0
    waiting: int = 0
    running: int = 0
    held: set[bytes] = field(default_factory=set)


class Simulated:
    """One router among its siblings."""

    def __init__(self, name: int, clock: Clock, servers: list[Server], policy: RoutingPolicy) -> None:
        self.process = bytes([name]) * 16
        self.clock, self.servers, self.policy = clock, servers, policy
        self.index, self.outbox, self.siblings = HistoryIndex(capacity_blocks=10**7), Outbox(), Siblings(self.process)
        self.engines = {server.url: Engine(url=server.url, breaker=Breaker()) for server in servers}
        self.here = Here(self.index, {OWNER}, {engine_id(server.url): server.url for server in servers})
        self.others: list[Simulated] = []
        self.transit_s = 0.0
        self._counter, self._due = 0, False

    # -- words --------------------------------------------------------------------------------------------------------------------

    def meet(self, others: list[Simulated], transit_s: float) -> None:
        self.others, self.transit_s = others, transit_s
        self.outbox.listening = True
        self.outbox.wake = self.wake
        self.clock.at(self.clock.now_s, self.heartbeat)

    def wake(self) -> None:
        if not self._due:
            self._due = True
            self.clock.at(self.clock.now_s + BATCH_S, self.beat)

    def heartbeat(self) -> None:
        self.beat()
        self.clock.at(self.clock.now_s + BEAT_S, self.heartbeat)

    def beat(self) -> None:
        self._due, now_s = False, self.clock.now_s
        self._counter += 1
        loads = [Load(engine_id(url), *one.ledger.queued(now_s), one.in_flight, self.outbox.asked(url)) for url, one in self.engines.items()]
        head = Head(BEAT, self.process, self._counter)
        beat = self.outbox.beat("r", loads=loads, heard=[other.process for other in self.others], now_s=now_s)
        for other in self.others:
            self.clock.at(now_s + self.transit_s, lambda other=other: other.hear(head, beat))  # type: ignore[misc] # bound early

    def hear(self, head: Head, beat: object) -> None:
        self.siblings.hear(head, beat, self.clock.now_s)  # type: ignore[arg-type] # a Beat
        self.siblings.take(head, beat, self.clock.now_s, self.here)  # type: ignore[arg-type] # a Beat

    # -- requests -----------------------------------------------------------------------------------------------------------------

    def scrape(self) -> None:
        for server in self.servers:
            shared = self.siblings.load(server.url, self.clock.now_s) if self.others else None
            self.engines[server.url].scraped(EngineLoad(running=server.running, waiting=server.waiting), self.clock.now_s, shared)
        self.clock.at(self.clock.now_s + SCRAPE_S, self.scrape)

    def picture(self, server: Server, digests: tuple[bytes, ...], tokens: int) -> Replica:
        now_s, engine = self.clock.now_s, self.engines[server.url]
        match = self.index.match(NAMESPACE, digests, server.url, now_s, owner=OWNER)
        queued_tokens, waiting = engine.ledger.queued(now_s)
        foreign_tokens, foreign_running = engine.foreign(now_s)
        shared = self.siblings.load(server.url, now_s)
        return Replica(
            id=server.url,
            name=server.url,
            queued_tokens=queued_tokens + shared.queued_tokens,
            foreign_tokens=foreign_tokens,
            active_decodes=max(0, engine.in_flight - waiting) + shared.decodes + foreign_running,
            in_flight=engine.in_flight + round(shared.in_flight),
            matched_tokens=min(tokens, match.blocks * BLOCK_TOKENS),
            confidence=match.confidence,
            evidence=match.source or "none",
            rank=prefix.rendezvous(SEED, digests[:2], server.url.encode()),
        )

    def send(self, digests: tuple[bytes, ...], answer_s: float) -> Decision:
        """Decide, dispatch, and let the engine do its work."""
        now_s, tokens = self.clock.now_s, len(digests) * BLOCK_TOKENS
        decision = scheduler.decide(
            Ask(prompt_tokens=tokens, prefix_key=b"".join(digests[:2])), [self.picture(one, digests, tokens) for one in self.servers], self.policy
        )
        assert isinstance(decision, Decision)
        server = next(one for one in self.servers if one.url == decision.chosen.replica_id)
        engine = self.engines[server.url]
        engine.in_flight += 1
        entry = engine.ledger.add(decision.chosen.uncached_tokens, until_s=now_s + 30)
        serial = self.outbox.placed(NAMESPACE, OWNER, server.url, digests, index=self.index, sequences=1)
        ticket = self.index.dispatched(NAMESPACE, digests, server.url, owner=OWNER)
        uncached = sum(digest not in server.held for digest in digests) * BLOCK_TOKENS
        server.free_at_s = max(now_s, server.free_at_s) + FIXED_S + uncached / RATE
        server.waiting += 1

        def first_byte() -> None:
            server.held.update(digests)
            server.waiting, server.running = server.waiting - 1, server.running + 1
            engine.ledger.release(entry)
            self.index.confirmed(NAMESPACE, digests, server.url, ticket, self.clock.now_s, owner=OWNER)
            self.outbox.settled(serial, confirmed=True, at_s=self.clock.now_s)
            self.clock.at(self.clock.now_s + answer_s, end)

        def end() -> None:
            server.running -= 1
            engine.in_flight -= 1
            self.outbox.wake()

        self.clock.at(server.free_at_s, first_byte)
        return decision


def measure(*, replicas: int, load: float, transit_s: float | None, prefixes: int, seed: int) -> tuple[Counter[float], Counter[str]]:
    """Agreements by the second router's delay, and why they were apart. ``transit_s`` None: they do not speak."""
    rng, clock = random.Random(seed), Clock()
    servers = [Server(f"http://engine-{number}") for number in range(replicas)]
    policy = compile_routing({"policy": "ettft"})
    pair = [Simulated(number, clock, servers, policy) for number in (1, 2)]
    for place, router in enumerate(pair):
        clock.at(rng.random() * SCRAPE_S, router.scrape)
        if transit_s is not None:
            router.meet([pair[1 - place]], transit_s)
    fresh = itertools.count()

    def prompt(blocks: int, begins: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
        return (*begins, *(next(fresh).to_bytes(16, "big") for _ in range(blocks)))

    def turn(router: Simulated, begins: tuple[bytes, ...], left: int) -> None:
        digests = prompt(rng.randint(5, 60), begins)
        router.send(digests, rng.uniform(0.5, 4))
        if left:
            clock.at(clock.now_s + rng.uniform(1, 6), lambda: turn(rng.choice(pair), digests, left - 1))

    def arrivals() -> None:
        turn(rng.choice(pair), (), rng.randint(0, 6))
        each_s = 4 * (32.5 * BLOCK_TOKENS / RATE + FIXED_S)  # prefill of a dialogue: four turns on average
        clock.at(clock.now_s + rng.expovariate(load * replicas / each_s), arrivals)

    if load:
        clock.at(0.0, arrivals)
    agreed: Counter[float] = Counter()
    causes: Counter[str] = Counter()

    def compare(one: Decision, two: Decision, gap_s: float) -> None:
        names = (one.chosen.replica_id, two.chosen.replica_id)
        agreed[gap_s] += names[0] == names[1]
        if names[0] != names[1]:
            scores = [{candidate.replica_id: candidate for candidate in decision.candidates} for decision in (one, two)]
            tied = all(abs(of[names[0]].score_s - of[names[1]].score_s) <= max(0.005, 0.02 * of[names[0]].score_s) for of in scores)
            later = any(of[name].matched_tokens for of in scores for name in names)
            causes["joining the first one would take longer" if later else "requests in flight, among ties" if tied else "queues"] += 1

    def cold(number: int) -> None:
        digests, gap_s = prompt(rng.choice((8, 30, 100))), GAPS_S[number % len(GAPS_S)]
        first, second = pair if rng.random() < 0.5 else pair[::-1]
        decided = first.send(digests, 0.5)
        clock.at(clock.now_s + gap_s, lambda: compare(decided, second.send(digests, 0.5), gap_s))

    for number in range(prefixes):
        clock.at(20 + number * 0.5 + rng.random() * 0.3, lambda number=number: cold(number))  # type: ignore[misc] # bound early
    clock.run(21 + prefixes * 0.5)
    return agreed, causes


def main(arguments: list[str] | None = None) -> None:
    """Print one row for each load, with sharing and without."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.several_routers_virtual", description=__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--prefixes", type=int, default=1000, help="cold prefixes in each row")
    parser.add_argument("--transit-ms", type=float, nargs="*", default=[3.0, 80.0])
    parser.add_argument("--loads", type=float, nargs="*", default=[0.0, 0.2, 0.5])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    each = options.prefixes // len(GAPS_S)
    for transit_ms in (*options.transit_ms, None):
        sys.stdout.write("no sharing\n" if transit_ms is None else f"words take {transit_ms:.0f} ms, {BATCH_S * 1000:.0f} ms after what they tell\n")
        for load in options.loads:
            transit_s = None if transit_ms is None else transit_ms / 1000
            agreed, causes = measure(replicas=options.replicas, load=load, transit_s=transit_s, prefixes=options.prefixes, seed=options.seed)
            row = "  ".join(f"{gap_s * 1000:3.0f} ms {agreed[gap_s] / each:6.1%}" for gap_s in GAPS_S)
            why = ", ".join(f"{cause} {count}" for cause, count in causes.most_common())
            sys.stdout.write(f"  load {load:3.0%}  all {agreed.total() / (each * len(GAPS_S)):6.1%}   {row}   {why and 'apart: ' + why}\n")


if __name__ == "__main__":
    main()
