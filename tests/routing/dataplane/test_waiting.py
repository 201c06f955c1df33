"""Requests wait in the router while every replica is busy with others' work, and behind the leader of an identical burst; in fair turns, never for
ever, and whoever leaves is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from routing.core.snapshot import PolicyEntry
from tests.fakes.replica import Script, chunk, completion, event, usage, usage_chunk
from tests.fakes.rig import KEY_B, Reply, Rig, bumped, endpoint, until
from tests.routing.dataplane.conftest import MakeRig

LONG = 240_000  # bytes: about 60,000 tokens, 7 s of a replica whose speed nobody knows yet


def slo(rig: Rig, **spec: Any) -> None:
    """Give acme's endpoint an objective."""
    entry = PolicyEntry(name="slo", version=1, spec=spec)
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], slo=entry),)))


def one_pool(rig: Rig) -> None:
    """Let globex use acme's pool."""
    pool = msgspec.structs.replace(rig.acme.pools[0], shared=True)
    rig.publish(bumped(rig.acme, pools=(pool,)))
    rig.publish(bumped(rig.globex, pools=(pool,), endpoints=(endpoint(pool, id=rig.globex.endpoints[0].id),)))


def prompt(text: str, size_bytes: int = LONG, **more: Any) -> dict[str, Any]:
    return {"model": "m-7b", "messages": [{"role": "user", "content": (text + " ") * (size_bytes // (len(text) + 1))}], **more}


class Busy:
    """Both replicas at work on a long prompt each, until they are let go."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.gates = {"A": asyncio.Event(), "B": asyncio.Event()}
        real = completion(usage=usage(prompt=60_000))
        rig.a.script, rig.b.script = (Script(hold=self.gates[name], body=real) for name in "AB")
        self.calls: list[asyncio.Task[Reply]] = []

    async def fill(self) -> None:
        for number in range(2):
            self.calls.append(asyncio.create_task(self.rig.chat(prompt(f"occupant {number}", stream=True))))
            await until(lambda: self.rig.served() == len(self.calls))

    async def wait(self, count: int) -> None:
        await until(lambda: len(self.rig.router.plane.waiting) == count)

    async def end(self) -> None:
        for gate in self.gates.values():
            gate.set()
        await asyncio.gather(*self.calls)
        await self.rig.settled()
        self.rig.assert_nothing_held()
        assert len(self.rig.router.plane.waiting) == self.rig.router.plane.waiting.following == 0


@pytest.fixture
async def busy(rig: Rig) -> Busy:
    made = Busy(rig)
    await made.fill()
    return made


async def test_a_request_waits_until_a_replica_is_free_and_goes_there(rig: Rig, busy: Busy) -> None:
    held = asyncio.create_task(rig.chat(prompt("a short one", 400)))
    await busy.wait(1)
    assert rig.served() == 2
    rig.b.script = Script(body=completion())
    busy.gates["B"].set()
    assert (await held).status == 200
    record = next(one for one in rig.records() if one.queue_s is not None)
    assert record.replica_name == "B"
    assert record.queue_s is not None
    assert record.queue_s > 0
    await busy.end()
    assert sum(one.queue_s is not None for one in rig.records()) == 1


async def test_the_longest_prompt_leaves_at_once_where_a_replica_is_idle_and_is_reported_as_not_attainable(rig: Rig) -> None:
    slo(rig, ttft_p95_ms=2000)
    assert (await rig.chat(prompt("cold", 400_000))).status == 200
    (record,) = rig.records()
    assert record.queue_s is None
    assert record.estimated_prompt_tokens > 90_000
    assert record.slo_attainable is False


async def test_who_waited_as_long_as_allowed_is_refused_with_a_time_to_come_back(rig: Rig, busy: Busy) -> None:
    slo(rig, ttft_p95_ms=1000, max_queue_ms=30)
    refused = await rig.chat(prompt("late", 400))
    assert (refused.status, refused.error["code"]) == (429, "queue_timeout")
    assert refused.headers["Retry-After"] in ("1", "2", "5", "10", "30")
    assert rig.served() == 2
    await busy.end()
    assert (await rig.chat(prompt("late", 400))).status == 200


async def test_where_no_waiting_is_allowed_the_refusal_comes_at_once(rig: Rig, busy: Busy) -> None:
    slo(rig, ttft_p95_ms=1000, max_queue_ms=0)
    refused = await rig.chat(prompt("late", 400))
    assert (refused.status, refused.error["code"]) == (429, "shed")
    await busy.end()


async def test_a_tenant_has_a_bound_of_its_own(make_rig: MakeRig) -> None:
    rig = await make_rig(max_waiting=1)
    one_pool(rig)
    busy = Busy(rig)
    await busy.fill()
    busy.calls.append(asyncio.create_task(rig.chat(prompt("first", 400))))
    await busy.wait(1)
    refused = await rig.chat(prompt("second", 400))
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    busy.calls.append(asyncio.create_task(rig.chat(prompt("another tenant's", 400), key=KEY_B)))
    await busy.wait(2)
    await busy.end()
    assert all(call.result().status == 200 for call in busy.calls)


async def test_a_client_that_leaves_gives_up_its_place(rig: Rig, busy: Busy) -> None:
    held = asyncio.create_task(rig.chat(prompt("impatient", 400)))
    await busy.wait(1)
    held.cancel()
    await busy.wait(0)
    await busy.end()
    assert rig.served() == 2


async def test_a_tenant_with_one_request_does_not_wait_behind_anothers_hundred(rig: Rig) -> None:
    one_pool(rig)
    busy = Busy(rig)
    await busy.fill()
    started: list[str] = []

    async def ask(name: str, key: str | None = None) -> Reply:
        reply = await rig.chat(prompt(name, LONG, stream=True), **({} if key is None else {"key": key}))
        started.append(name)
        return reply

    busy.calls.extend(asyncio.create_task(ask(f"hog {number}")) for number in range(20))
    await busy.wait(20)
    busy.calls.append(asyncio.create_task(ask("small", KEY_B)))
    await busy.wait(21)
    await busy.end()
    order = [received.json["messages"][0]["content"][:5] for fake in (rig.a, rig.b) for received in fake.requests[1:4]]
    assert "small" in order


async def test_a_waiting_request_hears_of_it_when_the_last_replica_goes(rig: Rig, busy: Busy) -> None:
    held = asyncio.create_task(rig.chat(prompt("a short one", 400)))
    await busy.wait(1)
    for engine in rig.router.plane.engines.values():
        engine.misses = 9
    reply = await held
    assert (reply.status, reply.error["code"]) == (503, "no_ready_replica")
    await busy.end()


def stream_of(gate: asyncio.Event) -> Script:
    return Script(pieces=[event(chunk("x")), event(chunk(finish="stop")), event(usage_chunk()), event("[DONE]")], gates={0: gate})


async def test_followers_of_a_burst_wait_for_the_leaders_first_byte_and_share_its_replica(make_rig: MakeRig) -> None:
    rig = await make_rig(burst_window_s=60.0)
    slo(rig, ttft_p95_ms=60_000)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt("the same", 96_000, stream=True))) for _ in range(16)]
    await until(lambda: rig.router.plane.waiting.following == 13)
    await until(lambda: rig.served() == 3)
    gate.set()
    replies = await asyncio.gather(*calls)
    assert [reply.status for reply in replies] == [200] * 16
    assert rig.served() == 16
    await rig.settled()
    rig.assert_nothing_held()
    assert rig.router.plane.waiting.following == 0


async def test_different_prompts_at_once_are_no_burst(make_rig: MakeRig) -> None:
    """The positive control of the test above: as many, as long, at the same moment."""
    rig = await make_rig(burst_window_s=60.0)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt(f"number {number}", 20_000, stream=True))) for number in range(6)]
    await until(lambda: rig.served() == 6)
    gate.set()
    await asyncio.gather(*calls)
    assert rig.router.plane.waiting.following == 0


async def test_a_leader_that_leaves_hands_over(make_rig: MakeRig) -> None:
    rig = await make_rig(burst_window_s=60.0)
    slo(rig, ttft_p95_ms=60_000)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt("the same", 96_000, stream=True))) for _ in range(8)]
    await until(lambda: rig.router.plane.waiting.following == 5)
    leader = calls.pop(0)
    leader.cancel()
    await until(lambda: rig.served() == 4)
    gate.set()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 7
    await rig.settled()
    rig.assert_nothing_held()
