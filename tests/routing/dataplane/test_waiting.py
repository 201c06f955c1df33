"""Requests wait in the router while every replica is busy with others' work, and behind the leader of an identical burst; in fair turns, never for
ever, and whoever leaves is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from routing.core import gate as burst_gate
from routing.core.snapshot import PolicyEntry
from tests.fakes.replica import Script, chunk, completion, event, usage, usage_chunk
from tests.fakes.rig import KEY_B, Reply, Rig, bumped, endpoint, replica_entry, until
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
        waiting = self.rig.router.plane.waiting
        assert len(waiting) == len(waiting.bursts) == 0


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


@pytest.mark.parametrize(("loose_ms", "first"), [(60_000, "tight"), (3_000, "loose")], ids=["by objective", "by arrival where it is the same"])
async def test_who_is_due_first_goes_first(rig: Rig, busy: Busy, loose_ms: int, first: str) -> None:
    """Two endpoints of one tenant, asked under one key: the loose one came first, and the same time for waiting is allowed to both."""
    pool = rig.acme.pools[0]
    targets = {"loose": loose_ms, "tight": 3_000}
    objectives = {name: PolicyEntry(name=name, version=1, spec={"ttft_p95_ms": ms, "max_queue_ms": 60_000}) for name, ms in targets.items()}
    rig.publish(bumped(rig.acme, endpoints=(endpoint(pool), *(endpoint(pool, name, slo=objectives[name]) for name in targets))))
    for place, name in enumerate(targets, start=1):
        busy.calls.append(asyncio.create_task(rig.chat({**prompt(name, 400), "model": name})))
        await busy.wait(place)
    rig.b.script = Script(body=completion())
    busy.gates["B"].set()
    await until(lambda: rig.served() == 4)
    assert rig.b.requests[1].json["model"] == first
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
    rig.router.plane.waiting.wake(rig.router.plane)  # before the next check of its health finds it well
    reply = await held
    assert (reply.status, reply.error["code"]) == (503, "no_ready_replica")
    await busy.end()


def stream_of(gate: asyncio.Event) -> Script:
    return Script(pieces=[event(chunk("x")), event(chunk(finish="stop")), event(usage_chunk()), event("[DONE]")], gates={0: gate})


async def test_followers_of_a_burst_go_at_once_to_where_its_prefix_is_computed(make_rig: MakeRig) -> None:
    """An engine's queue is as good a place to wait as the router's."""
    rig = await make_rig(burst_window_s=60.0)
    slo(rig, ttft_p95_ms=60_000)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt("the same", 40_000, stream=True))) for _ in range(6)]
    await until(lambda: rig.served() == 6)
    assert len(rig.router.plane.waiting.bursts) == 0
    gate.set()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 6
    await rig.settled()
    rig.assert_nothing_held()


async def test_different_prompts_at_once_are_no_burst(make_rig: MakeRig) -> None:
    """The positive control of the test above: as many, as long, at the same moment."""
    rig = await make_rig(burst_window_s=60.0)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt(f"number {number}", 20_000, stream=True))) for number in range(6)]
    await until(lambda: rig.served() == 6)
    gate.set()
    await asyncio.gather(*calls)
    assert len(rig.router.plane.waiting.bursts) == 0


def limit(rig: Rig, a: int | None, b: int | None, **spec: Any) -> None:
    """How many requests each replica may have; ``spec`` is an objective."""
    replicas = (replica_entry(rig.a, max_concurrency=a), replica_entry(rig.b, max_concurrency=b))
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=replicas)
    objective = PolicyEntry(name="slo", version=1, spec=spec) if spec else None
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, slo=objective),)))


@pytest.fixture
def pairs_are_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst begins with its second request, and followers may be held for as long as they would take elsewhere."""
    monkeypatch.setattr(burst_gate, "BURST", 2)
    monkeypatch.setattr(burst_gate, "MAX_HOLD_S", 60.0)


@pytest.mark.usefixtures("pairs_are_bursts")
async def test_who_would_compute_the_prefix_elsewhere_waits_for_the_leaders_first_byte(make_rig: MakeRig) -> None:
    """The leader's replica may have no more requests; the other one is free, and stays so until the leader's first byte."""
    rig = await make_rig(burst_window_s=60.0)
    limit(rig, 1, 1, ttft_p95_ms=240_000)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt("the same", stream=True))) for _ in range(4)]
    await until(lambda: len(rig.router.plane.waiting.bursts) == 3)
    await until(lambda: rig.served() == 1)
    gate.set()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 4
    await rig.settled()
    rig.assert_nothing_held()
    assert len(rig.router.plane.waiting.bursts) == 0


@pytest.mark.usefixtures("pairs_are_bursts")
async def test_a_leader_that_leaves_hands_over(make_rig: MakeRig) -> None:
    rig = await make_rig(burst_window_s=60.0)
    limit(rig, 1, 1, ttft_p95_ms=240_000)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = stream_of(gate)
    calls = [asyncio.create_task(rig.chat(prompt("the same", stream=True))) for _ in range(4)]
    await until(lambda: len(rig.router.plane.waiting.bursts) == 3)
    leader = calls.pop(0)
    leader.cancel()
    await until(lambda: rig.served() == 2)
    gate.set()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 3
    await rig.settled()
    rig.assert_nothing_held()


class Full:
    """Both replicas hold short requests until they are let go: nothing but their limits keeps a further one away."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.gates = {"A": asyncio.Event(), "B": asyncio.Event()}
        self.calls: list[asyncio.Task[Reply]] = []
        rig.a.script, rig.b.script = (Script(hold=self.gates[name], body=completion()) for name in "AB")

    def ask(self, text: str) -> asyncio.Task[Reply]:
        self.calls.append(asyncio.create_task(self.rig.chat(prompt(text, 400))))
        return self.calls[-1]

    async def served(self, a: int, b: int) -> None:
        await until(lambda: (len(self.rig.a.requests), len(self.rig.b.requests)) == (a, b))

    async def wait(self, count: int) -> None:
        await until(lambda: len(self.rig.router.plane.waiting) == count)

    async def end(self) -> None:
        for gate in self.gates.values():
            gate.set()
        await asyncio.gather(*self.calls)
        await self.rig.settled()
        self.rig.assert_nothing_held()
        assert len(self.rig.router.plane.waiting) == 0


async def test_a_full_replica_is_passed_over(rig: Rig) -> None:
    """Of five at once it gets the one that it may have; without a limit it gets its part."""
    limit(rig, 1, None)
    full = Full(rig)
    for number in range(5):
        full.ask(f"number {number}")
    await full.served(1, 4)
    await full.end()
    assert "full" in {one.refusal for record in rig.records() for one in record.candidates}
    limit(rig, None, None)
    more = Full(rig)
    for number in range(6):
        more.ask(f"more {number}")
    await until(lambda: rig.served() == 11)
    assert len(rig.a.requests) > 2
    await more.end()


async def test_while_all_are_full_a_request_waits_and_goes_to_the_first_that_is_free(rig: Rig) -> None:
    limit(rig, 1, 1)
    full = Full(rig)
    for text in ("one", "two"):
        full.ask(text)
    await full.served(1, 1)
    third = full.ask("three")
    await full.wait(1)
    assert not third.done()
    rig.b.script = Script(body=completion())
    full.gates["B"].set()
    assert (await third).status == 200
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 2)
    await full.end()


async def test_another_limit_is_in_force_for_those_who_come_then(rig: Rig) -> None:
    limit(rig, 1, 1)
    full = Full(rig)
    for text in ("one", "two"):
        full.ask(text)
    await full.served(1, 1)
    limit(rig, 1, 2)
    full.ask("three")
    await full.served(1, 2)
    full.ask("four")
    await full.wait(1)
    await full.end()
    assert all(call.result().status == 200 for call in full.calls)


async def test_while_all_are_full_nobody_is_let_in_where_no_waiting_is_allowed(rig: Rig) -> None:
    limit(rig, 1, 1, ttft_p95_ms=1000, max_queue_ms=0)
    full = Full(rig)
    for text in ("one", "two"):
        full.ask(text)
    await full.served(1, 1)
    refused = await rig.chat(prompt("three", 400))
    assert (refused.status, refused.error["code"]) == (429, "shed")
    assert rig.served() == 2
    await full.end()


BROKEN = Script(status=500, body={"error": {"message": "broken", "code": 500}})


class Retried(Full):
    """B holds one request and may have no other; A is free and breaks on whatever comes next, so that it must go to B."""

    async def begin(self, **spec: Any) -> None:
        limit(self.rig, 0, 1)  # nothing for A, until B has its one
        self.ask("occupant")
        await self.served(0, 1)
        limit(self.rig, None, 1, **spec)
        self.rig.a.script = BROKEN


async def test_a_second_attempt_keeps_the_limit_and_waits_for_its_turn(rig: Rig) -> None:
    full = Retried(rig)
    await full.begin()
    again = full.ask("unlucky")
    await full.wait(1)
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 1)
    rig.b.script = Script(body=completion())
    full.gates["B"].set()
    assert (await again).status == 200
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 2)
    await full.end()
    record = rig.records()[-1]
    assert len(record.attempts) == 2
    assert (record.queue_s, record.outcome) == (None, "ok")
    assert record.cause is not None
    assert record.cause.parts_us["retry"] > 0  # the wait is part of what the failure cost


async def test_a_second_attempt_that_waits_holds_up_nobody_who_may_go_where_it_failed(rig: Rig) -> None:
    full = Retried(rig)
    await full.begin()
    full.ask("unlucky")
    await full.wait(1)
    rig.a.script = Script(body=completion())
    assert (await rig.chat(prompt("lucky", 400))).status == 200
    assert (len(rig.a.requests), len(rig.b.requests), len(rig.router.plane.waiting)) == (2, 1, 1)
    await full.end()


async def test_a_second_attempt_is_refused_when_its_time_is_over(rig: Rig) -> None:
    full = Retried(rig)
    await full.begin(ttft_p95_ms=1000, max_queue_ms=30)
    refused = await rig.chat(prompt("unlucky", 400))
    assert (refused.status, refused.error["code"]) == (429, "queue_timeout")
    assert refused.headers["Retry-After"]
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 1)
    await full.end()


async def test_a_client_that_leaves_gives_up_the_place_of_its_second_attempt(rig: Rig) -> None:
    full = Retried(rig)
    await full.begin()
    again = full.ask("unlucky")
    await full.wait(1)
    again.cancel()
    await full.wait(0)
    full.calls.remove(again)
    await full.end()
    assert len(rig.b.requests) == 1


async def test_second_attempts_have_a_bound(make_rig: MakeRig) -> None:
    rig = await make_rig(max_waiting=1)
    full = Retried(rig)
    await full.begin()
    full.ask("unlucky")
    await full.wait(1)
    refused = await rig.chat(prompt("as unlucky", 400))
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    await full.end()


async def test_a_second_attempt_hears_of_it_when_the_last_replica_goes(rig: Rig) -> None:
    full = Retried(rig)
    await full.begin()
    again = full.ask("unlucky")
    await full.wait(1)
    rig.router.plane.engine(rig.b.url).misses = 9
    rig.router.plane.waiting.wake(rig.router.plane)
    assert (await again).status == 502
    await full.end()
