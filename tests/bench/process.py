"""The router as its own process, for benchmarks that kill it or watch its memory. Its configuration comes from disk; Valkey is away."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from routing.core.snapshot import TenantSnapshot
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from tests.fakes import rig

ROOT_FOLDER = Path(__file__).parents[2]
START_S = 30.0
STOP_S = 40.0
RECORD_QUEUE = 1000  # with nobody to take the records, the queue is full within the first minutes and stays so
_SERIES = re.compile(r"^(saltroute_\w+?)(?:_total)?(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def leave_on_disk(folder: Path, documents: tuple[TenantSnapshot, ...]) -> None:
    """Write the state file that a router which knew ``documents`` would have left, and the key files."""
    for name, value in (("root", rig.ROOT), ("publish", rig.SECRETS.publish_public_key), ("records", rig.SECRETS.records_key)):
        (folder / name).write_bytes(value)
    config = Config(router_id="before", state_dir=folder / "state", port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=3600.0)
    router = Router(config, rig.SECRETS)
    await router.start()
    router.snapshots.apply({document.tenant_id: rig.sealed(document) for document in documents})
    router.plane.feed.contact_at = time.time()
    await router.snapshots.save()
    await router.stop()


_LEAVE = """
import asyncio, pathlib, sys
from tests.bench.process import leave_on_disk
from tests.fakes import rig
document = rig.tenant("acme", (rig.replica_entry(sys.argv[2], "r0"),), {rig.KEY_A: ""})
asyncio.run(leave_on_disk(pathlib.Path(sys.argv[1]), (document,)))
"""


async def leave_on_disk_by(root: Path, folder: Path, engine: str) -> None:
    """As :func:`leave_on_disk`, one tenant before one engine, by the code of another tree: what routers keep changes with them.

    Raises:
        RuntimeError: that tree cannot.
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _LEAVE, str(folder), engine, cwd=root, env={"PATH": os.environ["PATH"]})
    if await process.wait():
        raise RuntimeError(f"the router of {root} left nothing on disk")


@dataclass
class RouterProcess:
    """Start, look at, kill and start again, always on the same ports. ``folder`` is what :func:`leave_on_disk` wrote."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    internal_port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None
    root: Path = ROOT_FOLDER  # the tree whose router it is

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def internal(self) -> str:
        return f"http://127.0.0.1:{self.internal_port}"

    async def start(self) -> None:
        """Start and wait until it is ready.

        Raises:
            RuntimeError: it ended.
            TimeoutError: it was not ready in time.
        """
        env = {
            "SALTROUTE_ROOT_KEY_FILE": str(self.folder / "root"),
            "SALTROUTE_PUBLISH_PUBLIC_KEY_FILE": str(self.folder / "publish"),
            "SALTROUTE_RECORDS_KEY_FILE": str(self.folder / "records"),
            "SALTROUTE_STATE_DIR": str(self.folder / "state"),
            "SALTROUTE_ALLOWED_RANGES": "127.0.0.0/8",
            "VALKEY_URL": "redis://127.0.0.1:1/0",
            "ROUTER_ID": "bench",
            "ROUTER_PORT": str(self.port),
            "ROUTER_INTERNAL_PORT": str(self.internal_port),
            "ROUTER_RECORD_QUEUE": str(RECORD_QUEUE),
            "PATH": os.environ["PATH"],
            **self.settings,
        }
        with (self.folder / "router.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "routing.dataplane",
                env=env,
                cwd=self.root,
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Linux shares the processor out by session: beside its load in one, the router would get what is left
            )
        async with aiohttp.ClientSession() as session, asyncio.timeout(START_S):
            while not await self._ready(session):
                if self.process.returncode is not None:
                    raise RuntimeError(f"the router ended:\n{self.log()}")
                await asyncio.sleep(0.05)

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}/readyz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    def log(self) -> str:
        return (self.folder / "router.log").read_text(errors="replace")[-4000:]

    async def kill(self) -> None:
        """As the kernel does when memory is short."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, with_signal: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(with_signal)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def rss_bytes(self) -> int:
        """Resident memory, from /proc."""
        if self.process is None:
            return 0
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    async def metrics(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Every series of the router's own page, by name and labels."""
        async with session.get(f"{self.internal}/metrics") as answer:
            page = await answer.text()
        return {f"{name}{{{labels}}}" if labels else name: float(value) for name, labels, value in _SERIES.findall(page)}
