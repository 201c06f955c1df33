"""Does the attribution name what was made to happen? Each cause is injected into a fleet of simulated replicas behind the real router, over HTTP.

    python -m tests.bench.causes [--repeat 3] [--speed 0.5]

Every run has a router, a fleet and a conversation of its own; what is compared is ``cause.main`` of the one request that the injection hits, grouped
as people would say it. Printed is a confusion table, injected by row, named by column, and the parts of each request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from routing.core.record import CauseRecord, DecisionRecord
from routing.core.snapshot import PolicyEntry
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.dataplane.feeds import load
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, running_fleet
from routing.simulator.language import WORDS
from tests.fakes import rig

MODEL = "m-7b"
GROUPS = {
    "queue_router": "queue",
    "queue_engine": "queue",
    "missed_evicted": "eviction",
    "missed_policy": "policy choice",
    "missed_replica_lost": "replica lost",
    "missed_other_pool": "another pool",
    "missed_changed": "template change",
    "missed_namespace_changed": "epoch rotation",
    "missed_never_seen": "cold prompt",
    "slow_replica": "slow replica",
    "generation": "long generation",
    "retry": "failed attempt",
}
PROMPT_WORDS = 2400
_pace: ContextVar[float] = ContextVar("pace", default=1.0)  # of all engines; the router takes 1.0 for granted until it has measured


def text(seed: int, words: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


@dataclass
class Stage:
    """A router, its fleet, a client."""

    router: Router
    fleet: Fleet
    client: aiohttp.ClientSession
    policy: str

    def publish(self, version: int = 1, **changes: Any) -> None:
        replicas = tuple(rig.replica_entry(one.url, f"r{number}") for number, one in enumerate(self.fleet.replicas))
        document = rig.tenant("acme", replicas, {rig.KEY_A: ""}, version=version)
        routing = PolicyEntry(name=self.policy, version=1, spec={"policy": self.policy})
        endpoints = tuple(msgspec.structs.replace(one, routing_policy=routing, **changes) for one in document.endpoints)
        document = msgspec.structs.replace(document, endpoints=endpoints)
        self.router.snapshots.apply({document.tenant_id: rig.sealed(document)})

    async def scrape(self) -> None:
        for view in list(self.router.plane.replicas.values()):
            await load.check(self.router.plane, view)

    async def chat(self, *messages: str, max_tokens: int = 2, url: str | None = None, stream: bool = True) -> None:
        """One chat; messages alternate between system, user and assistant. ``url``: past the router."""
        roles = ["system", *["user", "assistant"] * len(messages)]
        said = [{"role": role, "content": content} for role, content in zip(roles, messages, strict=False)]
        body = {
            "model": MODEL,
            "messages": said,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        }
        there = url or f"http://127.0.0.1:{self.router.port}"
        async with self.client.post(f"{there}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {rig.KEY_A}"}) as reply:
            await reply.read()
            assert reply.status == 200, reply.status

    def last(self) -> DecisionRecord:
        return self.router.plane.telemetry.waiting()[-1]


@asynccontextmanager
async def stage(
    *, replicas: int, policy: str = "ettft", blocks: int = 2000, speed: float = 1.0, router: dict[str, Any] | None = None
) -> AsyncIterator[Stage]:
    pace = _pace.get()
    engine = EngineConfig(blocks=blocks, time=TimeModel(speed=speed * pace))
    with tempfile.TemporaryDirectory() as state:
        config = Config(router_id="bench", state_dir=Path(state), port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=3600.0)
        async with running_fleet(ReplicaConfig(engine=engine, model=MODEL), replicas=replicas) as fleet, aiohttp.ClientSession() as client:
            running = Router(replace(config, **(router or {})), rig.SECRETS)
            await running.start()
            try:
                made = Stage(running, fleet, client, policy)
                made.publish()
                await made.scrape()
                yield made
            finally:
                await running.stop()


async def eviction(seed: int) -> DecisionRecord:
    """Others' long prompts push a conversation out of the only cache between two of its turns."""
    async with stage(replicas=1, blocks=520) as it:
        first = (text(seed, PROMPT_WORDS), text(seed + 1, 50))
        await it.chat(*first)
        for number in range(4):
            await it.chat(text(seed + 10 + number, PROMPT_WORDS), "hi")
        await it.chat(*first, "yes", text(seed + 2, 20))
        return it.last()


async def queue(seed: int) -> DecisionRecord:
    """Eight cold prompts at once on one replica; the one that waited longest is looked at."""
    async with stage(replicas=1) as it:
        await asyncio.gather(*(it.chat(text(seed + number, 1200), f"q{number}") for number in range(8)))
        return max(it.router.plane.telemetry.waiting(), key=lambda record: record.ttft_s or 0.0)


async def queue_of_others(seed: int) -> DecisionRecord:
    """Requests that did not come through the router fill the engine; the router knows of them by a scrape."""
    async with stage(replicas=1) as it:
        others = [asyncio.create_task(it.chat(text(seed + number, PROMPT_WORDS), f"q{number}", url=it.fleet[0].url)) for number in range(6)]
        engine = it.router.plane.engine(it.fleet[0].url)
        async with asyncio.timeout(10):
            while engine.scrape is None or sum(engine.scrape.excess) < 5:  # an engine shows its queue when a step ends
                await asyncio.sleep(0.01)
                await it.scrape()
        await it.chat(text(seed + 99, 100), "mine")
        record = it.last()
        await asyncio.gather(*others)
        return record


async def slow_replica(seed: int) -> DecisionRecord:
    """One of three replicas runs at a quarter of the others' speed, and the policy turns through them."""
    async with stage(replicas=3, policy="round_robin", speed=4.0) as it:
        slow = it.fleet[1].replica
        slow.engine.config = replace(slow.engine.config, time=replace(slow.engine.config.time, speed=_pace.get()))
        for number in range(33):
            await it.chat(text(seed + number, PROMPT_WORDS), f"q{number}")
        records = it.router.plane.telemetry.waiting()[-3:]
        return max(records, key=lambda record: record.ttft_s or 0.0)


async def template_change(seed: int) -> DecisionRecord:
    """The system prompt of a conversation begins with the time of day."""
    async with stage(replicas=1) as it:
        system, question = text(seed, PROMPT_WORDS), text(seed + 1, 50)
        await it.chat(f"It is 10:41. {system}", question)
        await it.chat(f"It is 10:42. {system}", question, "yes", text(seed + 2, 20))
        return it.last()


async def epoch_rotation(seed: int) -> DecisionRecord:
    """The endpoint's epoch is raised between two turns."""
    async with stage(replicas=1) as it:
        first = (text(seed, PROMPT_WORDS), text(seed + 1, 50))
        await it.chat(*first)
        it.publish(version=2, epoch=2)
        await it.chat(*first, "yes", text(seed + 2, 20))
        return it.last()


async def policy_choice(seed: int) -> DecisionRecord:
    """A policy that does not look at caches sends the second turn elsewhere."""
    async with stage(replicas=2, policy="round_robin") as it:
        first = (text(seed, PROMPT_WORDS), text(seed + 1, 50))
        await it.chat(*first)
        await it.chat(*first, "yes", text(seed + 2, 20))
        return it.last()


async def replica_lost(seed: int) -> DecisionRecord:
    """The replica restarts between two turns."""
    async with stage(replicas=1) as it:
        first = (text(seed, PROMPT_WORDS), text(seed + 1, 50))
        await it.chat(*first)
        await asyncio.sleep(0.6)  # a start time half a second later is another process
        await it.fleet[0].restart()
        await it.scrape()
        await it.chat(*first, "yes", text(seed + 2, 20))
        return it.last()


async def long_generation(seed: int) -> DecisionRecord:
    """A short prompt with a long answer."""
    async with stage(replicas=1) as it:
        await it.chat(text(seed, 100), "hi", max_tokens=150)
        return it.last()


async def cold_prompt(seed: int) -> DecisionRecord:
    """A long prompt that nobody has seen."""
    async with stage(replicas=1) as it:
        await it.chat(text(seed, PROMPT_WORDS), "hi")
        return it.last()


async def failed_attempt(seed: int) -> DecisionRecord:
    """The first replica accepts and then says nothing until the router gives up on it."""
    async with stage(replicas=2, policy="round_robin", router={"first_byte_s": 0.6}) as it:
        for one in it.fleet.replicas:
            one.replica.faults = replace(one.replica.faults, first_byte_delay_s=0.0)
        ordered = sorted(range(2), key=lambda number: rig.named(f"replica r{number}"))
        silent = it.fleet[ordered[0]].replica
        silent.faults = replace(silent.faults, first_byte_delay_s=5.0)
        await it.chat(text(seed, 100), "hi")
        return it.last()


INJECTED: dict[str, tuple[str, Callable[[int], Awaitable[DecisionRecord]]]] = {
    "eviction": ("eviction", eviction),
    "queue": ("queue", queue),
    "queue of others": ("queue", queue_of_others),
    "slow replica": ("slow replica", slow_replica),
    "template change": ("template change", template_change),
    "epoch rotation": ("epoch rotation", epoch_rotation),
    "policy choice": ("policy choice", policy_choice),
    "replica lost": ("replica lost", replica_lost),
    "long generation": ("long generation", long_generation),
    "cold prompt": ("cold prompt", cold_prompt),
    "failed attempt": ("failed attempt", failed_attempt),
}


def named(record: DecisionRecord) -> str:
    """What the record says was the cause, as a group."""
    cause = record.cause or CauseRecord(parts_us={})
    return GROUPS.get(cause.main or "", cause.main or "nothing")


async def inject(name: str, seed: int) -> DecisionRecord:
    return await INJECTED[name][1](seed)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--speed", type=float, default=1.0, help="of the engines, against what the router assumes of an unmeasured one")
    options = parser.parse_args(arguments)
    _pace.set(options.speed)
    table: dict[str, Counter[str]] = {}
    for name in INJECTED:
        table[name] = Counter()
        for seed in range(options.repeat):
            record = asyncio.run(inject(name, seed * 1000))
            table[name][named(record)] += 1
            parts = record.cause.parts_us if record.cause else {}
            shown = ", ".join(f"{part} {value / 1000:.0f}" for part, value in sorted(parts.items(), key=lambda item: -item[1]) if value >= 1000)
            sys.stdout.write(f"{name} #{seed}: {shown} (ms)\n")
            sys.stdout.flush()
    columns = sorted({group for row in table.values() for group in row} | {group for group, _ in INJECTED.values()})
    sys.stdout.write("\n| injected | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns) + "\n")
    for name, row in table.items():
        sys.stdout.write(f"| {name} | " + " | ".join(str(row[column] or "") for column in columns) + " |\n")
    right = sum(row[INJECTED[name][0]] for name, row in table.items())
    total = sum(row.total() for row in table.values())
    sys.stdout.write(f"\n{right} of {total} named as injected\n")
    return 0 if right == total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
