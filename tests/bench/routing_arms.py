"""What ``tests.bench.routing`` compares: our router under three policies, and two others where they are installed. Each is a process."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from routing.core import artifact
from routing.core.snapshot import ArtifactRef, ModelEntry, PolicyEntry
from routing.dataplane.feeds.artifact_files import ArtifactFiles
from routing.dataplane.keys import Keys
from routing.simulator.fleet import Fleet
from tests.bench.process import RouterProcess, free_port, leave_on_disk
from tests.bench.routing_fleet import BLOCK, MODEL, tokenizer
from tests.fakes import rig
from tests.fakes.artifacts import TEMPLATE

PEERS = Path("~/.cache/saltroute-peers").expanduser()  # one virtual environment each: python -m venv smg && smg/bin/pip install smg
READY_S = 40.0


@dataclass(frozen=True)
class Running:
    """A router that listens; ``key`` is what its clients present."""

    url: str
    key: str
    pid: int


Open = Callable[[Fleet, Path], AbstractAsyncContextManager[Running]]


@dataclass(frozen=True)
class Arm:
    name: str
    open: Open


@asynccontextmanager
async def _ours(spec: dict[str, object], fleet: Fleet, folder: Path) -> AsyncIterator[Running]:
    contents = (tokenizer(), TEMPLATE)
    digests = [hashlib.sha256(content).digest() for content in contents]
    files = ArtifactFiles(folder / "state", Keys(rig.SECRETS), 1 << 30)
    for content, digest in zip(contents, digests, strict=True):
        files.write(digest, artifact.pack(content), named=digests, held=digests)
    replicas = tuple(rig.replica_entry(one.url, f"r{number}") for number, one in enumerate(fleet.replicas))
    model = ModelEntry(name=MODEL, revision="r1", tokenizer=ArtifactRef(digest=digests[0]), chat_template=ArtifactRef(digest=digests[1]))
    policy = PolicyEntry(name="bench", version=1, spec=spec)
    document = rig.tenant("acme", replicas, {rig.KEY_A: ""})
    endpoints = tuple(msgspec.structs.replace(one, model=model, routing_policy=policy) for one in document.endpoints)
    await leave_on_disk(folder, (msgspec.structs.replace(document, endpoints=endpoints),))
    router = RouterProcess(folder, settings={"ROUTER_CATALOGUE": ",".join(one.hex() for one in digests)})
    await router.start()
    try:
        if router.process is None:
            raise RuntimeError("not started")
        await _settled(router)
        yield Running(router.url, rig.KEY_A, router.process.pid)
    finally:
        await router.kill()


async def _settled(router: RouterProcess) -> None:
    """Wait until the router reads its engines' events."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(READY_S):
        while True:
            async with session.get(f"{router.internal}/status") as answer:
                if b'"exact"' in await answer.read():
                    return
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _peer(command: list[str], port: int) -> AsyncIterator[Running]:
    """Run another router. It sees nothing of this machine but the loopback, and none of our settings."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "HF_HUB_OFFLINE": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(READY_S):
            while not await _answers(session, f"http://127.0.0.1:{port}"):
                if process.returncode is not None:
                    raise RuntimeError(f"{command[0]} ended with {process.returncode}")
                await asyncio.sleep(0.3)
        yield Running(f"http://127.0.0.1:{port}", "none", process.pid)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a request goes through to an engine."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "aaaq"}], "max_tokens": 1}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=3)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _smg(fleet: Fleet, _folder: Path) -> AbstractAsyncContextManager[Running]:
    port, metrics = free_port(), free_port()
    urls = [one.url for one in fleet.replicas]
    command = [str(PEERS / "smg/bin/smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    command += ["--prometheus-host", "127.0.0.1", "--policy", "cache_aware", "--disable-tokenizer-autoload", "--log-level", "error"]
    return _peer([*command, "--worker-urls", *urls], port)


def _vllm_router(fleet: Fleet, _folder: Path) -> AbstractAsyncContextManager[Running]:
    port, metrics = free_port(), free_port()
    command = [str(PEERS / "vllm-router/bin/vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    command += ["--policy", "kv_aware", "--kv-event-block-size", str(BLOCK), "--kv-event-model", MODEL, "--log-level", "error"]
    for one in fleet.replicas:
        command += ["--kv-event-source", f"{one.url}={one.kv_endpoint}", "--kv-event-replay-source", f"{one.url}={one.replay_endpoint}"]
    return _peer([*command, "--worker-urls", *(one.url for one in fleet.replicas)], port)


def own_arms() -> list[Arm]:
    return [Arm(name, partial(_ours, {"policy": name})) for name in ("round_robin", "least_outstanding", "ettft")]


def peer_arms() -> tuple[list[Arm], list[str]]:
    """The peers that are installed, and a line for each that is not."""
    found, missing = [], []
    for name, binary, start in (("smg cache_aware", "smg/bin/smg", _smg), ("vllm-router kv_aware", "vllm-router/bin/vllm-router", _vllm_router)):
        if (PEERS / binary).exists():
            found.append(Arm(name, start))
        else:
            missing.append(f"{name}: not installed at {PEERS / binary}, left out")
    return found, missing
