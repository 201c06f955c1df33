"""What a first byte teaches of the engine, long before the answer ends, where it was known exactly what the engine had to compute."""

from __future__ import annotations

import time
from asyncio import Event
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from namespaces.core import probe
from namespaces.core.salts import Namespace
from routing.core.calibration import Calibration
from routing.core.kv_events import decode
from routing.core.snapshot import AdapterEntry
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import KEY_A, PUBLISH, Rig, bumped, endpoint, until
from tests.routing.dataplane.test_probes import claims, send

BLOCK = 16
PROMPT = list(range(1000, 4000))


def calibration(rig: Rig) -> Calibration:
    return rig.router.plane.engine(rig.a.url).calibration


def taught(rig: Rig) -> list[float]:
    """The tokens of each sample of the engine's speed: others' ahead and the request's own."""
    return [tokens for tokens, _, _ in calibration(rig).stretches]


@pytest.fixture
async def exact(rig: Rig) -> Rig:
    """A alone, and what it holds known by its events."""
    rig.only_a()
    plane, target = rig.router.plane, (rig.a.url, 0)
    plane.events.set_generation(target, 1, time.monotonic())
    plane.residency.begin(target, time.monotonic())
    plane.residency.drop(target, "subscribing", now_s=time.monotonic())
    assert plane.residency.of(rig.a.url).state == "exact"
    return rig


def held(rig: Rig, namespace: Namespace, prompt: list[int]) -> None:
    """Let A say that it holds the whole blocks of a prompt."""
    plane, count = rig.router.plane, len(prompt) // BLOCK
    plane.events.claim(namespace.salt, ns_key=namespace.key, owner=rig.acme.tenant_id.bytes, seed=namespace.index_seed)
    stored = {
        "type": "BlockStored", "block_hashes": list(range(1, count + 1)), "parent_block_hash": None, "token_ids": prompt[: count * BLOCK],
        "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [[namespace.salt], *[None] * (count - 1)],
        "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip
    plane.events.apply((rig.a.url, 0), decode(msgspec.msgpack.encode([1.0, [stored], 0])), time.monotonic())


@asynccontextmanager
async def streaming(rig: Rig, prompt: list[int], *, cached: int = 0, **more: Any) -> AsyncIterator[None]:
    """A request whose first byte has come, and nothing more; its answer ends with the block, and then says its usage."""
    gate = Event()
    answer = [chunk("a"), chunk("b", finish="stop"), usage_chunk(len(prompt), 2, cached), "[DONE]"]
    rig.a.script = Script(sse=answer, gates={1: gate})
    body = {"model": "m-7b", "prompt": prompt, "max_tokens": 2, "stream": True, **more}
    headers = {"Authorization": f"Bearer {KEY_A}"}
    flying = rig.router.plane.in_flight
    async with rig.client.post(f"{rig.url}/v1/completions", json=body, headers=headers) as reply:
        assert (await reply.content.readany()).startswith(b"data: ")
        yield
        gate.set()
        assert (await reply.read()).endswith(b"data: [DONE]\n\n")
    assert reply.status == 200
    await until(lambda: rig.router.plane.in_flight == flying)


async def test_the_speed_is_learned_at_the_first_byte_and_once(exact: Rig) -> None:
    async with streaming(exact, PROMPT):
        assert taught(exact) == [3000.0]
        assert len(calibration(exact).log_errors) == 1
    assert taught(exact) == [3000.0]
    assert len(calibration(exact).log_errors) == 1


async def test_work_is_what_stood_ahead_and_what_events_do_not_show(exact: Rig) -> None:
    held(exact, exact.namespace(), PROMPT[:512])
    entry = exact.router.plane.engine(exact.a.url).ledger.add(700.0, until_s=time.monotonic() + 3600)
    async with streaming(exact, PROMPT, cached=512):
        assert taught(exact) == [700.0 + 3000.0 - 512.0]
    exact.router.plane.engine(exact.a.url).ledger.release(entry)
    record = exact.records()[-1]
    assert (record.matched_tokens, record.candidates[0].evidence) == (512, "event")


async def test_where_it_is_not_known_exactly_the_answers_own_word_is_waited_for(rig: Rig) -> None:
    rig.only_a()
    async with streaming(rig, PROMPT, cached=512):
        assert taught(rig) == []
    assert taught(rig) == [3000.0 - 512.0]


async def test_a_prompt_of_nothing_on_an_idle_engine_teaches_its_fixed_cost(exact: Rig) -> None:
    """And one that stands beside another does not; neither says anything of the rate."""
    async with streaming(exact, [1] * 40):
        assert len(calibration(exact).fixed) == 1
        async with streaming(exact, [2] * 40):
            assert len(calibration(exact).fixed) == 1
    async with streaming(exact, [3] * 40):
        assert len(calibration(exact).fixed) == 2
    assert taught(exact) == []
    assert len(calibration(exact).log_errors) == 3


async def test_several_answers_to_one_prompt_teach_nothing_at_the_first_byte(exact: Rig) -> None:
    async with streaming(exact, PROMPT, n=2):
        assert taught(exact) == []


async def test_an_answer_that_does_not_stream_never_says_when_its_prompt_was_computed(exact: Rig) -> None:
    assert (await exact.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": PROMPT, "max_tokens": 2})).status == 200
    assert taught(exact) == []


async def test_loading_an_adapter_is_no_slowness(exact: Rig) -> None:
    """Neither the request that brings it in nor one that waits for that teaches the engine's speed; one that finds it there does."""
    adapter = endpoint(exact.acme.pools[0], "ada", adapter=AdapterEntry(name="ada", revision="1"))
    exact.publish(bumped(exact.acme, endpoints=(*exact.acme.endpoints, adapter)))
    adapters = exact.router.plane.engine(exact.a.url).adapters
    adapters.samples.extend([10.0] * 16)  # so long it takes, hence the second request meets the load of the first
    async with streaming(exact, PROMPT, model="ada"):
        assert set(adapters.loading) == {"ada"}
        assert len(adapters.samples) == 16
        async with streaming(exact, list(range(10_000, 13_000)), model="ada"):
            assert not calibration(exact).log_errors
    assert not calibration(exact).log_errors
    assert len(adapters.samples) == 17
    async with streaming(exact, list(range(20_000, 23_000)), model="ada"):
        assert taught(exact) == [3000.0]
    assert len(adapters.samples) == 17


async def test_reuse_is_judged_by_the_answers_own_word_and_not_by_its_first_byte(exact: Rig) -> None:
    held(exact, exact.namespace(), PROMPT[:512])
    trust, target = exact.router.plane.trust, (exact.a.url, 0)
    async with streaming(exact, PROMPT, cached=0):
        assert trust.report(target, time.monotonic()).answers == 0
    report = trust.report(target, time.monotonic())
    assert (report.answers, report.share_exact, report.median_error_tokens) == (1, 0.0, 512.0)


async def test_audits_teach_nothing(exact: Rig) -> None:
    """The same prompt teaches as soon as a client sends it."""
    token = probe.sign(claims(exact), PUBLISH)
    exact.a.script = Script(sse=[chunk("a", finish="stop"), usage_chunk(len(PROMPT), 1, 0), "[DONE]"])
    body = {"model": "m-7b", "prompt": PROMPT, "max_tokens": 2, "stream": True}
    assert (await send(exact, token, path="/internal/probe/v1/completions", json=body)).status == 200
    assert len(exact.a.requests) == 1
    assert not calibration(exact).log_errors
    async with streaming(exact, PROMPT):
        assert taught(exact) == [3000.0]
