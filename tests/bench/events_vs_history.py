"""What engines' own events add to the router's memory of what it sent: hit rate, time to first token, and how true predictions are.

    python -m tests.bench.events_vs_history [--seconds 150] [--seed 1] [--rounds 1] [--routers 1] [--only mixed|writers]

Each arm is a fresh router in this process and a fresh fleet of four simulated replicas, whose caches hold about a third of the working set each; the
dialogues, their times and texts follow from the seed alone. In the arm ``history`` the engines publish nothing. Times are real, so a machine that is
busy with other things shows in them.

``mixed``: chats, agents and long documents. One router that alone feeds its engines remembers nearly what they hold, so there the two arms place
nearly alike; with ``--routers 2``, which share nothing, each memory knows half. ``writers``: history alone, chats beside long answers, whose decodes
evict prefixes that history still believes in; the prediction is shown for the beginning of the run, before the router has learned how little comes
true, and for its end.

*within a block*: the share of answers whose cached tokens are what the match said, within one block. *bias*: expected over realised cached tokens;
*of the match alone*: matched over realised, before age and kappa. *reuse*: cached tokens of turns that continue a dialogue, over what was computed in
it before. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from routing.core.record import DecisionRecord
from routing.core.trust import Report
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, running_fleet
from tests.bench.traffic import Client, Mix, Sample, hit_rate, plan, quantile, quiet, reuse
from tests.fakes import rig

REPLICAS = 4
MODEL = "m-7b"
BLOCK_TOKENS = 16
SPEED = 0.25
MIXED = Mix(chats=0.5, agents=0.14, documents=0.16, pause_s=8.0)
WRITERS = Mix(chats=0.6, writers=0.8, pause_s=15.0)
MIXED_BLOCKS, WRITERS_BLOCKS = 1000, 800
WARM_SHARE = 0.25  # of a run, left out of the figures: everything is cold
SAMPLE_S = 0.5


@dataclass
class Arm:
    """What one arm did."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    records: list[DecisionRecord] = field(default_factory=list)
    working_set_tokens: list[int] = field(default_factory=list)
    trust: dict[str, Report] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    failed: int = 0


@dataclass(frozen=True)
class Truth:
    """How predictions fared, over some answers."""

    answers: int
    median_error_tokens: float
    within_block: float
    bias: float
    match_bias: float


def truth(records: Sequence[DecisionRecord]) -> Truth:
    """Of the records that predicted a hit or had one."""
    seen = [one for one in records if one.cached_tokens is not None and (one.matched_tokens or one.cached_tokens)]
    errors = [abs(one.expected_cached_tokens - (one.cached_tokens or 0)) for one in seen]
    exact = sum(abs(one.matched_tokens - (one.cached_tokens or 0)) < BLOCK_TOKENS for one in seen)
    realised = sum(one.cached_tokens or 0 for one in seen)
    return Truth(
        answers=len(seen),
        median_error_tokens=quantile(errors, 0.5),
        within_block=exact / max(1, len(seen)),
        bias=sum(one.expected_cached_tokens for one in seen) / max(1, realised),
        match_bias=sum(one.matched_tokens for one in seen) / max(1, realised),
    )


def _fleet_config(blocks: int, *, events: bool) -> ReplicaConfig:
    engine = EngineConfig(
        blocks=blocks, block_size_tokens=BLOCK_TOKENS, max_model_len_tokens=(blocks - 1) * BLOCK_TOKENS, time=TimeModel(speed=SPEED)
    )
    return ReplicaConfig(engine=engine, model=MODEL, recorded_requests=1, kv_port=0 if events else None, replay_port=0 if events else None)


def _publish(router: Router, fleet: Fleet) -> None:
    replicas = tuple(rig.replica_entry(one.url, f"r{number}") for number, one in enumerate(fleet.replicas))
    document = rig.tenant("acme", replicas, {rig.KEY_A: ""})
    router.snapshots.apply({document.tenant_id: rig.sealed(document)})


async def run(name: str, mix: Mix, *, blocks: int, events: bool, seconds: float, seed: int, routers: int = 1) -> Arm:
    """One arm, from an empty fleet to ``seconds``."""
    arm = Arm(name)
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running_fleet(_fleet_config(blocks, events=events), replicas=REPLICAS))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        started = [await stack.enter_async_context(_router(number, fleet, events=events)) for number in range(routers)]
        first, *others = (f"http://127.0.0.1:{router.port}" for router in started)
        client = Client(session, first, rig.KEY_A, MODEL, seed, other_urls=tuple(others))
        watcher = asyncio.create_task(_watch(client, arm))
        await client.hold_all(plan(mix, seconds=seconds, seed=seed), until_s=seconds)
        watcher.cancel()
        arm.samples, arm.failed = client.samples, client.failed
        records = [one for router in started for one in router.plane.telemetry.waiting() if one.outcome == "ok"]
        arm.records = sorted(records, key=lambda one: one.started_at)
        plane, now_s = started[0].plane, asyncio.get_running_loop().time()
        arm.trust = {f"r{number}": plane.trust.report((one.url, 0), now_s) for number, one in enumerate(fleet.replicas)}
        arm.states = {url: plane.residency.of(url).state for url in plane.engines}
    return arm


@asynccontextmanager
async def _router(number: int, fleet: Fleet, *, events: bool) -> AsyncIterator[Router]:
    with tempfile.TemporaryDirectory() as state:
        router = Router(
            Config(router_id=f"bench-{number}", state_dir=Path(state), port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, record_queue=200_000),
            rig.SECRETS,
        )
        await router.start()
        try:
            _publish(router, fleet)
            await _settle(router, events=events)
            yield router
        finally:
            await router.stop()


async def _settle(router: Router, *, events: bool) -> None:
    """Wait until the router has seen its engines, and reads their events where there are any."""

    def settled() -> bool:
        plane = router.plane  # prompts are token ids: what the engines' events are worth is asked, not what is told of files that nobody needs
        said = plane.engine_report(0.0).items()
        return all(one["condition"] == "ok" and (not events or plane.residency.of(url).state == "exact") for url, one in said)

    await rig.until(settled)


async def _watch(client: Client, arm: Arm) -> None:
    while True:
        arm.working_set_tokens.append(client.live_tokens)
        await asyncio.sleep(SAMPLE_S)


def _line(arm: Arm, samples: Sequence[Sample], records: Sequence[DecisionRecord]) -> str:
    said, times = truth(records), [one.ttft_s for one in samples if one.ttft_s is not None]
    return (
        f"{arm.name:9} {len(samples):5} answers   hit rate {hit_rate(samples):6.1%}  reuse {reuse(samples):6.1%}   "
        f"TTFT mean {sum(times) / max(1, len(times)) * 1000:5.0f}  p50 {quantile(times, 0.5) * 1000:5.0f}  p95 {quantile(times, 0.95) * 1000:5.0f}  "
        f"p99 {quantile(times, 0.99) * 1000:5.0f} ms   median error {said.median_error_tokens:6.0f} tokens  within a block {said.within_block:6.1%}  "
        f"bias {said.bias:5.2f}   failed {arm.failed}\n"
    )


def _trust(arm: Arm) -> str:
    lines = []
    for name, said in arm.trust.items():
        share = "-" if said.share_exact is None else f"{said.share_exact:.0%}"
        error = "-" if said.median_error_tokens is None else f"{said.median_error_tokens:.0f}"
        lines.append(
            f"  {name}  kappa {said.kappa:4.2f}  within a block {share:>4}  median error {error:>5} tokens  {said.verdict} {said.cause or ''}\n"
        )
    return "".join(lines)


def _between(records: Sequence[DecisionRecord], first: float, last: float) -> list[DecisionRecord]:
    """The records of a part of the run, by their order."""
    return list(records[int(len(records) * first) : int(len(records) * last)])


async def mixed(seconds: float, seed: int, routers: int) -> list[Arm]:
    """Both arms at the same time, so that whatever else this machine does hits both alike."""
    arms = await asyncio.gather(
        *(
            run(name, MIXED, blocks=MIXED_BLOCKS, events=name == "events", seconds=seconds, seed=seed, routers=routers)
            for name in ("history", "events")
        )
    )
    for arm in arms:
        warm = [one for one in arm.samples if one.at_s > seconds * WARM_SHARE]
        sys.stdout.write(_line(arm, warm, _between(arm.records, WARM_SHARE, 1)) + _trust(arm))
        live = arm.working_set_tokens[len(arm.working_set_tokens) // 3 :]
        working_set = sum(live) / max(1, len(live))
        share = MIXED_BLOCKS * BLOCK_TOKENS / max(1.0, working_set)
        sys.stdout.write(f"  working set {working_set:,.0f} tokens, a cache holds {share:.2f} of it; residency {' '.join(arm.states.values())}\n")
    sys.stdout.flush()
    return arms


async def writers(seconds: float, seed: int) -> None:
    arm = await run("history", WRITERS, blocks=WRITERS_BLOCKS, events=False, seconds=seconds, seed=seed)
    chats = [one for one in arm.records if one.stream]
    for name, first, last in (("first fifth", 0.0, 0.2), ("second", 0.2, 0.4), ("last two", 0.6, 1.0)):
        said = truth(_between(chats, first, last))
        sys.stdout.write(
            f"  {name:12} {said.answers:4} answers  median error {said.median_error_tokens:6.0f} tokens  "
            f"bias {said.bias:5.2f}, of the match alone {said.match_bias:5.2f}\n"
        )
    sys.stdout.write(_line(arm, [one for one in arm.samples if one.kind == "chat"], chats) + _trust(arm))
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="seeds to run, one after the other")
    parser.add_argument("--routers", type=int, default=1, help="of an arm, strangers to one another; turns go to all of them in turn")
    parser.add_argument("--only", choices=("mixed", "writers"))
    options = parser.parse_args(arguments)
    quiet()
    for seed in range(options.seed, options.seed + options.rounds):
        if options.only != "writers":
            sys.stdout.write(f"mixed dialogues, seed {seed}\n")
            asyncio.run(mixed(options.seconds, seed, options.routers))
        if options.only != "mixed":
            sys.stdout.write(f"long answers that evict prefixes, seed {seed}\n")
            asyncio.run(writers(options.seconds, seed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
