"""``python -m tests.bench.several_routers``: do two routers put one cold prefix on the same replica, and how old are siblings' words?

Two real routers before one simulated fleet (a process of its own) and a real Valkey, each with traffic of its own that keeps the engines
unevenly busy. Now and then one unseen prompt comes to both, the second a given time after the first. Agreement within the time that a word
takes rests on the rendezvous rank; later the sibling's placement is known. Run with sharing and without. Both routers, the clients and the
benchmark share one event loop, so the ages printed contain its delays.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from deploy.local.places import Home, short_temporary_home
from deploy.local.valkey import USERS, Valkey
from routing.core.peering import Beat, Head
from routing.core.record import DecisionRecord
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from tests.fakes.rig import KEY_A, LOOPBACK, SECRETS, endpoint, replica_entry, sealed, tenant

GAPS_S = (0.0, 0.005, 0.02, 0.06, 0.15)
WORDS = ("salt", "route", "cache", "prefix", "token", "block", "replica", "engine", "queue", "prompt", "answer", "turn")


@dataclass
class Watched:
    """A router, the decisions it took by id, and how old siblings' placements were on arrival."""

    router: Router
    decisions: dict[str, DecisionRecord] = field(default_factory=dict)
    placed_at_s: dict[int, float] = field(default_factory=dict)
    ages_s: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"


@asynccontextmanager
async def fleet(replicas: int) -> AsyncIterator[list[str]]:
    """Simulated replicas; their URLs."""
    argv = [sys.executable, "-m", "routing.simulator", "--replicas", str(replicas), "--port", "0", "--no-kv-events", "--model", "m-7b"]
    argv += ["--blocks", "12000", "--max-model-len", "16000"]
    quiet = asyncio.subprocess.DEVNULL  # clients that leave at the end make noise there
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=quiet)
    try:
        assert process.stdout is not None
        lines = [(await process.stdout.readline()).decode() for _ in range(replicas)]
        yield [line.split("url=")[1].split()[0] for line in lines]
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def routers(urls: list[str], valkey_url: str | None, folder: Path) -> AsyncIterator[tuple[Watched, Watched]]:
    """Two routers before the fleet, with or without a way to speak to one another."""
    acme = tenant("acme", tuple(replica_entry(url, f"r{place}") for place, url in enumerate(urls)), {KEY_A: ""})
    acme = tenant("acme", acme.pools[0].replicas, {KEY_A: ""}, endpoints=(endpoint(acme.pools[0]),))
    made = []
    for name in ("one", "two"):
        config = Config(router_id=name, state_dir=folder / name, valkey_url=valkey_url, port=0, internal_port=0, allowed_ranges=LOOPBACK)
        watched = Watched(Router(config, SECRETS))
        _tap(watched)
        await watched.router.start()
        watched.router.snapshots.apply({acme.tenant_id: sealed(acme)})
        made.append(watched)
    _measure(*made)
    try:
        yield made[0], made[1]
    finally:
        for watched in made:
            await watched.router.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _tap(watched: Watched) -> None:
    """Remember each decision and the moment of each placement."""
    plane = watched.router.plane
    add, placed = plane.telemetry.add, plane.outbox.placed

    def add_and_keep(entry: DecisionRecord) -> None:
        watched.decisions[str(entry.id)] = entry
        add(entry)

    def placed_now(*args: Any, **more: Any) -> int:
        serial = placed(*args, **more)
        watched.placed_at_s[serial] = time.monotonic()
        return serial

    plane.telemetry.add = add_and_keep  # type: ignore[method-assign] # a tap
    plane.outbox.placed = placed_now  # type: ignore[method-assign] # a tap


def _measure(one: Watched, two: Watched) -> None:
    """Note how old each placement is when the other router has merged it."""
    for hearer, speaker in ((one, two), (two, one)):
        take = hearer.router.peers.take

        def take_and_time(head: Head, beat: Beat, *, hearer: Watched = hearer, speaker: Watched = speaker, take: Any = take) -> None:
            take(head, beat)
            now_s = time.monotonic()
            hearer.ages_s.extend(now_s - at_s for one in beat.placements if (at_s := speaker.placed_at_s.pop(one.serial, None)) is not None)

        hearer.router.peers.take = take_and_time  # type: ignore[method-assign] # a tap


async def ask(client: aiohttp.ClientSession, watched: Watched, messages: list[dict[str, str]], answer_tokens: int) -> str:
    """One streamed chat, read to its end; its decision's id."""
    body = {"model": "m-7b", "messages": messages, "max_tokens": answer_tokens, "stream": True}
    async with client.post(f"{watched.url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {KEY_A}"}) as answer:
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"an answer of {answer.status}")
        return answer.headers["x-saltroute-decision"]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def talk(client: aiohttp.ClientSession, watched: Watched, rng: random.Random, pause_s: float) -> None:
    """Dialogues one after the other, for ever."""
    while True:
        messages: list[dict[str, str]] = []
        for _turn in range(rng.randint(1, 6)):
            messages.append({"role": "user", "content": text(rng, rng.randint(50, 900))})
            await ask(client, watched, messages, rng.randint(4, 60))
            messages.append({"role": "assistant", "content": text(rng, 20)})
            await asyncio.sleep(rng.expovariate(1 / pause_s))


async def measure(pair: tuple[Watched, Watched], *, clients: int, prefixes: int, seed: int) -> None:
    """Run one setting and print its row."""
    rng = random.Random(seed)
    agreed: Counter[float] = Counter()
    causes: Counter[str] = Counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        tasks = [asyncio.create_task(talk(client, watched, random.Random(seed + place), 0.3)) for place, watched in enumerate(pair * clients)]
        await asyncio.sleep(3.0 if clients else 1.0)
        for number in range(prefixes):
            gap_s = GAPS_S[number % len(GAPS_S)]
            first, second = pair if rng.random() < 0.5 else pair[::-1]
            messages = [{"role": "user", "content": f"{rng.getrandbits(64)} {text(rng, rng.choice((100, 500, 1500)))}"}]
            leading = asyncio.create_task(ask(client, first, messages, 2))
            await asyncio.sleep(gap_s)
            ids = await ask(client, second, messages, 2), await leading
            theirs, ours = second.decisions[ids[0]], first.decisions[ids[1]]
            agreed[gap_s] += theirs.replica_name == ours.replica_name
            if theirs.replica_name != ours.replica_name:
                causes[_cause(ours, theirs)] += 1
            await asyncio.sleep(rng.uniform(0.01, 0.1))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    each = prefixes // len(GAPS_S)
    row = "  ".join(f"{gap_s * 1000:3.0f} ms {agreed[gap_s] / each:6.1%}" for gap_s in GAPS_S)
    ages_ms = sorted(age_s * 1000 for watched in pair for age_s in watched.ages_s)
    ages = f"   words {len(ages_ms)}: median {median(ages_ms):.0f} ms, p99 {ages_ms[int(len(ages_ms) * 0.99)]:.0f} ms" if ages_ms else ""
    sys.stdout.write(f"  {clients:2d} clients a router  all {agreed.total() / (each * len(GAPS_S)):6.1%}   {row}{ages}\n")
    if causes:
        sys.stdout.write(f"      apart because of: {', '.join(f'{cause} {count}' for cause, count in causes.most_common())}\n")
    sys.stdout.flush()


def _cause(one: DecisionRecord, two: DecisionRecord) -> str:
    """What differed between two routers' pictures of the two replicas that they chose."""
    names = (one.replica_name, two.replica_name)
    pictures = [{candidate.replica_name: candidate for candidate in record.candidates} for record in (one, two)]
    chosen = [[picture[name] for name in names if name in picture] for picture in pictures]
    if any(candidate.matched_tokens for picture in chosen for candidate in picture):
        return "a match that only one saw"
    spread_s = [abs(picture[0].score_s - picture[1].score_s) for picture in chosen if len(picture) == 2]
    if all(spread < 0.005 for spread in spread_s):
        return "requests in flight, among equal scores"
    return "scores (queues)"


async def main(arguments: list[str] | None = None) -> None:
    """Print agreement by the second router's delay, with sharing and without."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.several_routers", description=__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--prefixes", type=int, default=200, help="cold prefixes in each row")
    parser.add_argument("--clients", type=int, nargs="*", default=[0, 2, 6], help="dialogues at once at each router")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    home = Home(short_temporary_home("srb-"))
    home.make()
    valkey = Valkey(home, dict.fromkeys(USERS, "of-the-benchmark"), persistent=False)
    valkey.start()
    url = valkey.url("router").replace("{password}", "of-the-benchmark")
    try:
        sys.stdout.write(
            f"{options.replicas} replicas, {options.prefixes} cold prefixes a row; same replica, by how much later the second router had it\n"
        )
        for label, valkey_url in (("with sharing", url), ("without", None)):
            sys.stdout.write(f"{label}\n")
            for clients in options.clients:
                async with fleet(options.replicas) as urls, routers(urls, valkey_url, Path(tempfile.mkdtemp())) as pair:
                    await measure(pair, clients=clients, prefixes=options.prefixes, seed=options.seed)
    finally:
        valkey.stop()
        shutil.rmtree(home.root, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
