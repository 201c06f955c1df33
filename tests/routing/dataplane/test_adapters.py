"""Two adapters of one model on simulated engines: where they go, who is not asked, and that they share load and never blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from routing.core.adapters import AdapterSlots
from routing.core.record import DecisionRecord
from routing.core.snapshot import AdapterEntry, TenantSnapshot
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.dataplane.feeds import load
from routing.simulator.config import Adapter, EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, RunningReplica, running_fleet
from tests.bench.traffic import text
from tests.fakes import rig
from tests.fakes.rig import KEY_A, KEY_B, until

BLOCK = 16
ENGINE = EngineConfig(blocks=4000, block_size_tokens=BLOCK, adapter_slots=1, time=TimeModel(speed=100))
ADAPTERS = (Adapter("ada", "/ada", 1), Adapter("bob", "/bob", 2))
SIMULATED = ReplicaConfig(engine=ENGINE, model="m-7b", adapters=ADAPTERS, runtime_adapters=True)
KEYS = {"acme": KEY_A, "globex": KEY_B}
PROMPT = text("adapters", 20 * BLOCK + 3)


@dataclass
class Bench:
    """A router, two engines, and the tenants acme and globex with endpoints m-7b, ada and bob."""

    router: Router
    fleet: Fleet
    client: aiohttp.ClientSession
    documents: dict[str, TenantSnapshot] = field(default_factory=dict)

    async def ask(self, model: str, prompt: list[int] = PROMPT, *, tenant: str = "acme", **more: Any) -> tuple[int, Any]:
        body = {"model": model, "prompt": prompt, "max_tokens": 2, **more}
        async with self.client.post(
            f"http://127.0.0.1:{self.router.port}/v1/completions", json=body, headers={"Authorization": f"Bearer {KEYS[tenant]}"}
        ) as answer:
            raw = await answer.read()
            return answer.status, msgspec.json.decode(raw) if answer.content_type == "application/json" else raw

    async def cached(self, model: str, prompt: list[int] = PROMPT, *, tenant: str = "acme") -> int:
        status, answer = await self.ask(model, prompt, tenant=tenant)
        assert status == 200, answer
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    def last(self) -> DecisionRecord:
        return self.router.plane.telemetry.waiting()[-1]

    def sent(self, number: int) -> list[Any]:
        """Bodies of the completions that an engine received."""
        return [msgspec.json.decode(one.body) for one in self.fleet[number].replica.requests if one.path == "/v1/completions"]

    async def scrape(self) -> None:
        """Read all engines' pages and lists anew."""
        for view in self.router.plane.replicas.values():
            self.router.plane.engine(view.url).facts_due_s = 0.0
            await load.check(self.router.plane, view)

    def slots(self, number: int) -> set[str]:
        return set(self.router.plane.engine(self.fleet[number].url).adapters.used)

    async def lora(self, number: int, act: str, name: str) -> None:
        body = {"lora_name": name, "lora_path": f"/{name}"}
        async with self.client.post(f"{self.fleet[number].url}/v1/{act}_lora_adapter", json=body) as answer:
            assert answer.status == 200


def _document(slug: str, engines: list[RunningReplica]) -> TenantSnapshot:
    replicas = tuple(rig.replica_entry(one.url, f"r{number}") for number, one in enumerate(engines))
    made = rig.tenant(slug, replicas, {KEYS[slug]: ""})
    pool = made.pools[0]
    adapters = tuple(rig.endpoint(pool, name, adapter=AdapterEntry(name=name, revision="1")) for name in ("ada", "bob"))
    explained = tuple(msgspec.structs.replace(one, explain_until=time.time() + 3600) for one in (*made.endpoints, *adapters))
    return msgspec.structs.replace(made, endpoints=explained)


@asynccontextmanager
async def running(state: Path, *, engines: int = 2, scrape_s: float = 3600.0, simulated: ReplicaConfig = SIMULATED) -> AsyncIterator[Bench]:
    config = Config(router_id="r", state_dir=state, port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=scrape_s, record_sample=1.0)
    async with running_fleet(simulated, replicas=engines) as fleet, aiohttp.ClientSession() as client:
        router = Router(config, rig.SECRETS)
        await router.start()
        try:
            documents = {slug: _document(slug, fleet.replicas) for slug in ("acme", "globex")}
            router.snapshots.apply({one.tenant_id: rig.sealed(one) for one in documents.values()})
            bench = Bench(router, fleet, client, documents)
            await bench.scrape()
            yield bench
        finally:
            await router.stop()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path / "state") as made:
        yield made


def _other(name: str | None) -> str:
    return {"r0": "r1", "r1": "r0"}[str(name)]


async def test_each_adapter_stays_where_it_is_loaded(bench: Bench) -> None:
    """Prompts that share nothing, so that residency speaks for nobody."""
    homes: dict[str, set[str | None]] = {"ada": set(), "bob": set()}
    for turn in range(6):
        for name, home in homes.items():
            await bench.ask(name, text((name, turn), 64))
            home.add(bench.last().replica_name)
    assert all(len(home) == 1 for home in homes.values())
    assert homes["ada"] != homes["bob"]  # one slot each: to put the second beside the first would displace it
    assert [one.replica.engine.adapters.loads for one in bench.fleet.replicas] == [1, 1]
    terms: dict[str, float] = {}
    for turn in range(200):  # until the load, which is expected to take longer on a busy machine, counts as over
        await bench.ask("bob", text(("later", turn), 64))
        terms = {one.replica_name: one.terms["adapter"] for one in bench.last().candidates}
        if terms[str(bench.last().replica_name)] == 0:
            break
    assert terms[str(bench.last().replica_name)] == 0
    assert terms[_other(bench.last().replica_name)] > 0


async def test_the_base_model_pays_nothing(bench: Bench) -> None:
    await bench.ask("m-7b")
    assert {one.terms["adapter"] for one in bench.last().candidates} == {0.0}
    assert bench.slots(0) | bench.slots(1) == set()


async def test_slots_and_loads_are_told_to_operators(bench: Bench) -> None:
    """Of engines that never had to do with an adapter there are no rows."""
    registry = bench.router.plane.metrics.registry

    def value(name: str, number: int) -> float | None:
        return registry.get_sample_value(f"saltroute_replica_{name}", {"replica": bench.fleet[number].url})

    for engine in bench.router.plane.engines.values():
        engine.adapters.samples.extend([10.0] * 16)  # so long it takes, hence the second request meets the load of the first
    await bench.ask("m-7b")
    assert [value("adapters", number) for number in range(2)] == [0, 0]  # the engines said how many slots they have
    for number in range(2):
        bench.fleet[number].replica.pause()
    calls = [asyncio.create_task(bench.ask("ada", text("first", 64)))]
    await until(lambda: sum(engine.in_flight for engine in bench.router.plane.engines.values()) == 1)
    home = next(number for number in range(2) if value("adapter_loads_total", number))
    bench.router.plane.engine(bench.fleet[1 - home].url).misses = 9
    calls.append(asyncio.create_task(bench.ask("ada", text("second", 64))))
    await until(lambda: bench.router.plane.engine(bench.fleet[home].url).in_flight == 2)
    told = ("adapters", "adapters_loading", "adapter_slots", "adapter_loads_total", "adapter_waits_total", "adapters_displaced_total")
    assert [value(name, home) for name in told] == [1, 1, 1, 1, 1, 0]
    assert value("adapter_load_seconds", home) == 10.0
    for number in range(2):
        bench.fleet[number].replica.resume()
    await asyncio.gather(*calls)
    assert [value(name, home) for name in told] == [1, 0, 1, 1, 1, 0]
    for engine in bench.router.plane.engines.values():
        engine.adapters = AdapterSlots()
    assert [value(name, number) for name in told for number in range(2)] == [None] * 12


async def test_a_long_queue_there_makes_loading_elsewhere_cheaper(bench: Bench) -> None:
    await bench.ask("ada", text("first", 64))
    home = bench.last().replica_name
    await bench.ask("ada", text("second", 64))
    assert bench.last().replica_name == home
    engine = next(bench.router.plane.engine(one.url) for one in bench.router.plane.replicas.values() if one.entry.name == home)
    entry = engine.ledger.add(50_000, until_s=time.monotonic() + 3600)
    await bench.ask("ada", text("third", 64))
    assert bench.last().replica_name == _other(home)
    engine.ledger.release(entry)


async def test_first_uses_teach_what_loading_takes(tmp_path: Path) -> None:
    """One slot and two adapters in turn, so each request loads for 0.6 s. The estimate rises to that, and the engine's speed learns nothing."""
    time_model = TimeModel(speed=100, adapter_load_s=60.0)
    simulated = ReplicaConfig(
        engine=EngineConfig(blocks=4000, block_size_tokens=BLOCK, adapter_slots=1, time=time_model), model="m-7b", adapters=ADAPTERS
    )
    async with running(tmp_path / "state", engines=1, simulated=simulated) as bench:
        adapters = bench.router.plane.engine(bench.fleet[0].url).adapters
        prior_s = adapters.load_s
        for turn in range(6):
            for name in ("ada", "bob"):
                await bench.ask(name, text((name, turn), 64), stream=True, stream_options={"include_usage": True})
                await until(lambda: bench.router.plane.in_flight == 0)
        assert len(adapters.samples) == 12
        assert prior_s < adapters.load_s
        assert not bench.router.plane.engine(bench.fleet[0].url).calibration.log_errors


async def test_an_adapter_that_was_unloaded_is_served_by_the_other_replica(bench: Bench) -> None:
    await bench.ask("ada", text("first", 64))
    home = int(str(bench.last().replica_name)[1:])
    await bench.lora(home, "unload", "ada")
    status, _ = await bench.ask("ada", text("second", 64))
    record = bench.last()
    assert status == 200
    assert [attempt.error for attempt in record.attempts] == ["model_not_served", None]
    assert record.replica_name == f"r{1 - home}"
    assert bench.router.plane.engine(bench.fleet[home].url).breaker.state(time.monotonic()) == "closed"
    assert "ada" not in bench.slots(home)
    await bench.scrape()
    before = len(bench.sent(home))
    status, _ = await bench.ask("ada", text("third", 64))
    refused = {one.replica_name: one.refusal for one in bench.last().candidates}
    assert (status, len(bench.sent(home))) == (200, before)
    assert refused == {f"r{home}": "model_not_served", f"r{1 - home}": None}
    await bench.lora(home, "load", "ada")
    await bench.scrape()
    await bench.ask("ada", text("fourth", 64))
    assert {one.refusal for one in bench.last().candidates} == {None}


async def test_nobody_serves_it(bench: Bench) -> None:
    for number in range(2):
        await bench.lora(number, "unload", "ada")
    status, answer = await bench.ask("ada")  # two engines say so
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (503, "model_not_served", "server_error")
    await bench.scrape()
    status, answer = await bench.ask("ada")  # nobody is asked
    assert (status, answer["error"]["code"]) == (503, "model_not_served")
    assert bench.last().attempts == ()
    assert {one.refusal for one in bench.last().candidates} == {"model_not_served"}
    assert (await bench.ask("bob"))[0] == 200
    due_s = min(engine.facts_due_s for engine in bench.router.plane.engines.values())
    assert due_s <= time.monotonic() + 5.0


async def test_a_list_that_is_old_or_missing_speaks_against_nobody(bench: Bench) -> None:
    for number in range(2):
        await bench.lora(number, "unload", "ada")
    await bench.scrape()
    assert (await bench.ask("ada"))[0] == 503
    for number in range(2):
        await bench.lora(number, "load", "ada")
    for engine in bench.router.plane.engines.values():
        engine.facts.listed_s -= 181.0
    assert (await bench.ask("ada"))[0] == 200


async def test_two_adapters_and_the_base_share_an_engine_and_no_block(tmp_path: Path) -> None:
    async with running(tmp_path / "state", engines=1, scrape_s=0.05) as bench:
        url = bench.fleet[0].url
        await until(lambda: bench.router.plane.residency.of(url).state == "exact")
        whole = 20 * BLOCK
        for number, (tenant, name) in enumerate([("acme", "m-7b"), ("acme", "ada"), ("acme", "bob"), ("globex", "ada")], 1):
            assert await bench.cached(name, tenant=tenant) == 0
            if tenant == "acme":
                assert bench.last().matched_tokens == 0
            await until(lambda number=number: bench.router.plane.events.sizes()[url, 0].credited >= number * 20)  # type: ignore[misc] # mypy and defaults
        for tenant, name in [("acme", "m-7b"), ("acme", "ada"), ("acme", "bob"), ("globex", "ada")]:
            assert await bench.cached(name, tenant=tenant) == whole
            assert bench.last().matched_tokens == whole
            assert bench.last().candidates[0].evidence == "event"
        salts = {body["cache_salt"] for body in bench.sent(0)}
        assert len(salts) == 4
        assert bench.router.plane.events.counters["ignored_adapter"] == 0
        assert set(bench.router.plane.engines) == {url}  # one engine: one load, one rate


async def test_an_adapter_named_like_a_salt_shares_nothing(tmp_path: Path) -> None:
    """An engine that lists an adapter under the name of another namespace's salt: its blocks are credited to its own namespace alone."""
    async with running(tmp_path / "state", engines=1, scrape_s=0.05) as bench:
        url = bench.fleet[0].url
        await until(lambda: bench.router.plane.residency.of(url).state == "exact")
        assert await bench.cached("m-7b") == 0
        salt = bench.sent(0)[0]["cache_salt"]
        await bench.lora(0, "load", salt)
        document = bench.documents["globex"]
        named = msgspec.structs.replace(document.endpoints[1], served_model=salt, adapter=AdapterEntry(name=salt, revision="1"))
        changed = rig.bumped(document, endpoints=(document.endpoints[0], named, document.endpoints[2]))
        bench.router.snapshots.apply({changed.tenant_id: rig.sealed(changed)})
        await bench.scrape()
        await until(lambda: bench.router.plane.events.sizes()[url, 0].credited == 20)
        assert await bench.cached("ada", tenant="globex") == 0
        await until(lambda: bench.router.plane.events.sizes()[url, 0].credited == 40)
        assert await bench.cached("ada", tenant="globex") == 20 * BLOCK
        assert await bench.cached("m-7b") == 20 * BLOCK
        assert await bench.cached("m-7b", tenant="globex") == 0


async def test_load_is_the_engines_whatever_the_adapter(bench: Bench) -> None:
    for number in range(2):
        bench.fleet[number].replica.pause()
    calls = [asyncio.create_task(bench.ask(name, text((name, turn), 64))) for turn in range(3) for name in ("ada", "bob", "m-7b")]
    await until(lambda: bench.router.plane.in_flight == 9)
    await until(lambda: sum(engine.in_flight for engine in bench.router.plane.engines.values()) == 9)
    for number in range(2):
        bench.fleet[number].replica.resume()
    assert {status for status, _ in await asyncio.gather(*calls)} == {200}
