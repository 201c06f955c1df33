"""/metrics against the recorded page: names, types, labels, bounds; and that the counters count."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from routing.simulator.config import Adapter, EngineConfig, TimeModel
from tests.routing.simulator.vectors import load
from tests.routing.simulator.wire import RECORDED, Wire, eventually, wired

# What the real engine shows and this one cannot know or does not do.
LEFT_OUT = {
    "vllm:estimated_flops_per_gpu",
    "vllm:estimated_read_bytes_per_gpu",
    "vllm:estimated_write_bytes_per_gpu",
    "vllm:mm_cache_queries",
    "vllm:mm_cache_hits",
    "vllm:prompt_tokens_cached_by_source",
    "vllm:tool_call_parser_invocations",
}


async def scrape(wire: Wire) -> dict[str, Metric]:
    _, text = await wire.get("/metrics")
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    base = name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")
    family = families.get(name) or families[base]
    (sample,) = [sample for sample in family.samples if sample.name == name and labels.items() <= sample.labels.items()]
    return sample.value


async def test_names_types_labels_and_bounds_are_the_recorded_ones() -> None:
    """All families but a named few; of cache_config_info a part of the labels."""
    config = replace(RECORDED, engine=EngineConfig(blocks=40, block_size_tokens=32, max_model_len_tokens=1024, time=TimeModel(speed=500)))
    async with wired(config) as wire:
        here = await scrape(wire)
    recorded = {row["name"].removesuffix("_total") if row["type"] == "counter" else row["name"]: row for row in load("metrics.json")}
    shown = {name for name in here if not name.endswith("_created")}
    assert set(recorded) - shown == LEFT_OUT
    assert shown - set(recorded) == set()
    for name in shown - {"vllm:cache_config_info"}:
        family, row = here[name], recorded[name]
        samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        plain = [sample.labels for sample in samples if "le" not in sample.labels]
        assert family.type == row["type"], name
        assert sorted({str(sorted(labels.items())) for labels in plain}) == sorted(str(sorted(labels.items())) for labels in row["series"])
        assert [sample.labels["le"] for sample in samples if "le" in sample.labels] == row["le"], name
    (info,) = here["vllm:cache_config_info"].samples
    (recorded_info,) = recorded["vllm:cache_config_info"]["series"]
    assert info.labels.items() <= recorded_info.items()
    assert {"block_size", "num_gpu_blocks", "kv_cache_size_tokens", "prefix_caching_hash_algo"} <= set(info.labels)


async def test_counters_count_tokens() -> None:
    """Two equal prompts of 100 tokens: 200 queried, 96 hit."""
    async with wired() as wire:
        for _ in range(2):
            await wire.post("/v1/completions", {"prompt": list(range(2000, 2100)), "max_tokens": 3, "ignore_eos": True})
        families = await scrape(wire)
    assert value(families, "vllm:prefix_cache_queries_total") == 200
    assert value(families, "vllm:prefix_cache_hits_total") == 96
    assert value(families, "vllm:prompt_tokens_total") == 200
    assert value(families, "vllm:prompt_tokens_by_source_total", source="local_compute") == 104
    assert value(families, "vllm:generation_tokens_total") == 6
    assert value(families, "vllm:request_success_total", finished_reason="length") == 2
    assert value(families, "vllm:time_to_first_token_seconds_count") == 2
    assert value(families, "vllm:inter_token_latency_seconds_count") == 4
    assert value(families, "vllm:kv_cache_usage_perc") == 0.0  # cached blocks that nobody uses count as free


async def test_gauges_show_running_and_waiting() -> None:
    """One sequence at a time: one runs, one waits, and blocks are in use."""
    engine = replace(RECORDED.engine, max_num_seqs=1, time=TimeModel(step_s=0.02))
    async with wired(replace(RECORDED, engine=engine)) as wire:
        tasks = [asyncio.create_task(wire.chat(f"{number}", max_tokens=3000, ignore_eos=True)) for number in range(2)]
        core = wire.running.replica.engine
        await eventually(lambda: (core.stats().running, core.stats().waiting) == (1, 1))
        families = await scrape(wire)
        while value(families, "vllm:num_requests_waiting") != 1:  # the gauges are set at the end of a step
            families = await scrape(wire)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert value(families, "vllm:num_requests_running") == 1
    assert value(families, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    assert value(families, "vllm:kv_cache_usage_perc") > 0


async def test_adapters_are_described() -> None:
    """Their traffic is counted under the base model; the newest row names those that run now."""
    config = replace(RECORDED, adapters=(Adapter("ad1", "/a", 1), Adapter("ad2", "/b", 2)), engine=replace(RECORDED.engine, adapter_slots=1))
    async with wired(config) as wire:
        await wire.chat("Hi", model="ad1")
        families = await scrape(wire)
    rows = {sample.labels["running_lora_adapters"]: sample for sample in families["vllm:lora_requests_info"].samples}
    assert set(rows) == {"", "ad1"}
    assert {sample.labels["max_lora"] for sample in rows.values()} == {"1"}
    assert rows[""].value >= rows["ad1"].value > 1e9
    assert value(families, "vllm:request_success_total", finished_reason="length", model_name="tiny") == 1
