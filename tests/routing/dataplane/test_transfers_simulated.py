"""A router before simulated replicas that hand prompts over and publish their events: conversations, leases, a prefill replica that dies."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from routing.core.record import DecisionRecord
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel, TransferConfig
from routing.simulator.fleet import RunningReplica, running_fleet
from tests.bench.traffic import text
from tests.fakes import rig
from tests.fakes.rig import KEY_A, until

BLOCK = 16
ENGINE = EngineConfig(blocks=4000, block_size_tokens=BLOCK, max_model_len_tokens=16_000, time=TimeModel(speed=100))
SIMULATED = ReplicaConfig(engine=ENGINE, model="m-7b", transfers=TransferConfig(unreachable_s=0.05, lease_s=0.2, setup_s=0.0, tokens_per_s=1e6))


@dataclass
class Split:
    """A router, a prefill replica, a decode replica."""

    router: Router
    p: RunningReplica
    d: RunningReplica
    client: aiohttp.ClientSession

    async def ask(self, prompt: list[int], **more: Any) -> dict[str, Any]:
        """An answer. What was learned of speeds is set back, so that the pair stays the better way."""
        for url, engine in self.router.plane.engines.items():
            engine.calibration.own_rate = 8000.0 if url == self.p.url else 800.0
            engine.calibration.rate_at_s = time.monotonic()
            engine.calibration.rates.clear()
        body = {"model": "m-7b", "prompt": prompt, "max_tokens": 8, "return_token_ids": True, "ignore_eos": True, **more}
        url = f"http://127.0.0.1:{self.router.port}/v1/completions"
        async with self.client.post(url, json=body, headers={"Authorization": f"Bearer {KEY_A}"}) as answer:
            assert answer.status == 200
            said: dict[str, Any] = await answer.json()
            return said

    def record(self) -> DecisionRecord:
        return self.router.plane.telemetry.waiting()[-1]

    def result(self) -> str | None:
        transfer = self.record().transfer
        return None if transfer is None else transfer.result

    def blocks(self, replica: RunningReplica) -> int:
        sizes = self.router.plane.events.sizes()
        return sizes[replica.url, 0].credited if (replica.url, 0) in sizes else 0


@asynccontextmanager
async def running(state: Path) -> AsyncIterator[Split]:
    config = Config(router_id="r", state_dir=state, port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=0.05, breaker_open_s=0.05)
    async with running_fleet(SIMULATED, replicas=2) as fleet, aiohttp.ClientSession() as client:
        router = Router(config, rig.SECRETS)
        await router.start()
        try:
            entries = (rig.replica_entry(fleet[0].url, "P", role="prefill"), rig.replica_entry(fleet[1].url, "D", role="decode"))
            document = rig.tenant("acme", entries, {KEY_A: ""})
            explained = tuple(msgspec.structs.replace(one, explain_until=time.time() + 3600) for one in document.endpoints)
            router.snapshots.apply({document.tenant_id: rig.sealed(msgspec.structs.replace(document, endpoints=explained))})
            split = Split(router, fleet[0], fleet[1], client)
            await until(lambda: all(router.plane.residency.of(one.url).state == "exact" for one in (split.p, split.d)))
            yield split
        finally:
            await router.stop()


@pytest.fixture
async def split(tmp_path: Path) -> AsyncIterator[Split]:
    async with running(tmp_path / "state") as made:
        yield made


async def test_a_conversation_is_exact_on_both_sides(split: Split) -> None:
    """Each turn is computed where its beginning was, moved past what the decoder holds, and says what one replica alone would say."""
    said, computed = text("opening", 1500), 0
    async with running_fleet(replace(SIMULATED, transfers=None)) as alone:
        for turn in range(3):
            answer = await split.ask(said)
            record, transfer = split.record(), split.record().transfer
            assert transfer is not None
            assert transfer.result == "ok"
            body = {"prompt": said, "max_tokens": 8, "return_token_ids": True, "ignore_eos": True}
            async with split.client.post(f"{alone[0].url}/v1/completions", json=body) as plain:
                expected = await plain.json()
            assert answer["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
            assert record.matched_tokens == record.cached_tokens == transfer.cached_tokens == computed // BLOCK * BLOCK
            assert transfer.moved_tokens >= len(said) - computed - 8
            assert (transfer.moved_tokens < len(said)) is (turn > 0)
            blocks = len(said) // BLOCK
            await until(lambda least=blocks: min(split.blocks(split.p), split.blocks(split.d)) >= least)  # type: ignore[misc]  # mypy cannot type a lambda's default
            computed = len(said)
            said = [*said, *answer["choices"][0]["token_ids"], *text(("turn", turn), 700)]
    reports = [split.router.plane.trust.report((one.url, 0), 0.0) for one in (split.p, split.d)]
    assert (reports[0].answers >= 2, reports[0].share_exact, reports[1].answers) == (True, 1.0, 0)
    await until(lambda: split.p.replica.engine.pool.used_blocks == 0)  # fetched, hence released


async def test_a_prefill_replica_that_dies_costs_a_try_and_is_used_again_when_it_is_back(split: Split) -> None:
    await split.ask(text("first", 1500))
    assert split.result() == "ok"
    await split.p.stop()
    await split.ask(text("second", 1500))
    assert split.result() in (None, "prefill_failed")  # None: its health was asked first
    await split.p.start()
    plane = split.router.plane
    engine = plane.engines[split.p.url]

    def usable() -> bool:
        now_s = time.monotonic()
        return engine.reachable() and engine.breaker.allows(now_s) and plane.links.way(split.p.url, split.d.url, now_s) is not None

    seen: list[str | None] = []
    for number in range(20):
        await until(usable)  # a health check that began while it was away may still come in
        await split.ask(text(("again", number), 1500))
        seen.append(split.result())
        if seen[-1] == "ok":
            return
    pytest.fail(f"never used again: {seen}")


async def test_blocks_that_nobody_comes_for_go_with_their_lease(split: Split) -> None:
    """The decode replica is away: the answer is an error, and the prefill replica holds the prompt until its lease ends."""
    await split.d.stop()
    engine = split.router.plane.engines[split.d.url]
    engine.misses, engine.health = -1000, "ok"  # no health check has noticed yet
    body = {"model": "m-7b", "prompt": text("lost", 1500), "max_tokens": 2}
    for url, one in split.router.plane.engines.items():
        one.calibration.own_rate = 8000.0 if url == split.p.url else 800.0
        one.calibration.rate_at_s = time.monotonic()
    url = f"http://127.0.0.1:{split.router.port}/v1/completions"
    async with split.client.post(url, json=body, headers={"Authorization": f"Bearer {KEY_A}"}) as answer:
        assert answer.status == 503
    transfer = split.record().transfer
    assert transfer is not None
    assert (transfer.result, transfer.orphaned) == ("decode_failed", True)
    transfers = split.p.replica.transfers
    assert transfers is not None
    await until(lambda: transfers.held == 0)
    assert b"vllm:nixl_num_kv_expired_reqs_total" in split.p.replica.metrics.render()
    assert split.p.replica.engine.pool.used_blocks == 0
