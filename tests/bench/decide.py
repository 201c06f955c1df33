"""What a decision costs: the router's own way from a request to a replica, ``routing.dataplane.choose.choose``, in one process.

    python -m tests.bench.decide [--replicas 64] [--blocks 512] [--decisions 2000] [--residency history|events] [--profile]

A pool of 64 replicas, prompts of 512 blocks of which each replica holds another part, other namespaces' blocks beside them. Wall and CPU time of
each decision, chains included in the first figure and not in the others; prints quantiles, asserts nothing. On a machine that others use too, the
tenth percentile of the CPU time is the figure to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec

from namespaces.core.salts import Namespace
from routing.core import prefix
from routing.core.kv_events import decode
from routing.dataplane import openai
from routing.dataplane.app import Router
from routing.dataplane.authenticate import Caller
from routing.dataplane.choose import choose, measure
from routing.dataplane.config import Config
from routing.dataplane.inflight import Flight
from routing.dataplane.state import Plane
from routing.dataplane.tokens import Found
from routing.dataplane.view import EndpointView, Grant
from tests.fakes.rig import KEY_A, LOOPBACK, SECRETS, endpoint, replica_entry, sealed, tenant

BLOCK_TOKENS = 16
OTHERS_BLOCKS = 4000  # of other prompts at each replica


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _text(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("abcdefgh ijklmnop", k=size))


def _prompts(rng: random.Random, blocks: int, count: int) -> list[openai.Call]:
    """Chats that share their first half, so that replicas hold something of each."""
    shared = _text(rng, blocks * prefix.BLOCK_BYTES // 2)
    made = []
    for _ in range(count):
        text = shared + _text(rng, blocks * prefix.BLOCK_BYTES // 2)
        made.append(openai.read(msgspec.json.encode({"model": "m-7b", "messages": [{"role": "user", "content": text}]}), openai.check_chat, ()))
    return made


def _fill_history(plane: Plane, namespace: Namespace, owner: bytes, calls: list[openai.Call], rng: random.Random) -> None:
    key = namespace.key
    chains = [prefix.chain(namespace.index_seed, call.prompt) for call in calls]
    for url in plane.replicas:
        engine = plane.engine(url)
        engine.capacity_tokens = 1_000_000
        for _ in range(4):
            for chain in chains:
                digests = chain[: rng.randrange(len(chain) + 1)]
                ticket = plane.index.dispatched(key, digests, url, owner=owner)
                plane.index.confirmed(key, digests, url, ticket, time.monotonic() - rng.uniform(0, 300), owner=owner)
                engine.working_set.touch(digests, time.monotonic())
        others = [rng.randbytes(16) for _ in range(OTHERS_BLOCKS)]
        plane.index.dispatched(b"o" * 16, others, url, owner=b"o" * 16)
        engine.working_set.touch(others, time.monotonic())
        for _ in range(4):
            engine.ledger.add(rng.uniform(0, 20_000), until_s=time.monotonic() + 3600)
            engine.in_flight += 1


def _fill_events(plane: Plane, namespace: Namespace, owner: bytes, ids: list[array[int]], rng: random.Random) -> None:
    key = namespace.key
    plane.events.claim(namespace.salt, ns_key=key, owner=owner, seed=namespace.index_seed)
    for url in plane.replicas:
        target = (url, 0)
        plane.engine(url).facts.block_tokens = BLOCK_TOKENS  # so that chains are made where prompts are measured
        plane.events.set_generation(target, 1, time.monotonic())
        for token_ids in ids:
            count = rng.randrange(1, len(token_ids) // BLOCK_TOKENS + 1)
            stored = {
                "type": "BlockStored", "block_hashes": [rng.getrandbits(64) for _ in range(count)], "parent_block_hash": None,
                "token_ids": list(token_ids[: count * BLOCK_TOKENS]), "block_size": BLOCK_TOKENS, "lora_id": None, "medium": "GPU", "lora_name": None,
                "extra_keys": [[namespace.salt] if place == 0 else None for place in range(count)], "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }  # fmt: skip
            plane.events.apply(target, decode(msgspec.msgpack.encode([1.0, [stored], 0])), time.monotonic())
        plane.residency.begin(target, time.monotonic())
        plane.residency.drop(target, "subscribing", now_s=time.monotonic())


@contextmanager
def _quiet() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _quantiles(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 for share in (0.1, 0.5, 0.9, 0.99)]
    return f"{name}: p10 {at[0]:.2f} ms, p50 {at[1]:.2f} ms, p90 {at[2]:.2f} ms, p99 {at[3]:.2f} ms, longest {ordered[-1] * 1e3:.2f} ms"


@dataclass(frozen=True)
class Pool:
    """A router before its pool of replicas, and prompts that they hold parts of."""

    plane: Plane
    grant: Grant
    endpoint: EndpointView
    namespace: Namespace
    calls: list[openai.Call]
    found: list[Found]

    def flight(self, number: int) -> Flight:
        """The flight of one request, to be used as a context manager; its prompt is not measured yet."""
        flight = Flight(self.plane, route="chat", decision_id=uuid4(), request_id=None)
        flight.caller = Caller(grant=self.grant, scope_path="")
        flight.call, flight.endpoint, flight.namespace = self.calls[number % len(self.calls)], self.endpoint, self.namespace
        return flight

    def measure(self, flight: Flight, number: int) -> None:
        found = self.found[number % len(self.found)]
        flight.prompt = measure(self.calls[number % len(self.calls)], self.namespace, 4.0, found, self.plane.block_sizes(self.endpoint))


@asynccontextmanager
async def pool(folder: Path, *, replicas: int, blocks: int, residency: str, prompts: int = 12) -> AsyncIterator[Pool]:
    """``residency``: history, or events."""
    rng = random.Random(1)
    entries = tuple(replica_entry(f"http://127.0.0.1:{20_000 + number}", f"r{number:02}") for number in range(replicas))
    acme = tenant("acme", entries, {KEY_A: ""})
    acme = tenant("acme", entries, {KEY_A: ""}, endpoints=(endpoint(acme.pools[0], routing_policy=acme.endpoints[0].routing_policy),))
    config = Config(router_id="decide", state_dir=folder, valkey_url=None, port=0, internal_port=0, allowed_ranges=LOOPBACK, scrape_s=3600.0)
    router = Router(config, SECRETS)
    await router.start()
    try:
        router.snapshots.apply({acme.tenant_id: sealed(acme)})
        plane = router.plane
        for url in plane.replicas:
            plane.engine(url).health = "ok"
        view = plane.view.tenants[acme.tenant_id]
        chosen = view.endpoints["m-7b"]
        grant = next(iter(plane.view.keys.values()))
        namespace = view.namespace(chosen.entry, scope_path="", key_id=grant.key.id, context={}, subdivision=None)
        calls = _prompts(rng, blocks, prompts)
        ids = [array("I", (rng.randrange(50_000) for _ in range(blocks * BLOCK_TOKENS))) for _ in calls]
        _fill_history(plane, namespace, acme.tenant_id.bytes, calls, rng)
        if residency == "events":
            _fill_events(plane, namespace, acme.tenant_id.bytes, ids, rng)
        found = [Found(ids=token_ids, whole=True) if residency == "events" else Found() for token_ids in ids]
        yield Pool(plane, grant, chosen, namespace, calls, found)
    finally:
        await router.stop()


async def run(options: argparse.Namespace, folder: Path) -> None:
    whole, decided, cpu, written = [], [], [], []
    profile = cProfile.Profile()
    async with pool(folder, replicas=options.replicas, blocks=options.blocks, residency=options.residency) as here:
        with _quiet():
            for number in range(options.decisions):
                with here.flight(number) as flight:
                    began_s = time.perf_counter()
                    here.measure(flight, number)
                    measured_s, began_cpu_s = time.perf_counter(), time.process_time()
                    if options.profile:
                        profile.enable()
                    choice = choose(here.plane, flight, tried=(), now_s=time.monotonic())
                    profile.disable()
                    ended_s, ended_cpu_s = time.perf_counter(), time.process_time()
                    tuple(choice.decision.candidates)
                    written.append(time.process_time() - ended_cpu_s)
                    cpu.append(ended_cpu_s - began_cpu_s)
                    whole.append(ended_s - began_s)
                    decided.append(ended_s - measured_s)
                    flight.outcome = "client_cancelled"
    _say(f"{options.replicas} replicas, prompts of {options.blocks} blocks, residency by {options.residency}")
    _say(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    _say(_quantiles("with the prompt's chains", whole))
    _say(_quantiles("choice, wall", decided))
    _say(_quantiles("choice, CPU", cpu))
    more = statistics.median(written) / statistics.median(cpu)
    _say(f"were every candidate written out, as only a record that keeps them asks for: {more:.0%} more")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=512)
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--residency", choices=("history", "events"), default="history")
    parser.add_argument("--profile", action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()
