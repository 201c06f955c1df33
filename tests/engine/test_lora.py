"""Two LoRA adapters and their base on one real engine: blocks apart, events credited to their own namespace, slots and lists read, one unloaded."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from routing.core.record import DecisionRecord
from routing.core.snapshot import AdapterEntry
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.dataplane.engine import Engine
from routing.dataplane.feeds import load
from tests.engine import tiny_adapter
from tests.engine.conftest import required
from tests.engine.installation import EngineUnavailableError, Installation
from tests.engine.tiny_model import Shape
from tests.engine.vllm_cpu import BLOCK_TOKENS, MODEL_NAME, Replica, start, stop
from tests.fakes import rig
from tests.fakes.rig import KEY_A, until

pytestmark = pytest.mark.engine

NAMES = (MODEL_NAME, "ad1", "ad2")
WHOLE_TOKENS = 10 * BLOCK_TOKENS
SLOW_S = 60.0


@dataclass
class Course:
    """A router before one engine with the endpoints of ``NAMES``."""

    router: Router
    replica: Replica
    client: aiohttp.ClientSession

    @property
    def engine(self) -> Engine:
        return self.router.plane.engine(self.replica.url)

    async def ask(self, model: str, prompt: list[int]) -> tuple[int, Any]:
        body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0}
        async with self.client.post(
            f"http://127.0.0.1:{self.router.port}/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY_A}"}
        ) as answer:
            return answer.status, await answer.json()

    async def cached(self, model: str, prompt: list[int]) -> int:
        status, answer = await self.ask(model, prompt)
        assert status == 200, answer
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def last(self) -> DecisionRecord:
        return self.router.plane.telemetry.waiting()[-1]

    def credited(self) -> int:
        sizes = self.router.plane.events.sizes()
        return sizes[self.replica.url, 0].credited if (self.replica.url, 0) in sizes else 0

    async def list_again(self) -> None:
        self.engine.facts_due_s = 0.0
        for view in self.router.plane.replicas.values():
            await load.check(self.router.plane, view)


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    adapters: dict[str, Path] = {}
    for seed, name in enumerate(NAMES[1:], 1):
        adapters[name] = tmp_path_factory.mktemp(name)
        tiny_adapter.write(adapters[name], Shape(), seed=seed)
    installation = Installation.default()
    try:
        installation.ensure()
        started = start(installation, ("lora",), adapters=adapters)
    except EngineUnavailableError as error:
        if required():
            pytest.fail(f"no engine: {error}", pytrace=False)
        pytest.skip(f"no engine: {error}")
    yield started[0]
    stop(started)


@pytest.fixture
async def course(replica: Replica, tmp_path: Path) -> AsyncIterator[Course]:
    config = Config(
        router_id="r", state_dir=tmp_path / "state", port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=0.2, record_sample=1.0
    )
    router = Router(config, rig.SECRETS)
    await router.start()
    async with aiohttp.ClientSession() as client:
        try:
            made = rig.tenant("acme", (rig.replica_entry(replica.url, "vllm"),), {KEY_A: ""})
            endpoints = tuple(
                rig.endpoint(
                    made.pools[0],
                    name,
                    adapter=None if name == MODEL_NAME else AdapterEntry(name=name, revision="1"),
                    explain_until=time.time() + 3600,
                )
                for name in NAMES
            )
            document = msgspec.structs.replace(made, endpoints=endpoints)
            router.snapshots.apply({document.tenant_id: rig.sealed(document)})
            course = Course(router, replica, client)
            await until(lambda: course.engine.facts.lists_all and router.plane.residency.of(replica.url).state != "history", SLOW_S)
            yield course
        finally:
            await router.stop()


async def test_adapters_and_base_share_an_engine_and_no_block(course: Course) -> None:
    prompt = [random.Random(5).randrange(1000, 100_000) for _ in range(WHOLE_TOKENS + 3)]
    assert course.engine.facts.adapters == {"ad1", "ad2"}
    assert set(course.engine.facts.served) == set(NAMES)
    before = course.credited()
    for number, name in enumerate(NAMES, 1):
        assert await course.cached(name, prompt) == 0
        assert course.last().matched_tokens == 0
        await until(lambda number=number: course.credited() == before + number * 10, SLOW_S)  # type: ignore[misc] # mypy and defaults
    for name in NAMES:
        assert await course.cached(name, prompt) == WHOLE_TOKENS
        assert (course.last().matched_tokens, course.last().candidates[0].evidence) == (WHOLE_TOKENS, "event")
    assert course.router.plane.events.counters["ignored_adapter"] == 0
    await until(lambda: course.engine.adapters.slots == 1, SLOW_S)
    assert list(course.engine.adapters.used) == ["ad2"]
    assert course.engine.adapters.price("ad1", time.monotonic()).slot == "full"


async def test_an_adapter_that_is_unloaded_is_no_failure_of_the_engine(course: Course) -> None:
    prompt = [random.Random(6).randrange(1000, 100_000) for _ in range(40)]
    assert (await course.ask("ad1", prompt))[0] == 200
    async with course.client.post(f"{course.replica.url}/v1/unload_lora_adapter", json={"lora_name": "ad1"}) as answer:
        assert answer.status == 200
    status, said = await course.ask("ad1", prompt)
    assert (status, said["error"]["code"]) == (503, "model_not_served")
    await course.list_again()
    status, said = await course.ask("ad1", prompt)
    assert (status, said["error"]["code"], course.last().attempts) == (503, "model_not_served", ())
    assert course.engine.breaker.state(time.monotonic()) == "closed"
    assert (await course.ask("ad2", prompt))[0] == 200
