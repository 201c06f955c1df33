"""Slots for adapters: the least recently used idle one leaves, one in use never does, and loading takes time."""

from __future__ import annotations

from dataclasses import replace

from routing.simulator.adapters import AdapterSlots
from routing.simulator.config import Adapter, EngineConfig, TimeModel
from routing.simulator.engine import Engine
from routing.simulator.submission import Submission
from tests.routing.simulator.wire import RECORDED, wired

ADAPTERS = {name: Adapter(name, f"/{name}", number) for number, name in enumerate(("ad1", "ad2", "ad3"), 1)}
CONFIG = EngineConfig(blocks=100, block_size_tokens=4, max_model_len_tokens=200, adapter_slots=1, time=TimeModel(adapter_load_s=7.0))


def _ask(request_id: str, adapter: str | None, *, output_tokens: int = 1) -> Submission:
    ids, answer = tuple(range(1, 9)), tuple(range(output_tokens))
    return Submission(request_id=request_id, token_ids=ids, output_token_ids=answer, adapter=ADAPTERS[adapter] if adapter else None)


def test_the_least_recently_used_idle_adapter_leaves() -> None:
    slots = AdapterSlots(2)
    assert [slots.take(name, ()) for name in ("ad1", "ad2", "ad1", "ad3", "ad1")] == [True, True, False, True, False]
    assert slots.loaded == ("ad3", "ad1")
    assert not slots.has_room("ad2", ("ad3", "ad1"))
    assert slots.has_room("ad2", ("ad1",))
    assert slots.take("ad2", ("ad3",))
    assert slots.loaded == ("ad3", "ad2")


def test_the_step_that_loads_takes_longer() -> None:
    engine = Engine(CONFIG)
    durations = []
    for number, name in enumerate(("ad1", "ad1", None, "ad2", "ad1")):
        engine.submit(_ask(str(number), name), 0.0)
        durations.append(engine.step(0.0).duration_s)
    assert [duration > 7 for duration in durations] == [True, False, False, True, True]


def test_a_request_without_a_slot_waits_while_others_pass() -> None:
    engine = Engine(CONFIG)
    for request_id, name in (("a", "ad1"), ("b", "ad2"), ("c", "ad1"), ("d", None)):
        engine.submit(_ask(request_id, name, output_tokens=2), 0.0)
    first = engine.step(0.0)
    assert [output.request_id for output in first.outputs] == ["a", "c", "d"]
    assert (first.stats.running_adapters, first.stats.waiting_adapters) == (("ad1",), ("ad2",))
    engine.step(1.0)
    assert [output.request_id for output in engine.step(2.0).outputs] == ["b"]
    assert engine.adapters.loaded == ("ad2",)


async def test_adapters_come_and_go_over_http() -> None:
    async with wired(replace(RECORDED, runtime_adapters=True)) as wire:
        assert (await wire.post("/v1/load_lora_adapter", {"lora_name": "ad1", "lora_path": "/a"}))[0] == 200
        assert (await wire.post("/v1/load_lora_adapter", {"lora_name": "ad1", "lora_path": "/a"}))[0] == 400
        assert '"parent":"tiny"' in (await wire.get("/v1/models"))[1]
        await wire.chat("Hi", model="ad1")
        assert (await wire.post("/v1/unload_lora_adapter", {"lora_name": "ad1"}))[0] == 200
        assert (await wire.post("/v1/unload_lora_adapter", {"lora_name": "ad1"}))[0] == 404
        status, body = await wire.post("/v1/completions", {"model": "ad1", "prompt": "x"})
    assert (status, body["error"]["param"]) == (404, "model")


async def test_adapters_cannot_come_and_go_unless_that_is_switched_on() -> None:
    async with wired() as wire:
        assert (await wire.post("/v1/load_lora_adapter", {"lora_name": "ad1", "lora_path": "/a"}))[0] == 404
