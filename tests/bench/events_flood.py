"""One router against an engine that floods a replay: memory, and the processor time of the longest turn of the event loop.

    python -m tests.bench.events_flood [--seconds 6]

The engine is a process of its own on real sockets and answers each replay without end, with messages of three kinds: tens of thousands of tiny
unknown events, an event full of little lists, and one event of 2 MiB of tokens. Prints numbers; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
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

TWO_MIB = 2 * 1024 * 1024
KINDS: dict[str, list[Any]] = {
    "tiny events": [["x"]] * 40_000,
    "little lists": [{"type": "x", "y": [[]] * (TWO_MIB - 200)}],
    "one event": [
        {
            "type": "BlockStored",
            "block_hashes": [(1 << 40) + number for number in range(22_000)],
            "parent_block_hash": None,
            "token_ids": [100_000] * (22_000 * 16),
            "block_size": 16,
        }
    ],
}


def flood(kind: str) -> None:
    """The engine's process: say the ports, then answer for ever."""
    context: zmq.Context[Any] = zmq.Context()
    live, replays = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    replays.setsockopt(zmq.SNDHWM, 1000)
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (live, replays)]
    sys.stdout.write(f"{ports[0]} {ports[1]}\n")
    sys.stdout.flush()
    payload = msgspec.msgpack.encode([1.0, KINDS[kind], 0])
    while True:
        peer, _, first = replays.recv_multipart()
        number = int.from_bytes(first, "big")
        while not replays.poll(0):
            replays.send_multipart((peer, b"", b"kv", number.to_bytes(8, "big"), payload))
            number += 1


async def turns(longest_s: list[float]) -> None:
    """Note the processor time of the longest turn of the loop."""
    while True:
        before_s = time.thread_time()
        await asyncio.sleep(0)
        longest_s[0] = max(longest_s[0], time.thread_time() - before_s)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def measure(kind: str, seconds: float) -> None:
    command = [sys.executable, "-m", "tests.bench.events_flood", "--kind", kind]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - before the measurement
    try:
        assert child.stdout is not None
        live, replays = map(int, child.stdout.readline().split())
        with tempfile.TemporaryDirectory() as folder:
            async with standard_rig(Path(folder)) as rig:
                events = KvEvents(endpoint=f"tcp://127.0.0.1:{live}", replay=f"tcp://127.0.0.1:{replays}", topic="kv")
                replica = ReplicaEntry(id=named("flood"), name="flood", url="http://127.0.0.1:1", engine="vllm", kv_events=events)
                before, most, longest_s = resident_bytes(), 0, [0.0]
                probe = asyncio.create_task(turns(longest_s))
                rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=(replica,)),)))
                ends_s = time.monotonic() + seconds
                while time.monotonic() < ends_s:
                    await asyncio.sleep(0.01)
                    most = max(most, resident_bytes() - before)
                probe.cancel()
                said = f"{kind:13s} {most / 1e6:5.0f} MB more at most, longest turn {longest_s[0] * 1000:.0f} ms of processor time"
                sys.stdout.write(f"{said}; {_counted(rig, 'replay')} messages read, {_counted(rig, 'asked')} replays asked for\n")
    finally:
        child.kill()
        child.wait(10)


def _counted(rig: Rig, kind: str) -> int:
    return int(rig.router.plane.metrics.registry.get_sample_value("saltroute_kv_messages_total", {"kind": kind}) or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="One router against an engine that floods a replay.")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--kind", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind is not None:
        flood(options.kind)
        return
    for kind in KINDS:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the router itself runs
            runner.run(measure(kind, options.seconds))


if __name__ == "__main__":
    main()
