"""An engine of several data-parallel ranks behind one URL: who serves what, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from routing.dataplane.feeds import kv_sources
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import RunningReplica, fleet_configs, running_fleet
from routing.simulator.ranks import RANK_HEADER, Ranks
from routing.simulator.replica import Replica

FAST = EngineConfig(time=TimeModel(speed=1000.0))
PROMPT = "salt caravans crossed the desert by night and the wells were far apart " * 8


@pytest.fixture
async def engine() -> AsyncIterator[RunningReplica]:
    async with running_fleet(ReplicaConfig(engine=FAST, data_parallel=3)) as fleet:
        yield fleet[0]


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def complete(client: aiohttp.ClientSession, engine: RunningReplica, rank: str | None = None, prompt: str = PROMPT) -> tuple[int, Any]:
    body = {"model": "sim-8b", "prompt": prompt, "max_tokens": 2}
    headers = {} if rank is None else {RANK_HEADER: rank}
    async with client.post(f"{engine.url}/v1/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def cached(answer: Any) -> int:
    tokens: int = (answer["usage"]["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"]
    return tokens


async def test_each_rank_has_a_cache_of_its_own(client: aiohttp.ClientSession, engine: RunningReplica) -> None:
    """What one rank has read is a hit there, and nothing to another."""
    assert cached((await complete(client, engine, "1"))[1]) == 0
    assert cached((await complete(client, engine, "2"))[1]) == 0
    assert cached((await complete(client, engine, "1"))[1]) > 0


async def test_a_rank_that_is_not_there_is_refused_and_what_is_no_number_is_passed_over(
    client: aiohttp.ClientSession, engine: RunningReplica
) -> None:
    """As vLLM's sources have it: the range is checked from 0 on, a word is as good as nothing."""
    for rank in ("3", "-1"):
        status, answer = await complete(client, engine, rank)
        assert status == 400
        assert answer["error"]["message"] == f"data_parallel_rank {rank} is out of range [0, 3)."
    for rank in ("", "one", "0", "2"):
        assert (await complete(client, engine, rank))[0] == 200


async def test_metrics_have_a_row_for_each_rank_and_one_process(client: aiohttp.ClientSession, engine: RunningReplica) -> None:
    """Rows are told apart by ``engine``; each family is described once."""
    await complete(client, engine, "1")
    async with client.get(f"{engine.url}/metrics") as answer:
        page = await answer.text()
    rows = dict(re.findall(r'^vllm:request_success_total\{engine="(\d+)",finished_reason="length",[^}]*\} ([0-9.]+)$', page, re.MULTILINE))
    assert rows == {"0": "0.0", "1": "1.0", "2": "0.0"}
    assert sorted(re.findall(r'^vllm:cache_config_info\{[^}]*?engine="(\d+)"', page, re.MULTILINE)) == ["0", "1", "2"]
    assert re.findall(r'^vllm:num_requests_running\{engine="(\d+)"', page, re.MULTILINE) == ["1"]  # gauges come with the first request, as vLLM's do
    assert page.count("# TYPE vllm:num_requests_running ") == 1
    assert len(re.findall(r"^process_start_time_seconds ", page, re.MULTILINE)) == 1


async def test_each_rank_publishes_events_of_its_own(client: aiohttp.ClientSession, engine: RunningReplica) -> None:
    """The engine's list names each rank's port, as the router reads it."""
    async with client.get(f"{engine.url}/kv_event_sources") as answer:
        sources = kv_sources.read(await answer.read())
    assert [(one.rank, one.port, one.replay_port) for one in sources] == [(rank, *replica.kv_ports) for rank, replica in enumerate(engine.ranks)]
    await complete(client, engine, "2")
    assert [len(one.publisher._buffer) > 0 for one in engine.ranks] == [False, False, True]


def test_ranks_of_fixed_ports_follow_one_another() -> None:
    """Replicas of several ranks take as many event ports as they have ranks."""
    first, second = fleet_configs(ReplicaConfig(http_port=9001, kv_port=9101, replay_port=9301, data_parallel=2), 2)
    ports = [
        [(one.config.data_parallel_rank, one.config.kv_port, one.config.replay_port) for one in RunningReplica(each, _tokenizer()).ranks]
        for each in (first, second)
    ]
    assert ports == [[(0, 9101, 9301), (1, 9102, 9302)], [(0, 9103, 9303), (1, 9104, 9304)]]


def _tokenizer() -> Any:
    return Replica(ReplicaConfig()).tokenizer


def test_unnamed_requests_go_where_the_least_waits_by_loads_that_are_a_while_old() -> None:
    """Between two looks only what was sent counts, so requests turn through the ranks; after a look at idle ranks the first is first again."""
    ranks = Ranks([Replica(ReplicaConfig(balance_s=0.1)) for _ in range(3)])
    assert [ranks.replicas.index(ranks.of({}, now_s)) for now_s in (0.0, 0.01, 0.02, 0.03)] == [0, 1, 2, 0]
    assert ranks.replicas.index(ranks.of({}, 0.5)) == 0
    turns = Ranks([Replica(ReplicaConfig(balance_s=None)) for _ in range(3)])
    assert [turns.replicas.index(turns.of({}, now_s)) for now_s in (0.0, 1.0, 2.0, 3.0)] == [0, 1, 2, 0]


@pytest.mark.parametrize("ranks", [0, 65])
def test_a_number_of_ranks_that_cannot_be_is_refused(ranks: int) -> None:
    """One at least, and no more than are read."""
    with pytest.raises(ValueError, match="data_parallel must be from 1 to 64"):
        ReplicaConfig(data_parallel=ranks)
    assert ReplicaConfig(data_parallel=64).data_parallel == 64
