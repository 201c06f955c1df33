"""Routers through the wire: the same arrivals to the same simulated fleet, ours beside others.

    SALTROUTE_DATA=... python -m tests.bench.routing [--quick] [--only conversation ...] [--speed 10] [--no-peers]

Every arm is a fresh router process before a fresh fleet of four replicas (``routing_fleet.py``), over HTTP on the loopback. First round robin is
driven with 64 requests in flight: what it serves then is its saturation, and the loads are shares of that. Reported per run: time to first token at
the replica (so without the router's own time), hit rate over all prompt tokens, and what was refused. The first tenth of every run is left out.
Writes docs/benchmarks/routing.md; nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from routing.traces import workloads
from routing.traces.formats import read
from routing.traces.request import TraceRequest, coarsen
from routing.traces.workloads import BLOCK_TOKENS
from tests.bench.routing_arms import Arm, Running, own_arms, peer_arms
from tests.bench.routing_fleet import CACHE_TOKENS, REPLICAS, SCALE, First, body, paced, watched_fleet
from tests.bench.traffic import quantile, quiet

REPORT = Path(__file__).parents[2] / "docs" / "benchmarks" / "routing.md"
WARM = 0.1
IN_FLIGHT = 64
RUN_S = 240.0  # an arm that is not done by then is cut, and says how much it left
BEST = "round_robin"


@dataclass(frozen=True)
class Workload:
    name: str
    what: str
    make: Callable[[int], list[TraceRequest]]
    shares: tuple[float, ...]


@dataclass
class Outcome:
    """One arm on one workload at one load. ``added_s``: the client's time to first byte less the replica's, in real seconds."""

    arm: str
    load: float
    firsts: list[First] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    refused: int = 0
    errors: int = 0
    left: int = 0
    took_s: float = 0.0  # of the model
    cpu_s: float = 0.0
    machine: float = 0.0

    @property
    def ttfts(self) -> list[float]:
        return [one.ttft_s for one in self.firsts]

    @property
    def mean_s(self) -> float:
        return sum(self.ttfts) / max(1, len(self.firsts))

    @property
    def p99_s(self) -> float:
        return quantile(self.ttfts, 0.99)

    @property
    def busiest(self) -> float:
        """The share of the requests that the replica with most of them got."""
        served = [one.replica for one in self.firsts]
        return max((served.count(number) for number in range(REPLICAS)), default=0) / max(1, len(served))

    @property
    def hit_rate(self) -> float:
        return sum(one.cached_tokens for one in self.firsts) / max(1, sum(one.prompt_tokens for one in self.firsts))


def _recorded(name: str) -> list[TraceRequest]:
    root = os.environ.get("SALTROUTE_DATA")
    path = Path(root or ".") / "traces" / name
    if root is None or not path.exists():
        raise FileNotFoundError(f"no {name} at {path}: set SALTROUTE_DATA")
    return [one for one in coarsen(read(path), BLOCK_TOKENS).requests if one.prompt_tokens < CACHE_TOKENS // 4]


WORKLOADS = (
    Workload("conversation", "Mooncake conversation", lambda n: _recorded("mooncake_conversation_first6000.jsonl.gz")[:n], (0.4, 0.7, 0.9)),
    Workload("synthetic", "Mooncake synthetic", lambda n: _recorded("mooncake_synthetic_first2000.jsonl.gz")[:n], (0.7,)),
    Workload("hotspot", "60 % share one prefix of 8k tokens", lambda n: list(workloads.hot_prefix(1, count=n, per_s=4)), (0.7,)),
    Workload("weak reuse", "512 shared tokens before 6k of one's own", lambda n: list(workloads.weak_reuse(1, count=n, per_s=4)), (0.7,)),
)


class Drive:
    """One arm under arrivals, or under a fixed number in flight."""

    def __init__(self, running: Running, outcome: Outcome, speed: float) -> None:
        self._running, self._outcome, self._speed = running, outcome, speed

    async def open(self, bodies: Sequence[bytes], at_s: Sequence[float]) -> None:
        """Each request at its time, whatever became of those before."""
        began_s = time.perf_counter()

        async def later(data: bytes, when_s: float) -> None:
            await asyncio.sleep(max(0.0, began_s + when_s / self._speed - time.perf_counter()))
            await self._ask(session, data)

        async with _session() as session:
            tasks = [asyncio.create_task(later(data, when_s)) for data, when_s in zip(bodies, at_s, strict=True)]
            _, left = await asyncio.wait(tasks, timeout=RUN_S)
            await self._end(list(left))
        self._outcome.took_s = (time.perf_counter() - began_s) * self._speed

    async def closed(self, bodies: Sequence[bytes]) -> None:
        """``IN_FLIGHT`` at any time."""
        began_s = time.perf_counter()
        rest = iter(bodies)

        async def worker() -> None:
            for data in rest:
                await self._ask(session, data)

        async with _session() as session:
            _, left = await asyncio.wait([asyncio.create_task(worker()) for _ in range(IN_FLIGHT)], timeout=RUN_S)
            await self._end(list(left))
        self._outcome.took_s = (time.perf_counter() - began_s) * self._speed

    async def _end(self, left: list[asyncio.Task[None]]) -> None:
        self._outcome.left = len(left)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _ask(self, session: aiohttp.ClientSession, data: bytes) -> None:
        asked_s = time.perf_counter()
        headers = {"Authorization": f"Bearer {self._running.key}", "Content-Type": "application/json"}
        try:
            async with session.post(f"{self._running.url}/v1/chat/completions", data=data, headers=headers) as reply:
                said = await reply.content.readany()
                self._outcome.client_s.append(time.perf_counter() - asked_s)
                said += await reply.read()
                if reply.status in (429, 503):
                    self._outcome.refused += 1
                elif reply.status != 200 or b"[DONE]" not in said[-64:]:
                    self._outcome.errors += 1
        except (aiohttp.ClientError, OSError):
            self._outcome.errors += 1


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


def _cpu_s(pid: int) -> float:
    """CPU time of a process, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(arm: Arm, bodies: Sequence[bytes], at_s: Sequence[float] | None, *, load: float, speed: float) -> Outcome:
    """One arm on a fresh fleet; ``at_s`` None: saturation."""
    outcome = Outcome(arm.name, load)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen: list[First] = []
        (folder / "router").mkdir()
        async with watched_fleet(folder, speed, seen) as fleet, arm.open(fleet, folder / "router") as running:
            seen.clear()
            cpu_s = _cpu_s(running.pid)
            drive = Drive(running, outcome, speed)
            await (drive.closed(bodies) if at_s is None else drive.open(bodies, at_s))
            outcome.cpu_s = _cpu_s(running.pid) - cpu_s
    outcome.firsts = seen[int(len(seen) * WARM) :]
    outcome.machine = os.getloadavg()[0]
    return outcome


def line(outcome: Outcome, base: Outcome) -> str:
    mean, p99 = outcome.mean_s / max(1e-9, base.mean_s), outcome.p99_s / max(1e-9, base.p99_s)
    cut = f", {outcome.left} left" if outcome.left else ""
    cells = (
        outcome.arm,
        f"{outcome.load:.0%}",
        f"{outcome.mean_s:.2f} ({mean:.2f})",
        f"{outcome.p99_s:.2f} ({p99:.2f})",
        f"{outcome.hit_rate:.1%}",
        f"{outcome.busiest:.0%}",
        f"{outcome.refused} / {outcome.errors}{cut}",
        f"{outcome.cpu_s / max(1, len(outcome.client_s)) * 1e3:.2f}",
        f"{outcome.machine:.1f}",
    )
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "router",
    "load",
    "mean TTFT s (to round robin)",
    "p99 TTFT s",
    "hit rate",
    "busiest replica",
    "refused / errors",
    "router CPU ms a request",
    "machine load",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def _say(text: str, report: list[str]) -> None:
    report.append(text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def measure(workload: Workload, arms: Sequence[Arm], *, count: int, speed: float, shares: Sequence[float], report: list[str]) -> None:
    """All arms on one workload, at each load."""
    requests = workload.make(count)
    bodies = [msgspec.json.encode(body(one, number)) for number, one in enumerate(requests)]
    base = asyncio.run(run(own_arms()[0], bodies[: count // 2], None, load=1.0, speed=speed))
    per_s = (len(base.client_s) - base.refused) / base.took_s
    tokens = sum(one.prompt_tokens for one in requests) / len(requests)
    _say(f"\n## {workload.name}\n\n{workload.what}: {len(requests)} requests of {tokens:,.0f} tokens in the mean.", report)
    _say(f"Round robin saturates at {per_s:.2f} requests/s.\n\n{HEAD}", report)
    for share in shares:
        at_s = paced(requests, per_s * share)
        round_robin: Outcome | None = None
        for arm in arms:
            try:
                outcome = asyncio.run(run(arm, bodies, at_s, load=share, speed=speed))
            except (RuntimeError, TimeoutError) as error:
                _say(f"| {arm.name} | {share:.0%} | did not run: {type(error).__name__} {str(error)[:80]} |", report)
                continue
            round_robin = round_robin or outcome
            _say(line(outcome, round_robin), report)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=600, help="requests of a run")
    parser.add_argument("--speed", type=float, default=10.0, help="seconds of the model in one of ours")
    parser.add_argument("--only", action="append", choices=[one.name for one in WORKLOADS], help="may be repeated")
    parser.add_argument("--share", action="append", type=float, help="of round robin's saturation; may be repeated")
    parser.add_argument("--arm", action="append", help="may be repeated; round_robin always comes first")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args(arguments)
    quiet()
    others, missing = ([], []) if options.no_peers else peer_arms()
    arms = [one for one in [*own_arms(), *others] if options.arm is None or one.name in (BEST, *options.arm)]
    report: list[str] = []
    count = options.count // 4 if options.quick else options.count
    _say(_preface(options.speed, missing), report)
    for workload in WORKLOADS:
        if options.only and workload.name not in options.only:
            continue
        try:
            measure(workload, arms, count=count, speed=options.speed, shares=options.share or workload.shares, report=report)
        except FileNotFoundError as error:
            _say(f"\n{workload.name}: skipped: {error}", report)
    if not (options.only or options.share or options.arm or options.quick):
        REPORT.write_text("\n".join(report) + "\n")
    return 0


def _preface(speed: float, missing: Sequence[str]) -> str:
    return "\n".join(
        [
            "# Routing through the wire",
            "",
            f"`make bench-routing`: {REPLICAS} simulated replicas (by arithmetic a 70B model on four H100: 12,700 prefill tokens/s, {CACHE_TOKENS:,}",
            f"tokens of cache each), one simulated token for {SCALE} real ones, time compressed {speed:g} times, on this machine's loopback alone.",
            f"Times are seconds of the model, at the replica. {os.cpu_count()} cores, shared with other work as the last column says.",
            *missing,
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
