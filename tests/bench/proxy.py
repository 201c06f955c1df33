"""What a request costs in the router: CPU, throughput of one core, added latency; beside going direct and beside other proxies, in one run.

    python -m tests.bench.proxy [--rounds 8] [--window-s 0.7] [--only saltroute] [--before FOLDER]

The proxy under test has one core, engine and client the other. All processes run from the start; windows of the arms alternate, so whatever else
the machine does hits all alike, and of each figure the median over the windows is shown (CPU: the 25th percentile, which neighbours disturb least).
Throughput: 16 connections that ask at once again. Latency: one connection, less what going direct takes. A stream has 32 events, 1 ms apart; its
latency is that of the first event. ``--before``: a tree of an earlier commit, whose router is one more arm. Writes docs/benchmarks/proxy.md, unless
arms are left out or added; nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from tests.bench.process import RouterProcess, free_port, leave_on_disk_by
from tests.bench.proxy_parts import MODEL
from tests.bench.routing_arms import PEERS
from tests.bench.traffic import quantile, quiet
from tests.fakes import rig

REPORT = Path(__file__).parents[2] / "docs" / "benchmarks" / "proxy.md"
ROOT_FOLDER = Path(__file__).parents[2]
CONNECTIONS = 16
START_S = 40.0
CASES = (("1 KB", 1_000, False), ("1 KB, stream", 1_000, True), ("100 KB", 100_000, False), ("100 KB, stream", 100_000, True))


@dataclass
class Target:
    """A proxy that runs, or the engine itself (``pid`` 0: its CPU is not of interest)."""

    name: str
    port: int
    pid: int = 0


@dataclass
class Figures:
    per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    failed: int = 0


class _Client(asyncio.Protocol):
    """Asks, reads the answer to its end, asks again. Knows just enough HTTP to see both."""

    def __init__(self, request: bytes, until_s: float) -> None:
        self._request, self._until_s = request, until_s
        self._head = self._tail = b""
        self._left: int | None = None
        self._asked_s = 0.0
        self.took_s: list[float] = []
        self.failed = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.failed += 1
            self.done.set_result(None)

    def _ask(self) -> None:
        if self._transport is None or time.perf_counter() >= self._until_s:
            if not self.done.done():
                self.done.set_result(None)
            if self._transport is not None:
                self._transport.close()
            return
        self._head = self._tail = b""
        self._left = None
        self._asked_s = time.perf_counter()
        self._first = False
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self.failed += not head.startswith(b"http/1.1 200")
            place = head.find(b"content-length:")
            self._left = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else -1
        if data and not self._first:
            self._first = True
            self.took_s.append(time.perf_counter() - self._asked_s)
        if self._left >= 0:
            self._left -= len(data)
            if self._left <= 0:
                self._ask()
            return
        self._tail = (self._tail + data)[-7:]
        if self._tail.endswith(b"\r\n0\r\n\r\n"):
            self._ask()


def _request(port: int, size: int, *, stream: bool) -> bytes:
    text = "The quick brown fox jumps over the lazy dog. " * (size // 45)
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 64, "stream": stream}
    raw = msgspec.json.encode(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {rig.KEY_A}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


async def _window(target: Target, request: bytes, connections: int, window_s: float) -> list[_Client]:
    until_s = time.perf_counter() + window_s
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: _Client(request, until_s), "127.0.0.1", target.port))[1] for _ in range(connections)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(window_s + 5):
            await asyncio.gather(*(one.done for one in clients))
    return clients


def _pin(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def _cpu_s(pid: int) -> float:
    """CPU time of all threads, in nanoseconds' resolution."""
    return sum(int((one / "schedstat").read_text().split()[0]) for one in Path(f"/proc/{pid}/task").iterdir()) / 1e9


async def _measure(target: Target, size: int, figures: Figures, *, stream: bool, window_s: float) -> None:
    request = _request(target.port, size, stream=stream)
    cpu_s, began_s = _cpu_s(target.pid) if target.pid else 0.0, time.perf_counter()
    clients = await _window(target, request, CONNECTIONS, window_s)
    count = sum(len(one.took_s) for one in clients)
    figures.failed += sum(one.failed for one in clients)
    figures.per_s.append(count / (time.perf_counter() - began_s))
    if target.pid and count:
        figures.cpu_us.append((_cpu_s(target.pid) - cpu_s) / count * 1e6)
    (alone,) = await _window(target, request, 1, window_s / 2)
    figures.failed += alone.failed
    figures.latency_s += alone.took_s


@asynccontextmanager
async def _process(name: str, port: int, command: list[str], core: int) -> AsyncIterator[Target]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT_FOLDER), "HF_HUB_OFFLINE": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd=ROOT_FOLDER,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        await _until_it_answers(port, process)
        yield Target(name, port, process.pid)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _until_it_answers(port: int, process: asyncio.subprocess.Process) -> None:
    request = _request(port, 100, stream=False)
    async with asyncio.timeout(START_S):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"ended with {process.returncode}")
            with contextlib.suppress(OSError):
                (client,) = await _window(Target("", port), request, 1, 0.01)
                if client.took_s and not client.failed:
                    return
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _ours(name: str, root: Path, engine: int, folder: Path, core: int) -> AsyncIterator[Target]:
    await asyncio.to_thread(folder.mkdir)
    await leave_on_disk_by(root, folder, f"http://127.0.0.1:{engine}")
    router = RouterProcess(folder, root=root)
    await router.start()
    try:
        if router.process is None:
            raise RuntimeError("not started")
        _pin(router.process.pid, core)
        yield Target(name, router.port, router.process.pid)
    finally:
        await router.kill()


def _peer_commands(engine: int) -> list[tuple[str, int, list[str]]]:
    found = []
    for name, arguments in (
        ("smg", ["launch", "--policy", "cache_aware", "--disable-tokenizer-autoload"]),
        ("vllm-router", ["--policy", "cache_aware"]),
    ):
        binary, port = PEERS / name / "bin" / name, free_port()
        if binary.exists():
            more = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()), "--log-level", "error"]
            found.append((name, port, [str(binary), *arguments, *more, "--worker-urls", f"http://127.0.0.1:{engine}"]))
    return found


async def _targets(stack: AsyncExitStack, folder: Path, only: Sequence[str], before: Path | None) -> list[Target]:
    engine, plain = free_port(), free_port()
    here, there = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    python = [sys.executable, "-m", "tests.bench.proxy_parts"]
    await stack.enter_async_context(_process("engine", engine, [*python, "engine", str(engine)], there))
    targets = [Target("direct", engine)]
    if not only or "saltroute" in only:
        targets.append(await stack.enter_async_context(_ours("saltroute", ROOT_FOLDER, engine, folder / "now", here)))
    if before is not None:
        targets.append(await stack.enter_async_context(_ours("saltroute before", before, engine, folder / "before", here)))
    if not only or "aiohttp" in only:
        targets.append(
            await stack.enter_async_context(_process("aiohttp pass-through", plain, [*python, "passthrough", str(plain), str(engine)], here))
        )
    for name, port, command in _peer_commands(engine):
        if only and name not in only:
            continue
        try:
            targets.append(await stack.enter_async_context(_process(name, port, command, here)))
        except (RuntimeError, TimeoutError) as error:
            sys.stdout.write(f"{name}: does not serve: {type(error).__name__} {error}\n")
    os.sched_setaffinity(0, {there})
    return targets


async def _run(rounds: int, window_s: float, only: Sequence[str], before: Path | None) -> list[str]:
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            targets = await _targets(stack, Path(folder), only, before)
            for name, size, stream in CASES:
                figures = {one.name: Figures() for one in targets}
                for _ in range(rounds):
                    for target in targets:
                        await _measure(target, size, figures[target.name], stream=stream, window_s=window_s)
                lines += _table(name, targets, figures)
                sys.stdout.write("\n".join(lines[-len(targets) - 3 :]) + "\n")
                sys.stdout.flush()
    return lines


def _table(name: str, targets: Sequence[Target], figures: dict[str, Figures]) -> list[str]:
    direct = figures[targets[0].name]
    lines = [f"\n## {name}\n", "| | CPU us a request | requests/s | added latency p50 us | p99 us | failed |", "|---|---|---|---|---|---|"]
    for target in targets:
        seen = figures[target.name]
        cpu = f"{quantile(seen.cpu_us, 0.25):.0f}" if seen.cpu_us else "-"
        own = [quantile(direct.latency_s, share) * 1e6 for share in (0.5, 0.99)]
        added = [quantile(seen.latency_s, share) * 1e6 - mine for share, mine in zip((0.5, 0.99), own, strict=True)]
        latency = " | ".join(f"{one:.0f}" if target.pid else f"({mine:.0f})" for one, mine in zip(added, own, strict=True))
        lines.append(f"| {target.name} | {cpu} | {quantile(seen.per_s, 0.5):.0f} | {latency} | {seen.failed} |")
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--window-s", type=float, default=0.7)
    parser.add_argument("--only", action="append", default=[], choices=("saltroute", "aiohttp", "smg", "vllm-router"), help="may be repeated")
    parser.add_argument("--before", type=Path, help="a tree of an earlier commit, installed for the same interpreter")
    options = parser.parse_args(arguments)
    quiet()
    load = os.getloadavg()[0]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        lines = runner.run(_run(options.rounds, options.window_s, options.only, options.before))
    preface = [
        "# What a request costs",
        "",
        f"`make bench-proxy`: the proxy on one core of {os.cpu_count()}, engine and client on another, {options.rounds} rounds of alternating",
        f"windows. The machine's load was {load:.1f} before and {os.getloadavg()[0]:.1f} after: above 2 others took part of the cores, and only what",
        "stands side by side compares. Requests/s are those of 16 connections in a closed loop; of a stream, 32 events 1 ms apart bound them. Direct",
        "latency in brackets.",
    ]
    if not options.only and options.before is None:
        REPORT.write_text("\n".join([*preface, *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
