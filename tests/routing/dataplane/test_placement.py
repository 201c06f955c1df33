"""Where prompts go: to the replica that holds their beginning, unless it is too busy; with every dispatch counted from the moment it is made."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import msgspec
import pytest

from routing.core.snapshot import AdapterEntry
from routing.dataplane.feeds import load
from tests.fakes.replica import Script, completion, usage
from tests.fakes.rig import Rig, bumped, endpoint, until
from tests.routing.dataplane.conftest import MakeRig


def _chat(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"model": "m-7b", "messages": [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]}


async def test_a_conversation_stays_with_the_replica_that_holds_it(rig: Rig) -> None:
    conversations = [[f"conversation {number} " * 60] for number in range(8)]
    homes: list[set[str | None]] = [set() for _ in conversations]
    for _turn in range(5):
        for place, texts in enumerate(conversations):
            await rig.chat(_chat(*texts))
            homes[place].add(rig.records()[-1].replica_name)
            texts.extend([f"answer {place}", f"next question {place} " * 20])
    assert all(len(home) == 1 for home in homes)
    assert {name for home in homes for name in home} == {"A", "B"}
    last = rig.records()[-1]
    assert last.matched_tokens > 0
    assert last.expected_cached_tokens > 0


async def test_token_ids_count_exactly(rig: Rig) -> None:
    ids = list(range(1, 41))
    await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": ids[:32], "max_tokens": 1})
    await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": ids, "max_tokens": 1})
    first, second = rig.records()
    assert (first.estimated_prompt_tokens, second.estimated_prompt_tokens) == (32, 40)
    assert second.matched_tokens == 32
    assert second.replica_id == first.replica_id


async def test_text_in_the_middle_is_no_prefix(rig: Rig) -> None:
    x, y = "x" * 512, "y" * 512
    await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": x})
    await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": y + x})
    assert rig.records()[-1].matched_tokens == 0


async def test_an_adapters_prompts_are_not_credited_with_the_base_models_blocks(rig: Rig) -> None:
    adapter = endpoint(rig.acme.pools[0], "ada", adapter=AdapterEntry(name="ada", revision="1"))
    rig.publish(bumped(rig.acme, endpoints=(*rig.acme.endpoints, adapter)))
    prompt = _chat("p" * 2000)
    await rig.chat(prompt)
    await rig.chat({**prompt, "model": "ada"})
    assert rig.records()[-1].matched_tokens == 0
    assert {received.json["model"] for received in [*rig.a.requests, *rig.b.requests]} == {"m-7b", "ada"}


async def test_load_counts_from_dispatch_not_from_the_answer(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    calls = [asyncio.create_task(rig.chat(_chat(f"{number} " * 4000))) for number in range(10)]
    await until(lambda: rig.served() == 10)
    assert (len(rig.a.requests), len(rig.b.requests)) == (5, 5)
    assert {engine.in_flight for engine in rig.router.plane.engines.values()} == {5}
    gate.set()
    await asyncio.gather(*calls)
    rig.assert_nothing_held()


async def test_prompts_shorter_than_a_block_spread_too(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    calls = [asyncio.create_task(rig.chat()) for _ in range(12)]
    await until(lambda: rig.served() == 12)
    assert (len(rig.a.requests), len(rig.b.requests)) == (6, 6)
    gate.set()
    await asyncio.gather(*calls)
    for number in range(20):
        await rig.chat(_chat(f"q{number}"))
    names = collections.Counter(record.replica_name for record in rig.records()[12:])
    assert min(names["A"], names["B"]) >= 4


async def test_the_size_of_a_cache_is_no_reason_to_choose_it(rig: Rig) -> None:
    plane = rig.router.plane
    plane.engines[rig.a.url].in_flight = 40
    plane.index.dispatched(b"n" * 16, [bytes([number]) * 16 for number in range(10)], rig.a.url)
    plane.index.dispatched(b"n" * 16, [number.to_bytes(16, "big") for number in range(10_000)], rig.b.url)
    for number in range(20):
        await rig.chat(_chat(f"unique {number} " * 30))
    assert (len(rig.a.requests), len(rig.b.requests)) == (0, 20)
    plane.engines[rig.a.url].in_flight = 0


def _metrics(running: int, waiting: int, *, started: float = 1000.0, blocks: int = 0) -> Script:
    lines = [
        f'vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}.0',
        f'vllm:num_requests_waiting{{engine="0",model_name="tiny"}} {waiting}.0',
        f"process_start_time_seconds {started}",
    ]
    if blocks:
        lines.append(f'vllm:cache_config_info{{block_size="32",num_gpu_blocks="{blocks}"}} 1.0')
    return Script(body="\n".join(lines).encode() + b"\n", headers={"Content-Type": "text/plain"})


async def _check(rig: Rig) -> None:
    plane = rig.router.plane
    for replica in plane.replicas.values():
        await load.check(plane, replica)


async def test_own_dispatches_count_on_top_of_a_stale_scrape(rig: Rig) -> None:
    rig.a.on_path["/metrics"], rig.b.on_path["/metrics"] = _metrics(0, 0), _metrics(0, 1)
    await _check(rig)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    calls = [asyncio.create_task(rig.chat(_chat(f"unique {number} " * 400))) for number in range(8)]
    await until(lambda: rig.served() == 8)
    assert abs(len(rig.a.requests) - len(rig.b.requests)) <= 2
    gate.set()
    await asyncio.gather(*calls)


async def test_other_peoples_queues_send_us_elsewhere(rig: Rig) -> None:
    rig.a.on_path["/metrics"], rig.b.on_path["/metrics"] = _metrics(3, 20), _metrics(0, 0)
    await _check(rig)
    for number in range(6):
        await rig.chat(_chat(f"unique {number} " * 20))
    assert (len(rig.a.requests), len(rig.b.requests)) == (0, 6)


async def test_an_engine_that_restarted_holds_nothing_any_more(rig: Rig) -> None:
    rig.only_a()
    rig.a.on_path["/metrics"] = _metrics(0, 0, started=1000.0)
    await _check(rig)
    await rig.chat(_chat("p" * 2000))
    rig.a.on_path["/metrics"] = _metrics(0, 0, started=2000.0)
    await _check(rig)
    await rig.chat(_chat("p" * 2000))
    assert rig.records()[-1].matched_tokens == 0
    assert rig.router.plane.engines[rig.a.url].restarts == 1


async def test_the_index_is_no_larger_than_the_engines_cache(rig: Rig) -> None:
    rig.only_a()
    rig.a.on_path["/metrics"] = _metrics(0, 0, blocks=40)  # 1280 tokens, at 4 bytes: 40 history blocks
    await _check(rig)
    for number in range(5):
        await rig.chat(_chat(f"{number}" * 4000))
    held, evicted = rig.router.plane.index.sizes()[rig.a.url]
    assert held <= 41
    assert evicted > 0


async def test_an_engine_that_misses_two_health_checks_gets_nothing_until_it_answers(rig: Rig) -> None:
    rig.a.on_path["/health"] = Script(status=503, body=b"")
    await _check(rig)
    assert rig.router.plane.engines[rig.a.url].reachable()
    await _check(rig)
    for number in range(4):
        await rig.chat(_chat(f"{number}"))
    assert (len(rig.a.requests), len(rig.b.requests)) == (0, 4)
    assert rig.records()[-1].candidates[-1].refusal == "unreachable"
    del rig.a.on_path["/health"]
    await _check(rig)
    assert rig.router.plane.engines[rig.a.url].reachable()


@pytest.mark.parametrize("back", ["health", "process"])
async def test_an_engine_that_is_back_is_tried_at_once_although_its_breaker_is_open(rig: Rig, back: str) -> None:
    """Seen by its health that returned, or by a new start time; without either sign the open period holds."""
    rig.only_a()
    rig.a.on_path["/metrics"] = _metrics(0, 0, started=1000.0)
    await _check(rig)
    rig.a.script = Script(status=500, body=b"{}")
    for _ in range(3):
        assert (await rig.chat()).status >= 500
    rig.a.script = Script(body=completion())
    await _check(rig)
    assert (await rig.chat()).error["code"] == "no_ready_replica"
    if back == "health":
        rig.a.on_path["/health"] = Script(status=503, body=b"")
        await _check(rig)
        del rig.a.on_path["/health"]
    else:
        rig.a.on_path["/metrics"] = _metrics(0, 0, started=2000.0)
    await _check(rig)
    assert (await rig.chat()).status == 200
    assert (await rig.chat()).status == 200


async def test_bytes_per_token_is_learned_from_what_engines_say(rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(body=completion(usage=usage(500, 1)))
    for number in range(30):
        await rig.chat(_chat(f"{number:04d}" * 250))
    assert abs(rig.records()[-1].estimated_prompt_tokens - 500) < 25


async def test_the_watchers_follow_the_configuration(make_rig: MakeRig) -> None:
    rig = await make_rig(scrape_s=0.02)
    await until(lambda: all(engine.health == "ok" for engine in rig.router.plane.engines.values()))
    tasks = len(asyncio.all_tasks())
    for _ in range(20):
        rig.only_a()
        rig.publish(bumped(rig.globex, pools=(msgspec.structs.replace(rig.globex.pools[0], replicas=rig.acme.pools[0].replicas),)))
        await asyncio.sleep(0)
    await until(lambda: rig.b.url not in rig.router.load._tasks)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert set(rig.router.load._tasks) == {rig.a.url}


async def test_two_routers_agree_on_a_cold_prefix(make_rig: MakeRig) -> None:
    one, other = await make_rig(), await make_rig()
    agreed = 0
    for number in range(40):
        await one.chat(_chat(f"cold {number} " * 60))
        await other.chat(_chat(f"cold {number} " * 60))
        agreed += one.records()[-1].replica_name == other.records()[-1].replica_name
    assert agreed >= 38


async def test_only_long_bodies_are_measured_off_the_loop(rig: Rig) -> None:
    workers = rig.router._workers
    await rig.chat()
    assert not workers._threads
    replies = await asyncio.gather(*(rig.chat(_chat("word " * 400_000)) for _ in range(4)))
    assert {reply.status for reply in replies} == {200}
    assert 1 <= len(workers._threads) <= 2
    assert rig.records()[-1].estimated_prompt_tokens > 100_000


async def test_a_sleeping_engine_is_left_and_its_residency_forgotten(rig: Rig) -> None:
    """It may never say by an event that its cache is gone; its metrics do. Awake again it begins cold."""
    prompt = _chat("p " * 4000)
    await rig.chat(prompt)
    home, other = (rig.a, rig.b) if rig.records()[-1].replica_name == "A" else (rig.b, rig.a)

    def says(awake: int) -> Script:
        row = f'vllm:engine_sleep_state{{engine="0",model_name="tiny",sleep_state="awake"}} {awake}.0\n'
        return Script(body=row.encode(), headers={"Content-Type": "text/plain"})

    home.on_path["/metrics"] = says(0)
    await _check(rig)
    await rig.chat(prompt)
    assert (rig.records()[-1].replica_name, rig.records()[-1].matched_tokens) == (other.name, 0)
    home.on_path["/metrics"] = says(1)
    await _check(rig)
    engine = rig.router.plane.engines[home.url]
    assert engine.reachable()
    assert rig.router.plane.index.sizes().get(home.url, (0, 0))[0] == 0
