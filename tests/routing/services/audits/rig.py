"""A real router in front of simulated engines, on a thread of its own: what the audit worker talks to. The database stays with the test."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.dataplane.app import Router
from routing.dataplane.config import Config, Secrets
from routing.simulator.config import Adapter, EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, fleet_configs

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
# A cold prompt of 1,040 tokens takes some 35 ms, a hit 2 ms: apart enough beside whatever else the machine does.
ENGINE = EngineConfig(blocks=4000, time=TimeModel(speed=4.0))
ADAPTERS = (Adapter("ada", "/adapters/ada", 1), Adapter("bob", "/adapters/bob", 2))


@dataclass
class Rig:
    """Everything that runs beside the test."""

    loop: asyncio.AbstractEventLoop
    fleet: Fleet
    router: Router

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the rig's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=20)

    @property
    def door(self) -> str:
        return f"http://127.0.0.1:{self.router.internal_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"

    def engine(self, number: int = 0) -> str:
        return self.fleet[number].url

    def mode(self, number: int = 0, **changes: Any) -> None:
        """Switch an engine's misbehaviour."""
        self.fleet[number].replica.set_mode(changes)

    def restart(self, number: int = 0) -> None:
        """A new generation: the cache is empty."""
        self.call(self.fleet[number].restart())

    def in_force(self, tenant_id: Any, version: int) -> None:
        """Wait until the router runs a version of a tenant."""

        def applied() -> bool:
            tenant = self.router.plane.view.tenants.get(tenant_id)
            return tenant is not None and tenant.snapshot.version >= version

        until(applied)

    def report(self) -> dict[str, Any]:
        """The router's report, as it is written to Valkey."""
        report: dict[str, Any] = json.loads(self.router.snapshots.status())
        return report

    def chat(self, key: str, text: str, model: str = "chat") -> tuple[int, dict[str, Any]]:
        """A client's request at the public port."""
        body = json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/v1/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Poll for a condition of this process; fails loudly when it does not come true."""
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s, "it did not come true"
        threading.Event().wait(0.005)


@contextmanager
def running(state_dir: Path, valkey_url: str, secrets: Secrets, *, replicas: int = 1, adapters: tuple[Adapter, ...] = ADAPTERS) -> Iterator[Rig]:
    """Start fleet and router; stop both."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="rig", daemon=True)
    thread.start()
    config = Config(
        router_id="router-of-the-tests",
        state_dir=state_dir,
        valkey_url=valkey_url,
        port=0,
        internal_port=0,
        allowed_ranges=LOOPBACK,
        poll_s=0.05,
        scrape_s=0.05,
        linger_s=0.01,
    )

    async def start() -> Rig:
        fleet = Fleet(fleet_configs(ReplicaConfig(engine=ENGINE, adapters=adapters, kv_port=None, replay_port=None), replicas))
        await fleet.start()
        router = Router(config, secrets)
        await router.start()
        return Rig(loop, fleet, router)

    rig: Rig | None = None
    try:
        rig = asyncio.run_coroutine_threadsafe(start(), loop).result(timeout=20)
        yield rig
    finally:
        if rig is not None:
            rig.call(rig.router.stop())
            rig.call(rig.fleet.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()
