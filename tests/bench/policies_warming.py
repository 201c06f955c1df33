"""Deliberate warming after a restart, on and off, in simulated time: does computing hot prefixes ahead pay?

    python -m tests.bench.policies_warming [--size 0.5] [--seeds 3]

When a replica comes back empty, the hottest prefixes of the last five minutes are computed there at once: at least :data:`LEAST_TOKENS` long, asked
for at least :data:`LEAST_PER_MIN` times a minute, the most tokens asked for first, within :data:`SHARE` of the prompt tokens of those five minutes.
The router knows of it as of its own requests: in its ledger, as promised blocks, then by events. The budget and the thresholds are the design's;
nothing in the live router does this.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from routing.core.policy import RoutingPolicy
from routing.traces import workloads
from routing.traces.engine import Ended, FirstToken
from routing.traces.fleet import Fault, FleetConfig
from routing.traces.measure import Summary
from routing.traces.replay import Replay, _Flight
from routing.traces.request import Trace, TraceRequest
from routing.traces.router import Dispatch
from tests.bench.policies import FLEET, Make

WINDOW_S = 300.0
LEAST_TOKENS = 2000
LEAST_PER_MIN = 3.0
SHARE = 0.02


class _Warming(Replay):
    """Warms who comes back, with at most ``share`` of the prompt tokens of late; 0 warms nobody."""

    def __init__(self, trace: Trace, fleet: FleetConfig, *, share: float, seed: int) -> None:
        super().__init__(trace, fleet, RoutingPolicy(), ttft_slo_s=2.0, seed=seed, late_binding=True)
        self.share, self.warmed_tokens = share, 0
        self._seen: deque[tuple[float, int, tuple[bytes, ...]]] = deque()
        self._warms: dict[int, tuple[int, int, tuple[bytes, ...]]] = {}  # replica, entry in its ledger, blocks

    def _dispatch(self, number: int, now_s: float) -> None:
        flight = self._flights[number]
        self._seen.append((now_s, flight.request.prompt_tokens, tuple(flight.digests)))
        while self._seen[0][0] < now_s - WINDOW_S:
            self._seen.popleft()
        super()._dispatch(number, now_s)

    def _noticed(self, now_s: float, what: tuple[int, bool]) -> None:
        super()._noticed(now_s, what)
        replica, up = what
        if up and self.share > 0:
            self._warm(replica, now_s)

    def _warm(self, replica: int, now_s: float) -> None:
        size, engine = self.fleet.block_tokens, self.engines[replica]
        uses = Counter(digest for _, _, digests in self._seen for digest in digests)
        least = LEAST_PER_MIN * min(WINDOW_S, max(60.0, now_s - self._seen[0][0])) / 60 if self._seen else 0.0
        hot: dict[bytes, tuple[bytes, ...]] = {}
        for _, _, digests in self._seen:
            depth = sum(uses[digest] >= least for digest in digests)
            if depth * size >= LEAST_TOKENS:
                hot[digests[depth - 1]] = digests[:depth]
        left_tokens = self.share * sum(tokens for _, tokens, _ in self._seen)
        self._interrupt(replica, now_s)
        for chain in sorted(hot.values(), key=lambda chain: (-uses[chain[-1]] * len(chain), chain[-1])):
            tokens = len(chain) * size
            if tokens > left_tokens:
                break
            left_tokens -= tokens
            self.warmed_tokens += tokens
            self._flight_number += 1
            known = self.router.engines[replica]
            known.events.sent(chain)
            entry = known.ledger.add(tokens, until_s=now_s + 600.0)
            self._warms[self._flight_number] = (replica, entry, chain)
            self._flights[self._flight_number] = _Flight(TraceRequest(now_s, tokens + 1, 1, ()), list(chain), now_s)
            engine.submit(self._flight_number, tokens + 1, 1, chain, now_s)
        if not engine.stretching:
            self._begin(now_s, replica)

    def _first_byte(self, now_s: float, what: tuple[FirstToken, Dispatch]) -> None:
        if what[0].request not in self._warms:
            super()._first_byte(now_s, what)
            return
        replica, entry, chain = self._warms[what[0].request]
        self.router.engines[replica].ledger.release(entry)
        self.router.engines[replica].events.settled(chain, now_s, ran=True)

    def _ended(self, now_s: float, what: tuple[Ended, Dispatch]) -> None:
        if what[0].request in self._warms:
            self._flights.pop(what[0].request, None)
        else:
            super()._ended(now_s, what)


WORKLOADS: tuple[tuple[str, Make], ...] = (
    ("repositories", lambda seed, size: workloads.repositories(seed, count=round(4000 * size), per_s=10)),
    ("hot prefix", lambda seed, size: workloads.hot_prefix(seed, count=round(4000 * size), per_s=10)),
    ("RAG", lambda seed, size: workloads.rag(seed, count=round(4000 * size), per_s=8)),
)


def _of(runs: Sequence[Summary], name: str) -> float:
    return float(mean(getattr(run, name) for run in runs))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=float, default=0.5)
    options = parser.parse_args(arguments)
    sys.stdout.write("| scenario | warming | warmed tokens | mean TTFT s | p99 | mean, 60 s after | hit |\n|---|---|--:|--:|--:|--:|--:|\n")
    for name, make in WORKLOADS:
        for share in (0.0, SHARE, 5 * SHARE):
            runs, warmed, after = [], 0, []
            for seed in range(1, options.seeds + 1):
                requests = list(make(seed, options.size))
                half_s = requests[-1].at_s / 2
                fleet = replace(FLEET, faults=(Fault(half_s, 2, down_s=15.0),))
                replay = _Warming(Trace(name, fleet.block_tokens, timed=True, requests=iter(requests)), fleet, share=share, seed=seed)
                measures = replay.run()
                runs.append(measures.summary())
                warmed += replay.warmed_tokens
                back_s = half_s + 15.0
                times = zip(measures.timeline, measures.ttft_s, strict=True)
                after.append(mean(seconds for (at_s, _), seconds in times if back_s <= at_s < back_s + 60))
            label = "off" if share == 0 else f"{share:.0%}"
            sys.stdout.write(
                f"| {name} | {label} | {warmed // options.seeds:,} | {_of(runs, 'ttft_mean_s'):.3f} | {_of(runs, 'ttft_p99_s'):.2f} | "
                f"{mean(after):.3f} | {_of(runs, 'hit_share'):.1%} |\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
