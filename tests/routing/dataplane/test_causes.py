"""Causes end to end: each is made to happen to simulated replicas behind the real router, and the record names it. Larger: tests/bench/causes.py."""

from __future__ import annotations

import math
import uuid

import msgspec
import pytest

from routing.core.record import CauseRecord
from tests.bench import causes
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import HI, KEY_A_EMEA, KEY_B, Rig, bumped, endpoint

LONG = "nothing in here is short " * 300


@pytest.mark.parametrize("name", list(causes.INJECTED))
async def test_the_injected_cause_is_named(name: str) -> None:
    record = await causes.inject(name, 7)
    assert causes.named(record) == causes.INJECTED[name][0], record.cause
    assert record.cause is not None
    assert record.e2e_s is not None
    assert sum(record.cause.parts_us.values()) == pytest.approx(record.e2e_s * 1e6, abs=50_000)  # the clock is read twice


def _cause(rig: Rig) -> CauseRecord:
    found = rig.records()[-1].cause
    assert found is not None
    return found


def _answer(rig: Rig, *, prompt: int, cached: int) -> None:
    rig.a.script = Script(sse=[chunk("hel"), chunk("lo", finish="stop"), usage_chunk(prompt=prompt, completion=2, cached=cached), "[DONE]"])


def _chat(*texts: str) -> dict[str, object]:
    roles = ["system", "user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {**HI, "messages": messages, "stream": True}


async def test_where_a_prompt_leaves_its_last_turn_is_told_in_bytes_and_tokens(rig: Rig) -> None:
    rig.only_a()
    _answer(rig, prompt=2000, cached=0)
    await rig.chat(_chat(LONG, "why?"))
    assert _cause(rig).diverged_tokens is None
    edited = LONG[:1000] + "X" + LONG[1001:]
    await rig.chat(_chat(edited, "why?", "because", "go on"))
    found = _cause(rig)
    assert found.diverged_bytes == 1000 // 128 * 128
    assert found.diverged_tokens is not None
    assert found.diverged_tokens == pytest.approx(2000 * 896 / (len(LONG) + 200), rel=0.1)
    assert found.missed_tokens["changed"] > 1500


async def test_a_prompt_that_is_the_beginning_of_the_last_turn_differs_nowhere(rig: Rig) -> None:
    rig.only_a()
    _answer(rig, prompt=2000, cached=0)
    await rig.chat(_chat(LONG, "why?", "because " * 100, "go on"))
    await rig.chat(_chat(LONG, "why?"))
    found = _cause(rig)
    assert found.diverged_tokens is None
    assert "changed" not in found.missed_tokens
    assert found.last_turn_tokens > 2000


async def test_what_went_to_another_pool_is_no_lost_replica(rig: Rig) -> None:
    """Two endpoints of one model share a namespace, each on its own pool. When no endpoint uses that pool, its replica is gone for the tenant."""
    mine = rig.acme.pools[0]
    here = msgspec.structs.replace(mine, replicas=mine.replicas[:1])
    there = msgspec.structs.replace(mine, id=uuid.uuid4(), name="other", replicas=mine.replicas[1:])
    rig.publish(bumped(rig.acme, pools=(here, there), endpoints=(endpoint(here), endpoint(there, "m-7b-too", served_model="m-7b"))))
    _answer(rig, prompt=2000, cached=0)
    rig.b.script = rig.a.script
    body = _chat(LONG, "why?")
    await rig.chat({**body, "model": "m-7b-too"})
    assert len(rig.b.requests) == 1
    await rig.chat(body)
    assert len(rig.a.requests) == 1
    assert _cause(rig).missed_tokens["other_pool"] > 1500
    assert "replica_lost" not in _cause(rig).missed_tokens
    other = _chat("2" + LONG, "who?")
    await rig.chat({**other, "model": "m-7b-too"})
    rig.publish(bumped(rig.acme, endpoints=(endpoint(here),)))
    assert f"http://127.0.0.1:{rig.b.port}" in rig.router.plane.engines, "globex has it still"
    await rig.chat(other)
    assert _cause(rig).missed_tokens["replica_lost"] > 1500
    assert "other_pool" not in _cause(rig).missed_tokens


async def test_a_session_is_one_conversation_whatever_it_begins_with(rig: Rig) -> None:
    rig.only_a()
    _answer(rig, prompt=2000, cached=0)
    await rig.chat(_chat(LONG, "why?"), headers={"X-Session-ID": "s1"})
    await rig.chat(_chat("2" + LONG, "who?"), headers={"X-Session-ID": "s1"})
    assert _cause(rig).diverged_bytes == 0
    await rig.chat(_chat("3" + LONG, "who?"), headers={"X-Session-ID": "s2"})
    assert _cause(rig).diverged_bytes is None


async def test_nobody_s_record_tells_of_another_s_prompts(rig: Rig) -> None:
    """Another tenant and another scope send the same: never seen, as far as they are told. The same key is the control."""
    rig.only_a()
    _answer(rig, prompt=2000, cached=0)
    body = _chat(LONG, "why?")
    await rig.chat(body)
    globex = rig.globex
    pool = globex.pools[0]
    rig.publish(
        bumped(globex, pools=(type(pool)(**{**{name: getattr(pool, name) for name in pool.__struct_fields__}, "replicas": pool.replicas[:1]}),))
    )
    for key in (KEY_B, KEY_A_EMEA):
        await rig.chat(body, key=key)
        assert set(_cause(rig).missed_tokens) == {"never_seen"}
        assert _cause(rig).last_turn_tokens == 0
    await rig.chat(body)
    assert "evicted" in _cause(rig).missed_tokens
    assert _cause(rig).last_turn_tokens > 1500


async def test_the_choice_blind_to_caches_is_told(rig: Rig) -> None:
    await rig.chat()
    found, record = _cause(rig), rig.records()[-1]
    assert found.blind_replica_id in {str(one.id) for one in rig.acme.pools[0].replicas}
    assert found.own_pool
    assert found.blind_replica_name == {str(one.id): one.name for one in rig.acme.pools[0].replicas}[found.blind_replica_id or ""]
    assert found.blind_ttft_s is not None
    assert record.expected_ttft_s is not None
    assert math.isclose(found.blind_ttft_s, record.expected_ttft_s, rel_tol=0.01)  # nothing is known of either


async def test_a_request_without_a_replica_has_a_whole_too(rig: Rig) -> None:
    for one in (rig.a, rig.b):
        one.script = Script(status=500, body={})
    assert (await rig.chat()).status >= 500
    parts = _cause(rig).parts_us
    assert set(parts) <= {"router", "retry", "unexplained"}
    assert parts["retry"] > 0


async def test_what_is_kept_of_turns_is_bounded(rig: Rig) -> None:
    rig.only_a()
    turns = rig.router.plane.causes.turns
    turns._budget_bytes = 4000
    _answer(rig, prompt=2000, cached=0)
    for number in range(30):
        await rig.chat(_chat(f"{number} {LONG}", f"question {number}"))
    assert turns.size_bytes <= 4000
    assert turns.dropped > 20
    page = rig.router.plane.metrics.page().decode()
    assert f"saltroute_turns_dropped_total {float(turns.dropped)}" in page


async def test_a_pool_of_somebody_else_is_not_passed_for_an_own_one(rig: Rig) -> None:
    """So that sums which no longer say of which replica tell nobody of others' load."""
    await rig.chat()
    assert _cause(rig).own_pool
    granted = tuple(msgspec.structs.replace(pool, owner_tenant_id=uuid.uuid4(), shared=True) for pool in rig.acme.pools)
    rig.publish(bumped(rig.acme, pools=granted))
    await rig.chat()
    assert not _cause(rig).own_pool
