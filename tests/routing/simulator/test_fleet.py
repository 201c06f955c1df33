"""Several replicas in one process: apart in everything; what a client sees when one dies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp

from routing.simulator.config import ReplicaConfig
from routing.simulator.fleet import fleet_configs, running_fleet
from tests.routing.simulator.wire import RECORDED, SLOW_DECODE, Wire, eventually, sse

DOCUMENT = "The refund policy says that customers may return goods within thirty days of purchase. " * 8


async def test_replicas_share_nothing() -> None:
    """Own ports, own cache, own recorded requests."""
    async with running_fleet(RECORDED, replicas=3) as fleet, aiohttp.ClientSession() as session:
        wires = [Wire(running, session) for running in fleet.replicas]
        hits = [(await wires[number].chat(DOCUMENT))["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for number in (0, 1, 0, 2)]
        addresses = [(running.url, running.kv_endpoint, running.replay_endpoint) for running in fleet.replicas]
        counts = [len(running.replica.requests) for running in fleet.replicas]
    assert hits == [False, False, True, False]
    assert len({part for address in addresses for part in address}) == 9
    assert counts == [2, 1, 1]


async def test_stop_ends_streams_with_the_engines_error() -> None:
    """HTTP 200, an error event, [DONE], then nobody listens; others go on."""
    async with running_fleet(SLOW_DECODE, replicas=2) as fleet, aiohttp.ClientSession() as session:
        first, second = (Wire(running, session) for running in fleet.replicas)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3000, "ignore_eos": True, "stream": True}
        task = asyncio.create_task(first.post("/v1/chat/completions", body))
        await eventually(lambda: first.running.replica.engine.has_work)
        await first.running.stop()
        await first.running.stop()
        status, text = await task
        refused = await asyncio.gather(first.get("/health"), return_exceptions=True)
        assert (await second.get("/health"))[0] == 200
    events = sse(text)
    assert status == 200
    assert events[-2]["error"]["type"] == "InternalServerError"
    assert events[-1] == "[DONE]"
    assert isinstance(refused[0], aiohttp.ClientConnectionError)


def test_ports_are_consecutive() -> None:
    """From the first on; 0 and None stay what they are."""
    base = ReplicaConfig(http_port=9001, kv_port=9101, replay_port=None)
    configs = fleet_configs(base, 3)
    assert [(config.http_port, config.kv_port, config.replay_port) for config in configs] == [
        (9001, 9101, None),
        (9002, 9102, None),
        (9003, 9103, None),
    ]
    assert [config.http_port for config in fleet_configs(replace(base, http_port=0), 2)] == [0, 0]
