"""Who is asked, who is asked next, and who is left alone: retries, breakers and the errors that clients see."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fakes.replica import Script, chunk
from tests.fakes.rig import HI, Rig, bumped, endpoint, prefer_a, replica_entry
from tests.routing.dataplane.conftest import MakeRig

STREAM = {**HI, "stream": True}
TOO_LONG = {
    "error": {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError", "param": "input_tokens", "code": 400}
}


async def test_a_clients_own_400_passes_unchanged_and_opens_nothing(rig: Rig) -> None:
    script = Script(status=400, body=TOO_LONG)
    rig.a.script = rig.b.script = script
    for _ in range(20):
        reply = await rig.chat()
        assert (reply.status, reply.body) == (400, msgspec.json.encode(TOO_LONG))
    assert rig.served() == 20
    rig.a.script = rig.b.script = None
    assert (await rig.chat()).status == 200
    assert all(engine.breaker.in_a_row == 0 for engine in rig.router.plane.engines.values())
    assert {record.outcome for record in rig.records()[:20]} == {"client_error"}


@pytest.mark.parametrize("status", [409, 413, 415, 422])
async def test_other_statuses_of_the_clients_own_making_pass_too(rig: Rig, status: int) -> None:
    rig.a.script = rig.b.script = Script(status=status, body=TOO_LONG)
    reply = await rig.chat()
    assert (reply.status, reply.body, rig.served()) == (status, msgspec.json.encode(TOO_LONG), 1)


async def test_a_dead_replica_is_left_alone_after_a_few_tries(rig: Rig) -> None:
    prefer_a(rig)
    await rig.a.stop()
    for _ in range(10):
        assert (await rig.chat()).status == 200
    assert len(rig.b.requests) == 10
    engine = rig.router.plane.engines[rig.a.url]
    assert engine.sequences == rig.router.config.breaker_failures
    assert all(len({attempt.replica_id for attempt in record.attempts}) == len(record.attempts) for record in rig.records())


async def test_throttling_by_all_is_told_at_once_with_its_retry_after(rig: Rig) -> None:
    body = {"error": {"message": "slow down", "type": "rate_limit", "param": None, "code": 429}}
    rig.a.script = rig.b.script = Script(status=429, headers={"Retry-After": "3"}, body=body)
    reply = await rig.chat()
    assert (reply.status, reply.headers["Retry-After"], reply.json) == (429, "3", body)
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 1)
    assert all(engine.breaker.in_a_row == 0 for engine in rig.router.plane.engines.values())


async def test_throttling_by_one_is_answered_by_the_other(rig: Rig) -> None:
    prefer_a(rig)
    rig.a.script = Script(status=429, body={})
    assert (await rig.chat()).status == 200
    assert len(rig.b.requests) == 1


async def test_a_kept_connection_that_the_engine_closed_is_replaced_by_a_new_one(rig: Rig) -> None:
    rig.only_a()
    assert (await rig.chat()).status == 200
    # The engine reads the next request on the kept connection and closes without a byte, as uvicorn does at the end of its keep-alive.
    rig.a.scripts = [Script(hold=asyncio.Event())]
    asked = asyncio.create_task(rig.chat())
    await rig.a.wait_for(2)
    for task in list(rig.a._tasks):
        task.cancel()
    reply = await asked
    assert reply.status == 200
    assert len(rig.a.requests) == 3
    assert rig.router.plane.engines[rig.a.url].failures == 0
    assert [len(record.attempts) for record in rig.records()] == [1, 1]


async def test_connections_are_kept_for_less_time_than_engines_keep_them(rig: Rig) -> None:
    connector = rig.router.plane.session.connector
    assert connector is not None
    assert (connector._keepalive_timeout or 0) < 5


async def test_the_first_connection_is_closed_before_the_second_replica_is_asked(make_rig: MakeRig) -> None:
    rig = await make_rig(first_byte_s=0.2)
    prefer_a(rig)
    rig.a.script = Script(hold=asyncio.Event())
    seen_at_b: list[tuple[bool, int]] = []
    original = rig.b._behave

    def observed(received: Any) -> Script:
        seen_at_b.append((True, rig.router.plane.engines[rig.a.url].in_flight))
        return original(received)

    rig.b._behave = observed  # type: ignore[method-assign] # the fake notes the router's state at the moment it is asked
    reply = await rig.chat(STREAM)
    assert reply.status == 200
    await rig.a.requests[0].closed.wait()
    assert seen_at_b == [(True, 0)]
    await rig.settled()
    rig.assert_nothing_held()


async def test_no_answer_in_time_from_anybody_is_a_504(make_rig: MakeRig) -> None:
    rig = await make_rig(first_byte_s=0.1, answer_s=0.1)
    rig.a.script = rig.b.script = Script(hold=asyncio.Event())
    for body in (STREAM, HI):
        reply = await rig.chat(body)
        assert (reply.status, reply.error["code"]) == (504, "upstream_timeout")
    await rig.settled()
    assert [record.outcome for record in rig.records()] == ["timeout", "timeout"]
    rig.assert_nothing_held()


async def test_health_that_says_ok_does_not_outweigh_answers_that_fail(make_rig: MakeRig) -> None:
    rig = await make_rig(breaker_open_s=30.0)
    prefer_a(rig)
    rig.a.script = Script(status=500, body={"error": {"message": "EngineDeadError", "type": "InternalServerError", "code": 500}})
    rig.a.on_path["/health"] = Script(body=b"")
    engine = rig.router.plane.engines[rig.a.url]
    engine.health, engine.misses = "ok", 0
    for _ in range(30):
        assert (await rig.chat()).status == 200
    assert len(rig.a.requests) == 3
    assert rig.router.plane.engine_report(asyncio.get_running_loop().time())[rig.a.url]["condition"] == "failing (passive)"
    rig.a.script = None
    engine.breaker.opened_at_s = 0.0  # the open period is over
    while len(rig.a.requests) == 3:
        assert (await rig.chat()).status == 200
    assert engine.breaker.state(asyncio.get_running_loop().time()) == "closed"


async def test_a_half_open_breaker_lets_one_request_through(rig: Rig) -> None:
    prefer_a(rig)
    engine = rig.router.plane.engines[rig.a.url]
    engine.breaker.opened_at_s, engine.breaker.in_a_row = 0.0, 3
    gate = asyncio.Event()
    rig.a.script = Script(hold=gate, status=500, body={})
    asked = [asyncio.create_task(rig.chat()) for _ in range(6)]
    await rig.b.wait_for(5)
    assert len(rig.a.requests) == 1
    gate.set()
    assert {reply.status for reply in await asyncio.gather(*asked)} == {200}
    await rig.settled()
    rig.assert_nothing_held()


async def test_a_page_of_some_proxys_never_reaches_the_client(rig: Rig) -> None:
    rig.a.script = Script(status=502, headers={"Content-Type": "text/html"}, body=b"<html>" + b"x" * 2_000_000 + b"</html>")
    rig.b.script = Script(status=503, headers={"Content-Type": "text/plain"}, body=b"upstream connect error at 127.0.0.1")
    reply = await rig.chat()
    assert reply.status in (502, 503)
    assert (reply.headers["Content-Type"], reply.error["code"]) == ("application/json", "upstream_error")
    assert len(reply.body) < 4096
    assert b"html" not in reply.body
    assert b"127.0.0.1" not in reply.body


async def test_an_html_page_under_200_is_no_answer(rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(headers={"Content-Type": "text/html"}, body=b"<html>welcome</html>")
    reply = await rig.chat()
    assert (reply.status, reply.error["code"]) == (502, "upstream_error")


@pytest.mark.parametrize("size_bytes", [1, 100_000])  # one write, and more
@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 404])
async def test_what_says_that_we_are_set_up_wrongly_is_not_the_clients(rig: Rig, status: int, size_bytes: int) -> None:
    rig.a.script = rig.b.script = Script(status=status, headers={"Location": "http://169.254.169.254/"}, body={"error": "Unauthorized"})
    reply = await rig.chat({**HI, "messages": [{"role": "user", "content": "x" * size_bytes}]})
    assert (reply.status, reply.error["code"]) == (502, "upstream_error")
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 1)


async def test_unknown_model_cold_model_and_the_list_are_told_apart(rig: Rig) -> None:
    pool = msgspec.structs.replace(rig.acme.pools[0], id=rig.acme.tenant_id, replicas=())
    rig.publish(bumped(rig.acme, pools=(*rig.acme.pools, pool), endpoints=(*rig.acme.endpoints, endpoint(pool, "m-cold"))))
    unknown = await rig.chat({**HI, "model": "nope"})
    assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "model_not_found", "model")
    cold = await rig.chat({**HI, "model": "m-cold"})
    assert (cold.status, cold.error["code"]) == (503, "no_ready_replica")
    assert cold.headers["Retry-After"]
    await rig.a.stop()
    await rig.b.stop()
    assert (await rig.call("GET", "/v1/models")).status == 200
    dead = await rig.chat()
    assert (dead.status, dead.error["code"]) == (503, "no_ready_replica")


@pytest.mark.parametrize("state", ["draining", "paused"])
async def test_a_replica_taken_out_by_its_operator_gets_nothing_new(rig: Rig, state: Any) -> None:
    replicas = (replica_entry(rig.a, state=state), replica_entry(rig.b))
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=replicas),)))
    for _ in range(4):
        await rig.chat()
    assert (len(rig.a.requests), len(rig.b.requests)) == (0, 4)
    assert {one.refusal for one in rig.records()[0].candidates} == {None, state}


async def test_a_hundred_requests_do_not_wait_for_one_that_never_answers(make_rig: MakeRig) -> None:
    rig = await make_rig(answer_s=6.0)
    rig.a.script = Script(hold=asyncio.Event())
    replies = await asyncio.gather(*(rig.chat() for _ in range(100)))
    assert {reply.status for reply in replies} == {200}
    served = len(rig.a.requests)
    for _ in range(10):
        assert (await rig.chat()).status == 200
    assert len(rig.a.requests) == served  # the breaker is open
    await rig.settled()
    rig.assert_nothing_held()


async def test_a_removed_replica_ends_its_streams_and_is_forgotten(rig: Rig) -> None:
    prefer_a(rig)
    gate = asyncio.Event()
    rig.a.script = Script(sse=[chunk("one"), chunk(finish="stop"), "[DONE]"], gates={1: gate})
    stream = asyncio.create_task(rig.chat(STREAM))
    await rig.a.wait_for(1)
    for document in (rig.acme, rig.globex):
        rig.publish(bumped(document, pools=(msgspec.structs.replace(document.pools[0], replicas=(replica_entry(rig.b),)),)))
    assert (await rig.chat()).status == 200
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 1)
    assert rig.a.url in rig.router.plane.engines
    gate.set()
    assert (await stream).body.endswith(b"data: [DONE]\n\n")
    await rig.settled()
    assert rig.a.url not in rig.router.plane.engines
    assert rig.a.url not in rig.router.plane.index.sizes()


async def test_a_replica_that_begins_every_stream_and_finishes_none_is_left_alone(rig: Rig) -> None:
    prefer_a(rig)
    rig.a.script = Script(sse=[chunk("one"), chunk("two")], then="rst")
    while rig.router.plane.engines[rig.a.url].breaker.opened_at_s is None:
        assert (await rig.chat(STREAM)).status == 200
    assert len(rig.a.requests) == 3
