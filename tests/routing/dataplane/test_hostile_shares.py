"""One tenant takes all it can of what all share in a router: places, memory, threads, sockets, room for records. Another is served all the while."""

from __future__ import annotations

import asyncio
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routing.dataplane import connections
from routing.dataplane.config import Config
from routing.dataplane.holdings import OFF_LOOP_BYTES, SMALL_BYTES, Holdings, Workshop
from tests.fakes.replica import Script, completion
from tests.fakes.rig import HI, KEY_A, KEY_B, Rig, until
from tests.routing.dataplane.conftest import MakeRig

BODY = msgspec.json.encode(HI)


def big(size: int) -> dict[str, Any]:
    return {"model": "m-7b", "messages": [{"role": "user", "content": "x" * size}]}


async def ask(rig: Rig, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    writer.write(text)
    return reader, writer


def request(body: bytes = BODY, key: str = KEY_A) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_requests_that_never_end_leave_places_to_others(make_rig: MakeRig) -> None:
    """Of 16 places acme gets 14; globex, which has none, gets one of those that are left."""
    rig = await make_rig(max_in_flight=16)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    asked = [asyncio.create_task(rig.chat()) for _ in range(20)]
    await until(lambda: sum(task.done() for task in asked) == 6)
    refused = [task.result() for task in asked if task.done()]
    assert {(reply.status, reply.error["code"]) for reply in refused} == {(503, "overloaded")}
    other = asyncio.create_task(rig.chat(key=KEY_B))
    await until(lambda: rig.served() == 15)
    gate.set()
    assert (await other).status == 200
    assert sorted(reply.status for reply in await asyncio.gather(*asked)) == [200] * 14 + [503] * 6
    assert (await rig.chat()).status == 200
    assert rig.router.plane.holdings.places.used == 0
    assert 'saltroute_share_refused_total{what="requests"} 6.0' in rig.router.plane.metrics.page().decode()


async def test_uploads_that_stop_hold_places_of_their_tenant_alone(make_rig: MakeRig) -> None:
    """A body that never comes takes a place too, and no bytes that did not arrive."""
    rig = await make_rig(max_in_flight=16)
    held = rig.router.plane.holdings
    writers = [(await ask(rig, request()[:-20]))[1] for _ in range(20)]
    await until(lambda: held.places.refused == 6)
    assert held.bytes.used == 14 * (len(BODY) - 20)
    assert (await rig.chat(key=KEY_B)).status == 200
    for writer in writers:
        writer.close()
    await rig.settled()
    assert (held.places.used, held.bytes.used) == (0, 0)


async def test_large_bodies_leave_memory_to_others(make_rig: MakeRig) -> None:
    """Bodies are counted while they are held; acme's are refused where they would be more than seven times what is left."""
    rig = await make_rig(max_held_bytes=8_000_000)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    asked = [asyncio.create_task(rig.chat(big(1_000_000))) for _ in range(10)]
    await until(lambda: sum(task.done() for task in asked) >= 3)
    assert {(task.result().status, task.result().error["code"]) for task in asked if task.done()} == {(503, "overloaded")}
    assert rig.router.plane.holdings.bytes.used <= 7_100_000
    other = asyncio.create_task(rig.chat(big(500_000), key=KEY_B))
    await until(lambda: rig.namespace(KEY_B).salt in [one.json["cache_salt"] for one in [*rig.a.requests, *rig.b.requests]])
    gate.set()
    assert (await other).status == 200
    await asyncio.gather(*asked)
    await rig.settled()
    assert rig.router.plane.holdings.bytes.used == 0
    assert "saltroute_held_bytes 0.0" in rig.router.plane.metrics.page().decode()


@pytest.mark.parametrize("count", [200_000, 10_000])
@pytest.mark.parametrize(("member", "status"), [("{},", 503), ("   ", 200)], ids=["values", "as many bytes"])
async def test_a_body_of_many_values_counts_as_what_it_takes(make_rig: MakeRig, member: str, status: int, count: int) -> None:
    """A fifth of a million empty objects are six hundred kilobytes on the wire, and twenty times as much once they are read; so it is with fewer."""
    rig = await make_rig(max_held_bytes=40 * count)
    body = b'{"model":"m-7b","messages":[{"role":"user","content":"hi"}],"x":[' + (member * count).encode() + b"1]}"
    assert (await rig.chat(body=body)).status == status
    assert rig.served() == (status == 200)
    await rig.settled()
    assert rig.router.plane.holdings.bytes.used == 0


def test_a_stream_is_not_cut_for_what_it_no_longer_holds(tmp_path: Path) -> None:
    """An owner may hold more than its share once others took what was left: then it gets nothing more, and keeps what it has."""
    holdings = Holdings(Config(router_id="r", state_dir=tmp_path, max_held_bytes=1_600_000))
    stream, other = holdings.admit("a"), holdings.admit("b")
    assert stream.passing(1_400_000)
    other.keep(100_000)
    assert not stream.passing(1_400_001)
    for now_bytes in (1_400_000, 1_200_000, 0, SMALL_BYTES):
        assert stream.passing(now_bytes)
        assert holdings.bytes.held("a") == (now_bytes if now_bytes > SMALL_BYTES else 0)
    assert stream.passing(100_000)
    assert (holdings.bytes.refused, holdings.bytes.used) == (1, 200_000)
    stream.close()
    other.close()
    assert (holdings.bytes.used, holdings.places.used) == (0, 0)


async def test_bodies_that_arrive_by_the_byte_are_whole(rig: Rig) -> None:
    """However many pieces there are, they are one buffer."""
    body = msgspec.json.encode(big(3000))
    reader, writer = await ask(rig, request(body)[: -len(body)])
    for place in range(len(body)):
        writer.write(body[place : place + 1])
        await writer.drain()
        if place % 50 == 0:
            await asyncio.sleep(0)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert rig.received()["messages"] == big(3000)["messages"]
    writer.close()


# ---- threads -----------------------------------------------------------------------------------------------------------


async def test_many_pieces_of_work_of_one_owner_do_not_come_before_anothers_one() -> None:
    """One thread, five of A's before B's first: B's is done second."""
    order: list[str] = []
    begun, gate = threading.Event(), threading.Event()

    def work(name: str) -> None:
        begun.set()
        gate.wait(10)
        order.append(name)

    with ThreadPoolExecutor(1) as threads:
        shop = Workshop(threads)
        tasks = [asyncio.create_task(shop.run("a", OFF_LOOP_BYTES + 1, work, f"a{number}")) for number in range(5)]
        await asyncio.to_thread(begun.wait, 10)
        tasks.append(asyncio.create_task(shop.run("b", OFF_LOOP_BYTES + 1, work, "b0")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
    assert order[:2] == ["a0", "b0"]
    assert sorted(order) == ["a0", "a1", "a2", "a3", "a4", "b0"]
    await until(lambda: not shop._queues)


async def test_whoever_leaves_does_not_get_a_second_thread() -> None:
    """A's first caller is gone, its thread is not: A's second waits for it, B does not."""
    begun, gate = threading.Event(), threading.Event()

    def stuck() -> str:
        begun.set()
        gate.wait(10)
        return "first"

    with ThreadPoolExecutor(2) as threads:
        shop = Workshop(threads)
        first = asyncio.create_task(shop.run("a", OFF_LOOP_BYTES + 1, stuck))
        await asyncio.to_thread(begun.wait, 10)
        first.cancel()
        gone, second = (asyncio.create_task(shop.run("a", OFF_LOOP_BYTES + 1, str, number)) for number in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        assert await shop.run("b", OFF_LOOP_BYTES + 1, str, 3) == "3"
        assert not second.done()
        gate.set()
        assert await second == "2"
    assert first.cancelled()
    assert gone.cancelled()
    await until(lambda: not shop._queues)


async def test_who_made_a_thread_work_rests_before_its_next_piece() -> None:
    """A rests for good here. Its second piece does not begin; B's does, and small work of A's too."""
    with ThreadPoolExecutor(2) as threads:
        shop = Workshop(threads, rest_s=lambda spent_s: 3600.0 + spent_s)
        assert await shop.run("a", OFF_LOOP_BYTES + 1, str, 1) == "1"
        second = asyncio.create_task(shop.run("a", OFF_LOOP_BYTES + 1, str, 2))
        assert await shop.run("b", OFF_LOOP_BYTES + 1, str, 3) == "3"
        assert await shop.run("a", OFF_LOOP_BYTES, str, 4) == "4"
        assert [len(waiting) for waiting in shop._queues.values()] == [1, 0]
        second.cancel()
    with ThreadPoolExecutor(2) as threads:
        shop = Workshop(threads, rest_s=lambda _: 0.0)
        assert [await shop.run("a", OFF_LOOP_BYTES + 1, str, number) for number in range(3)] == ["0", "1", "2"]


async def test_small_work_is_done_at_once() -> None:
    with ThreadPoolExecutor(1) as threads:
        shop = Workshop(threads)
        assert await shop.run("a", OFF_LOOP_BYTES, threading.get_ident) == threading.get_ident()
        assert await shop.run("a", OFF_LOOP_BYTES + 1, threading.get_ident) != threading.get_ident()


# ---- sockets -----------------------------------------------------------------------------------------------------------


async def test_silent_connections_make_room_and_busy_ones_stay(make_rig: MakeRig) -> None:
    """Four are allowed. One streams, three say nothing: each newcomer ends the oldest silent one."""
    rig = await make_rig(max_connections=4)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    busy, busy_writer = await ask(rig, request())
    await until(lambda: rig.served() == 1)
    silent = [await ask(rig, b"POST /v1/ch") for _ in range(3)]
    await until(lambda: len(rig.router.plane.holdings.connections) == 4)
    newcomer, newcomer_writer = await ask(rig, request(key=KEY_B))
    assert await asyncio.wait_for(silent[0][0].read(), 10) == b""
    await until(lambda: rig.served() == 2)
    gate.set()
    assert (await newcomer.readline()).startswith(b"HTTP/1.1 200 ")
    assert (await busy.readline()).startswith(b"HTTP/1.1 200 ")
    assert len(rig.router.plane.holdings.connections) == 4
    assert rig.router.plane.holdings.connections.closed == 1
    page = rig.router.plane.metrics.page().decode()
    assert "saltroute_connections 4.0" in page
    assert "saltroute_connections_closed_total 1.0" in page
    busy_writer.close()
    newcomer_writer.close()


async def test_a_silent_connection_goes_before_one_that_is_idle(make_rig: MakeRig) -> None:
    """Whoever has asked before, and is kept for the next request, stays, although it is the oldest."""
    rig = await make_rig(max_connections=2)
    kept, kept_writer = await ask(rig, request())
    assert (await kept.readline()).startswith(b"HTTP/1.1 200 ")
    await rig.settled()
    silent, silent_writer = await ask(rig, b"")
    await until(lambda: len(rig.router.plane.holdings.connections) == 2)
    newcomer, newcomer_writer = await ask(rig, b"")
    assert await asyncio.wait_for(silent.read(), 10) == b""
    kept_writer.write(request())
    await until(lambda: rig.served() == 2)
    for writer in (kept_writer, silent_writer, newcomer_writer):
        writer.close()
    del newcomer


async def test_where_all_connections_are_busy_the_newcomer_goes(make_rig: MakeRig) -> None:
    rig = await make_rig(max_connections=2)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    busy = [await ask(rig, request()) for _ in range(2)]
    await until(lambda: rig.served() == 2)
    newcomer, newcomer_writer = await ask(rig, request(key=KEY_B))
    assert await asyncio.wait_for(newcomer.read(), 10) == b""
    gate.set()
    for reader, _ in busy:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    later, later_writer = await ask(rig, request(key=KEY_B))  # in the place of one that is idle by now
    assert (await later.readline()).startswith(b"HTTP/1.1 200 ")
    for writer in (newcomer_writer, later_writer, *(writer for _, writer in busy)):
        writer.close()


def test_no_more_connections_than_the_process_may_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert connections.bound(8192) == (1024 - connections.RESERVED_FILES) // 2
        assert connections.bound(100) == 100
        connections.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_machine_without_sockets_is_no_engines_fault(rig: Rig) -> None:
    """The request is refused, no breaker counts it, and with a socket again it is served."""
    rig.a.script = rig.b.script = Script(body=completion(), then="close")
    assert (await rig.chat()).status == 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        refused = await rig.chat()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (refused.status, refused.error["code"]) == (503, "no_ready_replica")
    assert {engine.breaker.in_a_row for engine in rig.router.plane.engines.values()} == {0}
    assert 'saltroute_attempts_failed_total{cause="no_socket"} 2.0' in rig.router.plane.metrics.page().decode()
    assert (await rig.chat()).status == 200
    rig.assert_nothing_held()


# ---- records -----------------------------------------------------------------------------------------------------------


async def test_records_of_one_tenant_leave_room_for_anothers_while_valkey_is_away(make_rig: MakeRig) -> None:
    rig = await make_rig(record_queue=8)
    for _ in range(12):
        assert (await rig.chat()).status == 200
    assert (await rig.chat(key=KEY_B)).status == 200
    tenants = [record.tenant_id for record in rig.records()]
    assert (tenants.count(rig.acme.tenant_id), tenants.count(rig.globex.tenant_id)) == (7, 1)
    assert "saltroute_records_dropped_total 5.0" in rig.router.plane.metrics.page().decode()
