"""The router as its own process under prefixes that come and go: does its memory stay bounded, and what does a kill -9 cost?

    python -m tests.bench.churn [--minutes 30] [--seed 1]      memory: resident size every 10 s, what was dropped, the slope of the second half
    python -m tests.bench.churn --kill [--minutes 3]           reuse before a kill -9 in the middle of the run, and how fast it comes back

Four simulated replicas with KV events and small caches, so that blocks are stored and evicted all the time; dialogues of many namespaces (a part of
them subdivides its own by ``cache_salt``), of which nearly none comes back. Loopback only; stops by itself. Decision records have no reader, so their
queue is kept short: it is full after a while, and what is dropped from it is counted like the rest. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from routing.core.snapshot import TenantSnapshot
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, running_fleet
from tests.bench.process import RouterProcess, leave_on_disk
from tests.bench.traffic import Client, Dialogue, Mix, Sample, hit_rate, plan, quiet, reuse
from tests.fakes import rig

REPLICAS = 4
MODEL = "m-7b"
BLOCK_TOKENS = 16
CHURN_BLOCKS, KILL_BLOCKS = 1000, 4000
CHURN_SPEED, KILL_SPEED = 6.0, 0.5
CHURN = Mix(chats=6.0, agents=1.5, documents=3.0, pause_s=1.5)
CHURN_SETTINGS = {"ROUTER_TURNS_BYTES": str(4 * 2**20)}  # a bound that is not reached within the run would look like a leak
KILL = Mix(chats=0.8, agents=0.15, pause_s=4.0)
SAMPLE_S = 10.0
KEYS = (rig.KEY_A, rig.KEY_A_EMEA)
DROPS = ("dropped", "evicted", "lost", "refused", "gap", "missed")


@asynccontextmanager
async def standing(
    blocks: int, *, speed: float, events: bool = True, settings: dict[str, str] | None = None
) -> AsyncIterator[tuple[RouterProcess, Fleet, aiohttp.ClientSession]]:
    """A fleet in this process and a router in its own."""
    longest = (blocks - 1) * BLOCK_TOKENS
    engine = EngineConfig(blocks=blocks, block_size_tokens=BLOCK_TOKENS, max_model_len_tokens=longest, time=TimeModel(speed=speed))
    port = 0 if events else None
    config = ReplicaConfig(engine=engine, model=MODEL, recorded_requests=1, kv_port=port, replay_port=port)
    with tempfile.TemporaryDirectory() as name:
        async with running_fleet(config, replicas=REPLICAS) as fleet, aiohttp.ClientSession() as session:
            folder = Path(name)
            await leave_on_disk(folder, (_tenant(fleet),))
            router = RouterProcess(folder, settings=settings or {})
            try:
                await router.start()
                yield router, fleet, session
            finally:
                await router.stop()


def _tenant(fleet: Fleet) -> TenantSnapshot:
    replicas = tuple(rig.replica_entry(one.url, f"r{number}") for number, one in enumerate(fleet.replicas))
    document = rig.tenant("acme", replicas, {rig.KEY_A: "", rig.KEY_A_EMEA: "support/emea"})
    endpoints = tuple(msgspec.structs.replace(one, client_subdivision=True) for one in document.endpoints)
    return msgspec.structs.replace(document, endpoints=endpoints)


def _third(dialogue: Dialogue) -> str | None:
    """Every third dialogue keeps to itself."""
    return f"dialogue {dialogue.number}" if dialogue.number % 3 == 0 else None


def _two_thirds(dialogue: Dialogue) -> str | None:
    """Two dialogues of three keep to themselves: a router remembers 4,096 namespaces of a tenant, and the run must go beyond that."""
    return f"dialogue {dialogue.number}" if dialogue.number % 3 else None


def _clients(session: aiohttp.ClientSession, url: str, seed: int, salts: Callable[[Dialogue], str | None]) -> list[Client]:
    return [Client(session, url, key, MODEL, seed, patient=True, salts=salts) for key in KEYS]


async def _hold(clients: Sequence[Client], mix: Mix, *, seconds: float, seed: int) -> None:
    """Share a plan between clients."""
    dialogues = plan(mix, seconds=seconds, seed=seed)
    parts = [dialogues[number :: len(clients)] for number in range(len(clients))]
    await asyncio.gather(*(client.hold_all(part, until_s=seconds) for client, part in zip(clients, parts, strict=True)))


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass
class Memory:
    """Resident size over time."""

    at_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    def slope_bytes_per_min(self) -> float:
        """By least squares over the second half."""
        half = len(self.at_s) // 2
        times, sizes = self.at_s[half:], self.rss_bytes[half:]
        if len(times) < 2:
            return 0.0
        middle, mean = sum(times) / len(times), sum(sizes) / len(sizes)
        spread = sum((one - middle) ** 2 for one in times)
        return 60 * sum((one - middle) * (size - mean) for one, size in zip(times, sizes, strict=True)) / spread


def _drops(metrics: dict[str, float]) -> dict[str, float]:
    """Counters of what was lost or given up, summed over replicas."""
    found: dict[str, float] = {}
    for series, value in metrics.items():
        name, _, labels = series.partition("{")
        if value and any(word in series for word in DROPS) and not name.endswith(("_created", "_bucket")):
            kept = ",".join(label for label in labels.rstrip("}").split(",") if label and not label.startswith("replica="))
            key = f"{name}{{{kept}}}" if kept else name
            found[key] = found.get(key, 0.0) + value
    return found


async def churn(seconds: float, seed: int) -> Memory:
    memory = Memory()
    async with standing(CHURN_BLOCKS, speed=CHURN_SPEED, settings=CHURN_SETTINGS) as (router, _fleet, session):
        clients = _clients(session, router.url, seed, _two_thirds)
        traffic = asyncio.create_task(_hold(clients, CHURN, seconds=seconds, seed=seed))
        began_s = time.monotonic()
        while not traffic.done():
            await asyncio.wait([traffic], timeout=SAMPLE_S)
            at_s = time.monotonic() - began_s
            memory.at_s.append(at_s)
            memory.rss_bytes.append(router.rss_bytes())
            samples = [one for client in clients for one in client.samples]
            sys.stdout.write(
                f"{at_s:6.0f} s   resident {memory.rss_bytes[-1] / 2**20:7.1f} MiB   answers {len(samples):6}   hit rate {hit_rate(samples):6.1%}   "
                f"failed {sum(client.failed for client in clients)}\n"
            )
            sys.stdout.flush()
        await traffic
        metrics = await router.metrics(session)
    sys.stdout.write("dropped, evicted, lost:\n")
    sys.stdout.writelines(f"  {name} {value:,.0f}\n" for name, value in sorted(_drops(metrics).items()))
    sys.stdout.write(
        f"second half: {memory.slope_bytes_per_min() / 1024:+.1f} KiB a minute, from {memory.rss_bytes[len(memory.rss_bytes) // 2] / 2**20:.1f} "
        f"to {memory.rss_bytes[-1] / 2**20:.1f} MiB\n"
    )
    return memory


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def recovered_after_s(samples: Sequence[Sample], killed_s: float, before: float, *, window_s: float = 10.0) -> float | None:
    """Seconds from the kill until a window's reuse is within a tenth of ``before``, counted to the window's end; None if it never is."""
    end_s = max((one.at_s for one in samples), default=0.0)
    start_s = killed_s
    while start_s < end_s:
        window = [one for one in samples if start_s <= one.at_s < start_s + window_s]
        if any(one.reusable_tokens for one in window) and reuse(window) >= 0.9 * before:
            return start_s + window_s - killed_s
        start_s += window_s / 2
    return None


async def kill(seconds: float, seed: int, *, events: bool) -> None:
    async with standing(KILL_BLOCKS, speed=KILL_SPEED, events=events) as (router, _fleet, session):
        clients = _clients(session, router.url, seed, _third)
        traffic = asyncio.create_task(_hold(clients, KILL, seconds=seconds, seed=seed))
        await asyncio.sleep(seconds / 2)
        killed_s = time.perf_counter() - clients[0].began_s
        await router.kill()
        await router.start()
        back_s = time.perf_counter() - clients[0].began_s
        await traffic
    samples = sorted((one for client in clients for one in client.samples), key=lambda one: one.at_s)
    before = [one for one in samples if killed_s - 30 <= one.at_s < killed_s - 1]
    sys.stdout.write(
        f"events {'on' if events else 'off'}: reuse {reuse(before):.1%} (hit rate {hit_rate(before):.1%}) before the kill; "
        f"ready again after {back_s - killed_s:.1f} s\n"
    )
    start_s = killed_s
    while start_s < seconds - 1:
        window = [one for one in samples if start_s <= one.at_s < start_s + 10]
        sys.stdout.write(
            f"  {start_s - killed_s:4.0f} to {start_s - killed_s + 10:4.0f} s   {len(window):4} answers   reuse {reuse(window):6.1%}   "
            f"hit rate {hit_rate(window):6.1%}\n"
        )
        start_s += 10
    after_s = recovered_after_s(samples, killed_s, reuse(before))
    said = "never" if after_s is None else f"within {after_s:.0f} s"
    sys.stdout.write(f"  within a tenth of before: {said}; failed and repeated {sum(client.failed for client in clients)}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=None, help="30, or with --kill 3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--without-events", action="store_true", help="with --kill: the engines publish nothing")
    options = parser.parse_args(arguments)
    quiet()
    if options.kill:
        asyncio.run(kill(60 * (options.minutes or 3.0), options.seed, events=not options.without_events))
    else:
        asyncio.run(churn(60 * (options.minutes or 30.0), options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
