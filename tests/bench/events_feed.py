"""Does one router keep up with the KV events of its engines? Publishers in a process of their own, a real router in this one.

    python -m tests.bench.events_feed [--publishers 8] [--blocks 2000] [--seconds 15] [--batch 16] [--tokens 16]

Each publisher stores ``--blocks`` blocks a second (new prompts of ``--batch`` blocks, one event and one message each, under a namespace that the
router serves) and, once 20,000 are resident, removes as many. Prints what was published and applied, gaps, the router's share of one core, how much
of the time reading took, and how late a task that wants to run after a millisecond is called meanwhile. Asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop
import zmq

from routing.core.snapshot import KvEvents, ReplicaEntry
from tests.fakes.rig import Rig, bumped, named, standard_rig

CATCH_UP_S = 10.0
RESIDENT = 20_000  # blocks of one publisher


def publish(salt: str, *, publishers: int, blocks: int, seconds: float, batch: int, tokens: int) -> None:
    """The publishers' process: bind, say the ports, wait for a line, publish on time, say how much that was."""
    context = zmq.Context()
    sockets = [context.socket(zmq.PUB) for _ in range(publishers)]
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
    encoder = msgspec.msgpack.Encoder()
    began, sent, rounds = time.perf_counter(), 0, 0
    late_s = 0.0
    while (now := time.perf_counter()) - began < seconds:
        due = began + rounds * batch / blocks
        if now < due:
            time.sleep(due - now)
        late_s = max(late_s, now - due)
        first = 1 + rounds * batch
        gone = first - RESIDENT
        for place, socket in enumerate(sockets):
            base = (place + 1) << 40
            ids = [(first * 7 + place + number) % 150_000 for number in range(batch * tokens)]
            events: list[Any] = []
            if gone > 0:
                events = [
                    {"type": "BlockRemoved", "block_hashes": [base + gone + batch - 1 - n], "medium": "GPU", "group_idx": 0} for n in range(batch)
                ]
            events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": list(range(base + first, base + first + batch)),
                    "parent_block_hash": None,
                    "token_ids": ids,
                    "block_size": tokens,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": None,
                    "extra_keys": [[salt], *[None] * (batch - 1)],
                    "group_idx": 0,
                    "kv_cache_spec_kind": "full_attention",
                }
            )
            payload = encoder.encode([time.time(), events, 0])
            socket.send_multipart((b"kv", rounds.to_bytes(8, "big"), payload))
            sent += batch
        rounds += 1
    sys.stdout.write(json.dumps({"blocks": sent, "messages": rounds * publishers, "late_s": late_s}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
    context.destroy(linger=0)


def follow(rig: Rig, ports: list[int]) -> None:
    """One replica for each publisher; its HTTP side is not there."""
    replicas = tuple(
        ReplicaEntry(
            id=named(f"bench {port}"),
            name=str(port),
            url=f"http://127.0.0.1:{port}",
            engine="vllm",
            kv_events=KvEvents(endpoint=f"tcp://127.0.0.1:{port}", topic="kv"),
        )
        for port in ports
    )
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=replicas),)))


async def lateness(delays_s: list[float]) -> None:
    """How late the loop calls somebody who wants to run after a millisecond."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        delays_s.append(time.perf_counter() - before - 0.001)


async def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with standard_rig(Path(folder)) as rig:
            plane, namespace = rig.router.plane, rig.namespace()
            key = namespace.key
            plane.events.claim(namespace.salt, ns_key=key, owner=rig.acme.tenant_id.bytes, seed=namespace.index_seed)
            numbers = [f"--{name}={getattr(options, name)}" for name in ("publishers", "blocks", "seconds", "batch", "tokens")]
            command = [sys.executable, "-m", "tests.bench.events_feed", "--salt", namespace.salt, *numbers]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - before the measurement
            try:
                assert child.stdin is not None
                assert child.stdout is not None
                follow(rig, json.loads(child.stdout.readline()))
                async with asyncio.timeout(20):
                    while _counted(rig, "connected") < options.publishers:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                child.stdin.write("go\n")
                child.stdin.flush()
                delays_s: list[float] = []
                probe = asyncio.create_task(lateness(delays_s))
                busy_s, cpu_s, began_s = rig.router.kv.pump.busy_s, time.process_time(), time.perf_counter()
                said = json.loads(await asyncio.to_thread(child.stdout.readline))
                took_s = time.perf_counter() - began_s
                cpu_s, busy_s = time.process_time() - cpu_s, rig.router.kv.pump.busy_s - busy_s
                probe.cancel()
                ended_s = time.perf_counter()
                while _counted(rig, "live") < said["messages"] and time.perf_counter() - ended_s < CATCH_UP_S:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                said["catch_up_s"] = time.perf_counter() - ended_s
                child.stdin.write("end\n")
                child.stdin.flush()
            finally:
                child.wait(10)
            report(rig, said, took_s=took_s, cpu_s=cpu_s, busy_s=busy_s, delays_s=delays_s)


def report(rig: Rig, said: dict[str, Any], *, took_s: float, cpu_s: float, busy_s: float, delays_s: list[float]) -> None:
    counters, pump, live = rig.router.plane.events.counters, rig.router.kv.pump, _counted(rig, "live")
    stored, removed = counters["stored"], counters["removed"]
    centiles = statistics.quantiles(delays_s, n=100)
    missing, gaps = said["messages"] - live, _counted(rig, "gap")
    for line in (
        f"published  {said['blocks']} blocks in {said['messages']} messages, {said['blocks'] / took_s:.0f} blocks/s",
        f"           the latest round {said['late_s'] * 1000:.0f} ms after its time",
        f"applied    {stored} blocks stored, {removed} removed, {live:.0f} messages; missing {missing:.0f}, gaps {gaps:.0f}",
        f"           all read {said['catch_up_s']:.2f} s after the last was published",
        f"router     {cpu_s / took_s:.1%} of one core, {cpu_s / max(1, stored + removed) * 1e6:.1f} us a block stored or removed",
        f"slices     {pump.slices}, of them {pump.full_slices} full; {busy_s / took_s:.1%} of the wall time, waiting for a core included",
        f"loop       late by {centiles[49] * 1000:.2f} ms median, {centiles[98] * 1000:.2f} ms p99, {max(delays_s) * 1000:.1f} ms at most",
    ):
        sys.stdout.write(line + "\n")


def _counted(rig: Rig, kind: str) -> float:
    return float(rig.router.plane.metrics.registry.get_sample_value("saltroute_kv_messages_total", {"kind": kind}) or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="One router against the KV events of many engines.")
    parser.add_argument("--publishers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2000, help="stored a second, each publisher")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--batch", type=int, default=16, help="blocks of one message")
    parser.add_argument("--tokens", type=int, default=16, help="of one block")
    parser.add_argument("--salt", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.salt is not None:
        numbers = {name: getattr(options, name) for name in ("publishers", "blocks", "seconds", "batch", "tokens")}
        publish(options.salt, **numbers)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the router itself runs
        runner.run(measure(options))


if __name__ == "__main__":
    main()
