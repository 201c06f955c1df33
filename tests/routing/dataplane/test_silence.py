"""Requests on an engine that falls silent before it has begun to answer: given up as soon as that is sure, and answered by another.

A silent engine accepts connections and says nothing, as a process does that was stopped (SIGSTOP). Checks of its health are made one by one, so no
test waits for a clock of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from namespaces.core import probe
from routing.core.snapshot import PolicyEntry
from routing.dataplane.feeds import load
from routing.dataplane.patience import BEAT_S, Pulse
from routing.simulator.config import ReplicaConfig
from routing.simulator.fleet import running_fleet
from tests.fakes.replica import FakeReplica, Script, chunk, completion, usage
from tests.fakes.rig import HI, KEY_B, PUBLISH, Reply, Rig, bumped, endpoint, named, prefer_a, replica_entry, until
from tests.fakes.split import ASKED, PrefillFake, split
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.test_probes import claims, send
from tests.routing.dataplane.test_quotas import of, put, used

STREAM = {**HI, "stream": True}
CHECK_S = 0.3  # that a check waits; long beside what a busy machine takes from the event loop, else a check says nothing


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """A is first, and has all the time of the world for its answers."""
    rig = await make_rig(connect_s=CHECK_S)
    prefer_a(rig)
    await first_checks(rig)
    return rig


async def first_checks(rig: Rig) -> None:
    """Let the router look at each engine once by itself, as it does when it begins; from then on tests make the checks."""
    await until(lambda: all(engine.health == "ok" for engine in rig.router.plane.engines.values()))


def silence(fake: FakeReplica) -> None:
    """From now on it accepts what comes and says nothing."""
    fake.script = Script(hold=asyncio.Event())
    fake.on_path["/health"] = Script(hold=asyncio.Event())


async def check(rig: Rig, fake: FakeReplica, times: int = 1) -> None:
    """Checks of its health."""
    for _ in range(times):
        await load.check(rig.router.plane, rig.router.plane.replicas[fake.url])


def unanswered(rig: Rig, meaning: str) -> int:
    return int(rig.router.plane.metrics.checks_unanswered.labels(meaning=meaning)._value.get())


async def silent_checks(rig: Rig, fake: FakeReplica, times: int) -> None:
    """As many checks that say so: on a machine that held the router up, one says nothing and is made again."""
    wanted = unanswered(rig, "silent") + times
    while unanswered(rig, "silent") < wanted:
        await check(rig, fake)


async def asked_of(rig: Rig, fake: FakeReplica, body: Any = None, **more: Any) -> asyncio.Task[Reply]:
    """A request that has reached the fake."""
    count = len(fake.requests)
    task = asyncio.create_task(rig.chat(HI if body is None else body, **more))
    await fake.wait_for(count + 1)
    return task


def tries(rig: Rig) -> list[list[tuple[str, str | None]]]:
    """Of each record the replicas asked, and how that went."""
    names = {str(entry.id): entry.name for entry in rig.acme.pools[0].replicas}
    return [[(names[attempt.replica_id], attempt.error) for attempt in record.attempts] for record in rig.records()]


async def assert_still_asked(rig: Rig, fake: FakeReplica, count: int) -> None:
    """So many requests are at the fake, and none was given up; whoever was has had time to go on, while the router answered something else."""
    for _ in range(3):
        assert (await rig.call("GET", "/v1/models")).status == 200
    assert (rig.router.plane.engines[fake.url].in_flight, rig.router.plane.in_flight) == (count, count)
    assert not [error for record in rig.records() for error in [attempt.error for attempt in record.attempts] if error is not None]


async def assert_nothing_held(rig: Rig) -> None:
    await rig.settled()
    rig.assert_nothing_held()
    assert not [one for engine in rig.router.plane.engines.values() for one in engine.awaited]
    waiting = rig.router.plane.waiting
    assert len(waiting) == len(waiting.bursts) == 0
    assert all(prefix.idle() for prefix in waiting.bursts._gate._prefixes.values())


@pytest.mark.parametrize("body", [STREAM, HI], ids=["stream", "whole"])
async def test_what_a_silent_engine_has_not_begun_to_answer_goes_to_another(rig: Rig, body: dict[str, Any]) -> None:
    limit = of("tenant", requests_per_minute=5)
    put(rig, limit)
    silence(rig.a)
    asked = await asked_of(rig, rig.a, body)
    await silent_checks(rig, rig.a, 2)
    assert not rig.router.plane.engines[rig.a.url].reachable()  # nobody new is sent there
    await assert_still_asked(rig, rig.a, 1)
    await silent_checks(rig, rig.a, 1)
    assert (await asked).status == 200
    await rig.a.requests[0].closed.wait()
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 1)
    assert tries(rig) == [[("A", "unreachable"), ("B", None)]]
    assert rig.records()[0].outcome == "ok"
    assert rig.router.plane.index.size(rig.a.url) == 0
    assert used(rig, limit, "requests_per_minute") == 1
    assert 'saltroute_attempts_failed_total{cause="unreachable"} 1.0' in rig.router.plane.metrics.page().decode()
    await assert_nothing_held(rig)


async def test_an_answer_that_only_takes_long_is_waited_for_while_health_is_answered(rig: Rig) -> None:
    """The control: silent on the request, not on its health."""
    gate = asyncio.Event()
    rig.a.script = Script(hold=gate, body=completion())
    asked = await asked_of(rig, rig.a)
    await check(rig, rig.a, 6)
    await assert_still_asked(rig, rig.a, 1)
    gate.set()
    assert (await asked).status == 200
    assert tries(rig) == [[("A", None)]]


async def test_a_stream_whose_headers_alone_have_come_is_given_up_too(rig: Rig) -> None:
    """Engines send a stream's headers before they compute the prompt."""
    rig.a.script = Script(sse=[chunk("late")], gates={0: asyncio.Event()})
    rig.a.on_path["/health"] = Script(hold=asyncio.Event())
    asked = await asked_of(rig, rig.a, STREAM)
    engine = rig.router.plane.engines[rig.a.url]
    await until(lambda: engine.words == 1)
    await silent_checks(rig, rig.a, 3)
    reply = await asked
    assert reply.status == 200
    assert b"late" not in reply.body
    assert tries(rig) == [[("A", "unreachable"), ("B", None)]]
    await assert_nothing_held(rig)


async def test_one_answered_check_in_between_begins_the_count_anew(rig: Rig) -> None:
    silence(rig.a)
    asked = await asked_of(rig, rig.a)
    stopped = rig.a.on_path["/health"]
    for _ in range(2):
        rig.a.on_path["/health"] = stopped
        await silent_checks(rig, rig.a, 2)
        rig.a.on_path["/health"] = Script(body=b"")
        await check(rig, rig.a)
    await assert_still_asked(rig, rig.a, 1)
    rig.a.on_path["/health"] = stopped
    await silent_checks(rig, rig.a, 3)
    assert (await asked).status == 200


async def test_silence_from_before_the_request_does_not_count(rig: Rig) -> None:
    """A request that was sent between two checks is waited for as long as any other."""
    silence(rig.a)
    await silent_checks(rig, rig.a, 1)
    asked = await asked_of(rig, rig.a)
    await silent_checks(rig, rig.a, 2)
    await assert_still_asked(rig, rig.a, 1)
    await silent_checks(rig, rig.a, 1)
    assert (await asked).status == 200


@pytest.mark.parametrize("says", [503, 500])
async def test_an_engine_that_says_it_is_unwell_speaks(rig: Rig, says: int) -> None:
    """It answers requests with what is wrong, or has them under way."""
    gate = asyncio.Event()
    rig.a.script, rig.a.on_path["/health"] = Script(hold=gate, body=completion()), Script(status=says, body=b"")
    asked = await asked_of(rig, rig.a)
    await check(rig, rig.a, 6)
    assert not rig.router.plane.engines[rig.a.url].reachable()
    await assert_still_asked(rig, rig.a, 1)
    gate.set()
    assert (await asked).status == 200


async def test_an_engine_that_sends_tokens_to_others_is_busy_and_not_silent(rig: Rig) -> None:
    """Its health check comes late, as under load; who waits for a first byte there goes on waiting."""
    gate, gates = asyncio.Event(), {place: asyncio.Event() for place in range(1, 7)}
    rig.a.scripts = [Script(sse=[chunk("t")] * 6 + [chunk(finish="stop")], gates=gates), Script(hold=gate, body=completion())]
    rig.a.on_path["/health"] = Script(hold=asyncio.Event())
    engine = rig.router.plane.engines[rig.a.url]
    stream = await asked_of(rig, rig.a, STREAM)
    rig.router.plane.endpoint_state(rig.acme.endpoints[0].id).sequence = 0  # A's turn once more
    asked = await asked_of(rig, rig.a)
    for place in range(1, 6):
        words, looks = engine.words, len(rig.a.probes)
        checking = asyncio.create_task(check(rig, rig.a))
        await until(lambda looks=looks: len(rig.a.probes) > looks)  # type: ignore[misc] # a default binds it
        gates[place].set()
        await until(lambda words=words: engine.words > words)  # type: ignore[misc] # as above
        await checking
    assert unanswered(rig, "silent") == 0
    await assert_still_asked(rig, rig.a, 2)
    await silent_checks(rig, rig.a, 3)  # now nothing comes from it any more
    assert (await asked).status == 200
    assert len(rig.b.requests) == 1
    gates[6].set()
    assert (await stream).status == 200


async def test_a_router_that_is_held_up_itself_does_not_blame_the_engine(rig: Rig) -> None:
    silence(rig.a)
    asked = await asked_of(rig, rig.a)
    loop = asyncio.get_running_loop()
    for _ in range(4):
        loop.call_later(0.01, time.sleep, CHECK_S)  # what holds the loop up
        await check(rig, rig.a)
    assert (unanswered(rig, "unsure"), unanswered(rig, "silent")) == (4, 0)
    await assert_still_asked(rig, rig.a, 1)
    await silent_checks(rig, rig.a, 3)
    assert (await asked).status == 200


@pytest.mark.parametrize("stopped", [True, False])
async def test_an_engine_that_is_stopped_after_its_health_check_is_not_waited_for_page_by_page(rig: Rig, stopped: bool) -> None:
    """Its health is asked again as soon as the page that says which build it is does not come; the control is asked for all of them."""
    engine = rig.router.plane.engines[rig.a.url]
    await until(lambda: engine.facts_due_s > time.monotonic())  # the router's first look is over
    if stopped:
        for path in ("/metrics", "/version", "/v1/models", "/kv_event_sources"):
            rig.a.on_path[path] = Script(hold=asyncio.Event())
    engine.facts_due_s = 0.0
    before = len(rig.a.probes)
    await check(rig, rig.a)
    asked = [received.path for received in rig.a.probes[before:]]
    assert asked == ["/health", "/metrics", "/version", *(() if stopped else ("/v1/models", "/kv_event_sources"))]


async def test_a_pulse_tells_a_loop_that_was_held_up_from_one_that_was_free() -> None:
    for held_s in (0.0, 6 * BEAT_S):
        done = asyncio.Event()
        with Pulse() as pulse:
            asyncio.get_running_loop().call_later(BEAT_S / 2, time.sleep, held_s)
            asyncio.get_running_loop().call_later(3 * BEAT_S, done.set)
            await done.wait()
            late_s = pulse.late_s
        assert held_s == 0.0 or late_s >= held_s - BEAT_S


async def test_a_router_that_may_not_connect_says_nothing_of_the_engine(rig: Rig) -> None:
    """What is under way at an address that is forbidden now is not given up for that."""
    silence(rig.a)
    asked = await asked_of(rig, rig.a)
    await silent_checks(rig, rig.a, 1)  # on the connection that was kept
    connector = rig.router.plane.session.connector
    assert connector is not None
    allowed, connector._socket_factory = connector._socket_factory, load.guard.guarded_socket(())  # type: ignore[attr-defined] # the guard of a stricter operator
    before = unanswered(rig, "unsure")
    await check(rig, rig.a, 4)
    assert (unanswered(rig, "unsure") - before, unanswered(rig, "silent")) == (4, 1)
    await assert_still_asked(rig, rig.a, 1)
    connector._socket_factory = allowed  # type: ignore[attr-defined]
    await silent_checks(rig, rig.a, 2)
    assert (await asked).status == 200


@pytest.mark.parametrize("body", [STREAM, HI], ids=["stream", "whole"])
async def test_where_nobody_else_may_serve_it_the_request_fails_as_one_that_was_not_answered_in_time(rig: Rig, body: dict[str, Any]) -> None:
    rig.only_a()
    silence(rig.a)
    asked = await asked_of(rig, rig.a, body)
    await silent_checks(rig, rig.a, 3)
    reply = await asked
    assert (reply.status, reply.error["code"]) == (504, "upstream_timeout")
    assert rig.records()[0].outcome == "timeout"
    await assert_nothing_held(rig)


async def test_two_engines_are_asked_at_most(rig: Rig) -> None:
    """However many are silent: an engine that plays dead makes nobody send a prompt around."""
    third = FakeReplica("C")
    await third.start()
    rig.extra.append(third)
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=(*rig.acme.pools[0].replicas, replica_entry(third))),)))
    await first_checks(rig)
    fakes = (rig.a, rig.b, third)
    for fake in fakes:
        silence(fake)
    asked = asyncio.create_task(rig.chat())
    for count in (1, 2):
        await until(lambda count=count: sum(len(fake.requests) for fake in fakes) == count)  # type: ignore[misc] # a default binds it
        (busy,) = [fake for fake in fakes if rig.router.plane.engines[fake.url].awaited]
        await silent_checks(rig, busy, 3)
    assert (await asked).status == 504
    assert sum(len(fake.requests) for fake in fakes) == 2
    await assert_nothing_held(rig)


async def test_a_client_that_leaves_a_silent_engine_leaves_nothing_behind(rig: Rig) -> None:
    silence(rig.a)
    asked = await asked_of(rig, rig.a)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await assert_nothing_held(rig)
    await silent_checks(rig, rig.a, 3)
    assert len(rig.b.requests) == 0
    assert rig.records()[0].outcome == "client_cancelled"


# ---- many at once ------------------------------------------------------------------------------------------------------


def crowd(rig: Rig, *, room: int) -> None:
    """One pool for both tenants, in which B takes ``room`` requests at once."""
    replicas = (rig.acme.pools[0].replicas[0], msgspec.structs.replace(rig.acme.pools[0].replicas[1], max_concurrency=room))
    pool = msgspec.structs.replace(rig.acme.pools[0], shared=True, replicas=replicas)
    patient = PolicyEntry(name="patient", version=1, spec={"max_queue_ms": 60_000})
    turns = rig.acme.endpoints[0].routing_policy
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, slo=patient, routing_policy=turns),)))
    rig.publish(bumped(rig.globex, pools=(pool,), endpoints=(endpoint(pool, id=rig.globex.endpoints[0].id, slo=patient, routing_policy=turns),)))


async def stranded(rig: Rig, count: int) -> list[asyncio.Task[Reply]]:
    """Requests of acme's that all wait for A, which is silent."""
    silence(rig.a)
    asked = []
    for number in range(count):
        rig.router.plane.endpoint_state(rig.acme.endpoints[0].id).sequence = 0  # A's turn
        asked.append(await asked_of(rig, rig.a, prompt(f"number {number}")))
    return asked


def prompt(text: str) -> dict[str, Any]:
    """About 4,000 tokens: a whole turn of a tenant's."""
    return {"model": "m-7b", "messages": [{"role": "user", "content": f"{text} " * (17_000 // len(text))}]}


async def test_those_of_a_silent_engine_go_on_in_turns_with_others_and_never_more_than_there_is_room(rig: Rig) -> None:
    """Another tenant's request that comes after them does not wait for all of them."""
    crowd(rig, room=2)
    asked = await stranded(rig, 12)
    told = completion(usage=usage(prompt=4000))  # what a turn really cost
    held = Script(hold=asyncio.Event(), body=told)
    rig.b.script = held
    await silent_checks(rig, rig.a, 3)
    await rig.b.wait_for(2)
    await until(lambda: len(rig.router.plane.waiting) == 10)
    engine = rig.router.plane.engines[rig.b.url]
    assert engine.in_flight == 2
    other = asyncio.create_task(rig.chat(prompt("another tenant's"), key=KEY_B))
    await until(lambda: len(rig.router.plane.waiting) == 11)
    most = 0

    def observed(received: Any) -> Script:
        nonlocal most
        most = max(most, engine.in_flight)
        return Script(body=told)

    rig.b._behave, rig.b.script = observed, None  # type: ignore[method-assign] # the fake notes the router's count when it is asked
    assert held.hold is not None
    held.hold.set()
    assert {reply.status for reply in await asyncio.gather(*asked, other)} == {200}
    assert most <= 2
    order = [b"another tenant's" in received.body for received in rig.b.requests]
    assert order.index(True) < 8  # of 13
    first_time = [record.queue_s is not None for record in rig.records()]
    assert first_time.count(True) == 1  # the other tenant's: the wait of the others is part of what the failed attempt cost
    await assert_nothing_held(rig)


async def test_the_queues_bound_holds_for_them_too(make_rig: MakeRig) -> None:
    rig = await make_rig(connect_s=CHECK_S, max_waiting=3)
    prefer_a(rig)
    await first_checks(rig)
    crowd(rig, room=1)
    asked = await stranded(rig, 6)
    gate = asyncio.Event()
    rig.b.script = Script(hold=gate, body=completion())
    await silent_checks(rig, rig.a, 3)
    await until(lambda: sum(task.done() for task in asked) == 2)
    gate.set()
    replies = await asyncio.gather(*asked)
    assert sorted(reply.status for reply in replies) == [200, 200, 200, 200, 429, 429]
    assert {reply.error["code"] for reply in replies if reply.status == 429} == {"queue_full"}
    await assert_nothing_held(rig)


async def test_the_breaker_opens_and_one_request_tries_when_the_engine_is_back(rig: Rig) -> None:
    crowd(rig, room=100)
    asked = await stranded(rig, 3)
    await silent_checks(rig, rig.a, 3)
    assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
    engine = rig.router.plane.engines[rig.a.url]
    assert engine.breaker.state(time.monotonic()) == "open"
    rig.a.script = None
    rig.a.on_path["/health"] = Script(body=b"")
    await check(rig, rig.a)
    assert engine.breaker.state(time.monotonic()) == "half_open"


async def test_one_that_waits_may_go_back_to_an_engine_that_is_back_and_no_third_time(rig: Rig) -> None:
    crowd(rig, room=1)
    rig.b.script = Script(hold=asyncio.Event())
    rig.router.plane.endpoint_state(rig.acme.endpoints[0].id).sequence = 1  # B's turn
    occupant = await asked_of(rig, rig.b)
    (asked,) = await stranded(rig, 1)
    await silent_checks(rig, rig.a, 3)
    await until(lambda: len(rig.router.plane.waiting) == 1)
    stopped = rig.a.on_path["/health"]
    rig.a.on_path["/health"] = Script(body=b"")
    await check(rig, rig.a)
    await rig.a.wait_for(2)
    rig.a.on_path["/health"] = stopped
    await silent_checks(rig, rig.a, 3)
    assert (await asked).status == 504
    assert (len(rig.a.requests), len(rig.b.requests)) == (2, 1)
    occupant.cancel()
    await asyncio.gather(occupant, return_exceptions=True)
    await assert_nothing_held(rig)


async def test_who_led_a_burst_leads_it_where_it_goes_on(make_rig: MakeRig) -> None:
    """The prefix is computed by nobody meanwhile, and nobody stays noted as computing it."""
    rig = await make_rig(connect_s=CHECK_S)
    await first_checks(rig)
    silence(rig.a)
    silence(rig.b)
    asked = asyncio.create_task(rig.chat(prompt("a long one")))
    await until(lambda: rig.served() == 1)
    first, second = (rig.a, rig.b) if rig.a.requests else (rig.b, rig.a)
    second.script = None
    await silent_checks(rig, first, 3)
    assert (await asked).status == 200
    await assert_nothing_held(rig)


# ---- other ways to an engine -------------------------------------------------------------------------------------------


async def test_a_prefill_replica_that_falls_silent_is_left_out(make_rig: MakeRig) -> None:
    rig = await make_rig(fakes=(FakeReplica("A"), PrefillFake("B")), connect_s=CHECK_S)
    split(rig)
    await first_checks(rig)
    silence(rig.b)
    asked = await asked_of(rig, rig.b, ASKED)
    await silent_checks(rig, rig.b, 3)
    assert (await asked).status == 200
    await rig.b.requests[0].closed.wait()
    (record,) = rig.records()
    assert [(one.part, one.error) for one in record.attempts] == [("prefill", "unreachable"), ("answer", None)]
    assert record.transfer is not None
    assert (record.transfer.result, record.transfer.orphaned) == ("prefill_failed", False)
    assert rig.router.plane.engines[rig.b.url].breaker.in_a_row == 1
    await assert_nothing_held(rig)


async def test_a_decode_replica_that_falls_silent_is_to_blame_itself_and_not_the_way_to_it(make_rig: MakeRig) -> None:
    """What was computed for it elsewhere nobody fetched, as far as anybody knows."""
    rig = await make_rig(fakes=(FakeReplica("A"), PrefillFake("B")), connect_s=CHECK_S)
    third = FakeReplica("C")
    await third.start()
    rig.extra.append(third)
    split(rig, replica_entry(third, isolation="isolated"))
    await first_checks(rig)
    silence(rig.a)
    asked = await asked_of(rig, rig.a, ASKED)
    await silent_checks(rig, rig.a, 3)
    assert (await asked).status == 200
    assert "kv_transfer_params" not in third.requests[0].json
    (record,) = rig.records()
    assert [(one.part, one.error) for one in record.attempts] == [("prefill", None), ("answer", "unreachable"), ("answer", None)]
    assert record.transfer is not None
    assert (record.transfer.result, record.transfer.orphaned) == ("decode_failed", True)
    plane = rig.router.plane
    assert plane.engines[rig.a.url].breaker.in_a_row == 1
    assert plane.links.take(rig.b.url, rig.a.url).breaker.in_a_row == 0
    await assert_nothing_held(rig)


async def test_a_probe_of_an_audit_is_not_sent_twice(make_rig: MakeRig) -> None:
    """The engine may have computed it: sent again, it would find its own prompt, and that would look like another's."""
    rig = await make_rig(connect_s=CHECK_S)
    await first_checks(rig)
    silence(rig.a)
    asked = asyncio.create_task(send(rig, probe.sign(claims(rig), PUBLISH)))
    await rig.a.wait_for(1)
    await silent_checks(rig, rig.a, 3)
    reply = await asked
    assert (reply.status, reply.error["code"]) == (504, "upstream_timeout")
    assert rig.served() == 1
    assert rig.router.plane.engines[rig.a.url].breaker.in_a_row == 0  # an audit neither opens a door for clients nor closes one
    await assert_nothing_held(rig)


# ---- a process ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def engine_process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A simulated engine as a process of its own, and its address."""
    command = [sys.executable, "-m", "routing.simulator", "--model", "m-7b", "--no-kv-events", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield process, dict(word.split("=", 1) for word in line.decode().split() if "=" in word)["url"]
    finally:
        process.kill()
        await process.wait()


async def test_requests_of_a_process_that_is_stopped_are_answered_by_another(make_rig: MakeRig) -> None:
    """By the router's own checks, at its own pace."""
    rig = await make_rig(connect_s=CHECK_S, scrape_s=0.05)
    async with engine_process() as (process, url), running_fleet(ReplicaConfig(model="m-7b"), replicas=1) as fleet:
        first, second = sorted((named("replica P"), named("replica Q")))
        replicas = (replica_entry(url, "P"), replica_entry(fleet.replicas[0].url, "Q"))
        replicas = (msgspec.structs.replace(replicas[0], id=first), msgspec.structs.replace(replicas[1], id=second))
        turns = PolicyEntry(name="turns", version=1, spec={"policy": "round_robin"})
        pool = msgspec.structs.replace(rig.acme.pools[0], replicas=replicas)
        rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, routing_policy=turns),)))
        engine = rig.router.plane.engines[url]
        await until(lambda: engine.health == "ok")
        os.kill(process.pid, signal.SIGSTOP)
        asked = []
        for body in (STREAM, HI):
            rig.router.plane.endpoint_state(rig.acme.endpoints[0].id).sequence = 0  # its turn
            asked.append(asyncio.create_task(rig.chat({**body, "max_tokens": 2})))
            await until(lambda: engine.in_flight == len(asked) or engine.misses > 1)
        assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
        assert {tuple(one) for one in tries(rig)} == {(("P", "unreachable"), ("Q", None))}
        os.kill(process.pid, signal.SIGCONT)
        await until(lambda: engine.health == "ok")
        await assert_nothing_held(rig)
