"""Prompts handed from replica to replica over real sockets: the wire as recorded from vLLM 0.32 with NixlConnector, leases, and every failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from routing.core import transfer
from routing.simulator.config import TransferConfig
from routing.simulator.fleet import running_fleet
from tests.routing.simulator.wire import RECORDED, Wire, eventually, shape

DOCUMENT = "Disaggregated prefill document, long enough to fill blocks of thirty-two tokens on the prefill node. " * 8
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
QUICK = TransferConfig(lease_s=30.0, unreachable_s=0.05, setup_s=0.0, tokens_per_s=1e6)
RECORDING = json.loads((Path(__file__).parents[2] / "vectors" / "vllm-0.32" / "transfers.json").read_text())


@dataclass
class Both:
    p: Wire
    d: Wire

    async def prefill(self, text: str = DOCUMENT, **more: Any) -> dict[str, Any]:
        return await self.p.chat(text, **{"max_tokens": 1, "temperature": 0, "kv_transfer_params": ASK, **more})

    async def decode(self, handed: Any, text: str = DOCUMENT, **more: Any) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, "kv_transfer_params": handed, **more}
        return await self.d.post("/v1/chat/completions", body)

    def held(self) -> int:
        transfers = self.p.running.replica.transfers
        assert transfers is not None
        assert (transfers.held > 0) == (self.p.running.replica.engine.pool.used_blocks > 0)
        return transfers.held


@asynccontextmanager
async def both(config: TransferConfig = QUICK) -> AsyncIterator[Both]:
    wanted = replace(RECORDED, transfers=config)
    async with running_fleet(wanted, replicas=2) as fleet, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield Both(Wire(fleet[0], session), Wire(fleet[1], session))


def _answer(name: str) -> dict[str, Any]:
    body: dict[str, Any] = next(one for one in RECORDING if one["name"] == name)["response"]
    return body


async def test_the_answers_have_the_recorded_shape_and_a_router_believes_them() -> None:
    async with both() as fleet:
        first = await fleet.prefill()
        assert shape(first["kv_transfer_params"]) == shape(_answer("1 first P")["kv_transfer_params"])
        assert list(first) == list(_answer("1 first P"))
        transfer.believe(first["kv_transfer_params"], hosts=["127.0.0.1"], request_id=first["id"])
        status, second = await fleet.decode(first["kv_transfer_params"])
        assert (status, second["kv_transfer_params"]) == (200, None)
        assert shape(second["usage"]) == shape(_answer("1 first D")["usage"])


async def test_what_is_said_is_what_one_replica_alone_would_say() -> None:
    async with both() as fleet:
        handed = (await fleet.prefill())["kv_transfer_params"]
        _, far = await fleet.decode(handed)
        _, alone = await fleet.decode(None)
    assert far["choices"] == alone["choices"]


async def test_blocks_are_held_until_they_were_fetched_and_both_sides_keep_them_cached() -> None:
    """The fetched prompt is a local hit of the decode replica from then on; its events say so under its own salt."""
    async with both() as fleet:
        first = await fleet.prefill(cache_salt="a")
        assert fleet.held() == 1
        await fleet.decode(first["kv_transfer_params"], cache_salt="a")
        await eventually(lambda: fleet.held() == 0)
        assert fleet.d.running.replica.engine.pool.cached_digests >= fleet.p.running.replica.engine.pool.cached_digests
        _, again = await fleet.decode(None, cache_salt="a")
        _, other = await fleet.decode(None, cache_salt="b")
        tokens = again["usage"]["prompt_tokens"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (tokens - 1) // 32 * 32
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        _, page = await fleet.d.get("/metrics")
        assert 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} ' + f"{float(tokens)}" in page


async def test_the_decode_replica_reports_the_prefill_replicas_hits() -> None:
    async with both() as fleet:
        for expected_hit in (False, True):
            first = await fleet.prefill()
            _, second = await fleet.decode(first["kv_transfer_params"])
            cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, second)]
            assert cached[0] == cached[1] == first["kv_transfer_params"]["remote_prefill_cached_tokens"]
            assert (cached[0] > 0) is expected_hit


async def test_an_orphan_is_freed_by_the_end_of_its_lease_alone_and_counted() -> None:
    async with both(replace(QUICK, lease_s=0.05)) as fleet:
        handed = (await fleet.prefill())["kv_transfer_params"]
        await eventually(lambda: fleet.held() == 0)
        _, page = await fleet.p.get("/metrics")
        assert 'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="tiny"} 1.0' in page
        status, _ = await fleet.decode(handed)  # too late
        assert status == 500


@pytest.mark.parametrize(
    "changes",
    [{"remote_engine_id": "another"}, {"remote_request_id": "another"}, {"remote_port": 1}, {"remote_port": None}, {"remote_host": "127.0.0.1\0"}],
)
async def test_a_decode_replica_refuses_what_the_other_side_does_not_know(changes: dict[str, Any]) -> None:
    async with both() as fleet:
        handed = (await fleet.prefill())["kv_transfer_params"]
        status, body = await fleet.decode({**handed, **changes})
        assert (status, body["error"]["type"], fleet.held()) == (500, "InternalServerError", 1)
        assert (await fleet.decode(handed))[0] == 200


async def test_a_dead_prefill_replica_shows_as_a_500_after_a_while_and_plain_requests_go_on() -> None:
    async with both() as fleet:
        handed = (await fleet.prefill())["kv_transfer_params"]
        await fleet.p.running.stop()
        status, body = await fleet.decode(handed)
        assert (status, body["error"]["message"]) == (500, "Internal server error")
        assert (await fleet.decode(None))[0] == 200


async def test_a_request_that_the_decode_replica_refuses_gives_the_blocks_back() -> None:
    async with both() as fleet:
        handed = (await fleet.prefill())["kv_transfer_params"]
        assert fleet.held() == 1
        status, _ = await fleet.decode(handed, temperature=-1)
        assert status == 400
        await eventually(lambda: fleet.held() == 0)


async def test_a_client_that_leaves_while_blocks_are_fetched_leaves_them_to_the_lease() -> None:
    async with both(replace(QUICK, setup_s=60.0)) as fleet:
        handed = (await fleet.prefill())["kv_transfer_params"]
        asking = asyncio.create_task(fleet.decode(handed))
        await eventually(lambda: fleet.d.running.replica.inflight == 1)
        asking.cancel()
        await eventually(lambda: fleet.d.running.replica.inflight == 0)
        assert fleet.held() == 1


async def test_a_stream_hands_nothing_over_and_holds_nothing() -> None:
    async with both() as fleet:
        body = {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 1, "stream": True, "kv_transfer_params": ASK}
        assert (await fleet.p.post("/v1/chat/completions", body))[0] == 200
        await eventually(lambda: fleet.held() == 0)


async def test_a_replica_without_a_connector_hands_nothing_over() -> None:
    async with running_fleet(RECORDED) as fleet, aiohttp.ClientSession() as session:
        assert (await Wire(fleet[0], session).chat(DOCUMENT, kv_transfer_params=ASK))["kv_transfer_params"] is None
