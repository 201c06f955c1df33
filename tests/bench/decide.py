"""What a decision costs: the router's own way from a request to a replica, ``routing.dataplane.choose.choose``, in one process.

    python -m tests.bench.decide [--replicas 64] [--blocks 512] [--decisions 2000] [--residency history|events] [--profile]

A pool of 64 replicas, prompts of 512 blocks of which each replica holds another part, other namespaces' blocks beside them. Wall and CPU time of
each decision, chains included in the first figure and not in the second; prints quantiles, asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
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
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 for share in (0.5, 0.9, 0.99)]
    return f"{name}: p50 {at[0]:.2f} ms, p90 {at[1]:.2f} ms, p99 {at[2]:.2f} ms, longest {ordered[-1] * 1e3:.2f} ms"


async def run(options: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(1)
    replicas = tuple(replica_entry(f"http://127.0.0.1:{20_000 + number}", f"r{number:02}") for number in range(options.replicas))
    acme = tenant("acme", replicas, {KEY_A: ""})
    acme = tenant("acme", replicas, {KEY_A: ""}, endpoints=(endpoint(acme.pools[0], routing_policy=acme.endpoints[0].routing_policy),))
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
        calls = _prompts(rng, options.blocks, 12)
        ids = [array("I", (rng.randrange(50_000) for _ in range(options.blocks * BLOCK_TOKENS))) for _ in calls]
        owner = acme.tenant_id.bytes
        _fill_history(plane, namespace, owner, calls, rng)
        if options.residency == "events":
            _fill_events(plane, namespace, owner, ids, rng)
        whole, decided, cpu = [], [], []
        profile = cProfile.Profile()
        with _quiet():
            for number in range(options.decisions):
                call, token_ids = calls[number % len(calls)], ids[number % len(calls)]
                found = Found(ids=token_ids, whole=True) if options.residency == "events" else Found()
                with Flight(plane, route="chat", decision_id=uuid4(), request_id=None) as flight:
                    flight.caller = Caller(grant=grant, scope_path="")
                    flight.call, flight.endpoint, flight.namespace = call, chosen, namespace
                    began_s = time.perf_counter()
                    flight.prompt = measure(call, namespace, 4.0, found, plane.block_sizes(chosen))
                    measured_s, began_cpu_s = time.perf_counter(), time.process_time()
                    if options.profile:
                        profile.enable()
                    choice = choose(plane, flight, tried=(), now_s=time.monotonic())
                    profile.disable()
                    ended_s = time.perf_counter()
                    cpu.append(time.process_time() - began_cpu_s)
                    whole.append(ended_s - began_s)
                    decided.append(ended_s - measured_s)
                    assert choice.decision.chosen.matched_tokens >= 0
                    flight.outcome = "client_cancelled"
        _say(f"{options.replicas} replicas, prompts of {options.blocks} blocks, residency by {options.residency}")
        _say(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        _say(_quantiles("with the prompt's chains", whole))
        _say(_quantiles("choice, wall", decided))
        _say(_quantiles("choice, CPU", cpu))
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    finally:
        await router.stop()


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
