"""Prefill and decode on two replicas against as many plain ones, in simulated time: does "remote prefill only when it pays" pay?

    SALTROUTE_DATA=... python -m tests.bench.policies_pairs [--size 0.5] [--seeds 3]

The pair is chosen by the router's own code (``routing.core.pairs``); prefill replicas compute and hand over, decode replicas may also compute by
themselves, as in the live router. *Always* splits every prompt that is long and cold enough, whatever is expected. A transfer costs what
:mod:`routing.core.links` supposes before it has learned: a set-up and a rate in tokens.
Simplifications: handing over takes no time of either engine; a received prompt's last, partial block is computed again (up to 512 tokens).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from routing.core import links, pairs
from routing.core.policy import RoutingPolicy
from routing.core.types import Ask, Decision, Replica
from routing.traces.engine import BlockEngine, Ended, FirstToken
from routing.traces.fleet import FleetConfig
from routing.traces.measure import Summary
from routing.traces.replay import Replay
from routing.traces.request import Trace, TraceRequest
from routing.traces.router import Dispatch, Router, _Engine
from tests.bench.policies import FLEET, SCENARIOS
from tests.bench.policies import Scenario as Workload

WAY = pairs.Way(links.SETUP_S, links.TOKENS_PER_S)
WANTED = ("conversation", "conversation, busy", "weak reuse", "repositories", "long outputs")
_SUBMIT = 9  # of the replay's events


@dataclass(slots=True)
class _Leg:
    """One request on two replicas. ``cached_tokens`` are those of the replica that computed the prompt."""

    prefill: Dispatch
    decode: Dispatch
    seconds: float
    moving: bool = False
    cached_tokens: int = 0


class _Router(Router):
    """The first ``prefills`` replicas only compute prompts for others."""

    def __init__(self, fleet: FleetConfig, *, prefills: int, always: bool, ttft_slo_s: float, seed: int) -> None:
        super().__init__(fleet, RoutingPolicy(), ttft_slo_s=ttft_slo_s, seed=seed)
        self.prefills, self.always = prefills, always
        self._asked: tuple[Ask, list[Replica]] | None = None

    def _picture(self, engine: _Engine, ask: Ask, digests: Sequence[bytes], pool_rate: float | None, now_s: float) -> Replica:
        picture = super()._picture(engine, ask, digests, pool_rate, now_s)
        if int(engine.name[1:]) == 0 or self._asked is None:
            self._asked = (ask, [])
        self._asked[1].append(picture)
        return replace(picture, refusal="prefill_only") if int(engine.name[1:]) < self.prefills else picture

    def pair(self, decision: Decision) -> pairs.Pair | None:
        """The pair that would answer sooner than the decision, which was just made."""
        if self._asked is None:
            return None
        ask, seen = self._asked
        capacity = self.fleet.cache_tokens
        rooms = [pairs.Room(one, capacity, None) for one in seen[self.prefills :]]
        return pairs.choose(
            ask, seen[: self.prefills], rooms, lambda _p, _d: WAY, local_s=math.inf if self.always else decision.chosen.expected_ttft_s
        )

    def both(self, pair: pairs.Pair, decision: Decision, prompt_tokens: int, digests: Sequence[bytes], now_s: float) -> _Leg:
        if self._asked is None:
            raise RuntimeError("nothing was asked")
        first, second = pairs.sides(self._asked[0], pair)
        legs = [self.take(replace(decision, chosen=side), prompt_tokens, digests, now_s) for side in (first, second)]
        return _Leg(legs[0], replace(legs[1], exact=False), pair.transfer_s)

    def handed_over(self, dispatch: Dispatch) -> None:
        """The whole answer of a decode replica: of its cache and its speed it says nothing."""
        self.engines[dispatch.replica].in_flight -= 1


@dataclass(slots=True)
class _Counts:
    split: int = 0
    legs: dict[int, _Leg] = field(default_factory=dict)


class _Replay(Replay):
    """Sends each request at once, by two replicas where that is expected to be sooner."""

    def __init__(self, trace: Trace, fleet: FleetConfig, *, prefills: int, always: bool, ttft_slo_s: float, seed: int) -> None:
        super().__init__(trace, fleet, RoutingPolicy(), ttft_slo_s=ttft_slo_s, seed=seed)
        self.pairing = _Router(fleet, prefills=prefills, always=always, ttft_slo_s=ttft_slo_s, seed=seed)
        self.router = self.pairing
        self.counts = _Counts()

    def _dispatch(self, number: int, now_s: float) -> None:
        flight = self._flights[number]
        decision = self._decide(flight, now_s, again=flight.tries > 0)
        pair = None if decision is None else self.pairing.pair(decision)
        if decision is None:
            self._refuse(number, now_s)
        elif pair is None:
            self._send(number, self._take(decision, flight, now_s), now_s)
        else:
            leg = self.pairing.both(pair, decision, flight.request.prompt_tokens, flight.digests, now_s)
            self.counts.split += 1
            self.counts.legs[number] = leg
            self._send(number, leg.prefill, now_s)

    def _submit(self, now_s: float, what: tuple[int, Dispatch]) -> None:
        number, dispatch = what
        leg = self.counts.legs.get(number)
        if leg is None:
            super()._submit(now_s, what)
            return
        flight, engine = self._flights[number], self.engines[dispatch.replica]
        flight.dispatch = dispatch
        whole = flight.request
        if leg.moving:
            self._interrupt(dispatch.replica, now_s)
            receive(engine, flight.digests)
        else:
            flight.request = replace(whole, output_tokens=1)
        super()._submit(now_s, what)
        flight.request = whole

    def _first_byte(self, now_s: float, what: tuple[FirstToken, Dispatch]) -> None:
        token, dispatch = what
        leg = self.counts.legs.get(token.request)
        if leg is None or (leg.moving and dispatch is leg.decode):
            cached = token.cached_tokens if leg is None else leg.cached_tokens
            super()._first_byte(now_s, (replace(token, cached_tokens=cached), dispatch))
            return
        leg.cached_tokens = token.cached_tokens
        self.router.first_byte(dispatch, token.cached_tokens, now_s)

    def _ended(self, now_s: float, what: tuple[Ended, Dispatch]) -> None:
        end, dispatch = what
        leg = self.counts.legs.get(end.request)
        flight = self._flights.get(end.request)
        if leg is None or flight is None:
            super()._ended(now_s, what)
        elif not leg.moving:
            self.router.ended(dispatch, flight.request.prompt_tokens, now_s)
            leg.moving = True
            self._at(now_s + leg.seconds, _SUBMIT, (end.request, leg.decode))
        else:
            del self.counts.legs[end.request]
            learned, self.pairing.ended = self.pairing.ended, lambda one, *_: self.pairing.handed_over(one)  # type: ignore[method-assign]
            try:
                super()._ended(now_s, what)
            finally:
                self.pairing.ended = learned  # type: ignore[method-assign]


def receive(engine: BlockEngine, digests: Sequence[bytes]) -> None:
    """Put a prompt's whole blocks into the cache, as far as there is room."""
    found = engine.pool.longest_prefix(digests)
    missing = list(digests[len(found) :])
    engine.pool.touch(found)
    if len(missing) <= engine.pool.free_blocks:
        taken, evicted = engine.pool.take(len(missing))
        for block, digest in zip(taken, missing, strict=True):
            engine.pool.store(block, digest)
        engine.pool.release(taken)
        engine.stored_events.extend(missing)
        engine.removed_events.extend(evicted)
        engine.evicted_blocks += len(evicted)
    engine.pool.release(found)


def compared(workload: Workload, *, seeds: int, size: float) -> Iterator[str]:
    """Rows of one workload: plain replicas, and the same number split."""
    drawn = [list(workload.make(seed, size)) for seed in range(1, seeds + 1)]
    for prefills, always in ((0, False), (2, False), (4, False), (2, True), (4, True), (5, True)):
        runs: list[tuple[Summary, int]] = []
        for seed, requests in enumerate(drawn, start=1):
            trace = Trace(workload.name, FLEET.block_tokens, timed=True, requests=iter(requests))
            replay = _Replay(trace, FLEET, prefills=prefills, always=always, ttft_slo_s=workload.slo_s, seed=seed)
            runs.append((replay.run().summary(), replay.counts.split))
        yield _row(workload.name, (f"{prefills} + {8 - prefills}" if prefills else "8 plain") + (", always" if always else ""), runs, drawn)


def _row(name: str, fleet: str, runs: Sequence[tuple[Summary, int]], drawn: Sequence[Sequence[TraceRequest]]) -> str:
    def of(field_name: str) -> float:
        return float(mean(getattr(summary, field_name) for summary, _ in runs))

    split = sum(count for _, count in runs) / sum(len(requests) for requests in drawn)
    return (
        f"| {name} | {fleet} | {split:.0%} | {of('ttft_mean_s'):.3f} | {of('ttft_p99_s'):.2f} | {of('e2e_p50_s'):.1f} | "
        f"{of('e2e_p99_s'):.1f} | {of('slo_share'):.1%} |"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=float, default=0.5)
    parser.add_argument("--only", action="append")
    options = parser.parse_args(arguments)
    sys.stdout.write("| scenario | replicas | split | mean TTFT s | p99 | E2E p50 s | p99 | SLO |\n|---|---|--:|--:|--:|--:|--:|--:|\n")
    for workload in SCENARIOS:
        if workload.name in (options.only or WANTED):
            for row in compared(workload, seeds=options.seeds, size=options.size):
                sys.stdout.write(row + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
