"""A client that leaves frees the engine at once; whatever a request took is given back, however it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fakes.replica import Script, chunk, event, usage
from tests.fakes.rig import HI, KEY_A, KEY_B, Rig, prefer_a, until
from tests.routing.dataplane.conftest import MakeRig

STREAM = {**HI, "stream": True}


async def _send(rig: Rig, body: Any = STREAM, key: str = KEY_A) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    encoded = msgspec.json.encode(body)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(encoded)}\r\n\r\n".encode() + encoded
    )
    return reader, writer


@pytest.mark.parametrize("body", [HI, STREAM])
@pytest.mark.parametrize("half_close", [False, True])
async def test_a_client_that_leaves_before_the_answer_aborts_the_engine(rig: Rig, body: Any, half_close: bool) -> None:
    prefer_a(rig)
    rig.a.script = Script(hold=asyncio.Event())
    _, writer = await _send(rig, body)
    received = await rig.a.wait_for(1)
    if half_close:
        writer.write_eof()
    else:
        writer.close()
    async with asyncio.timeout(1):
        await received.closed.wait()
        await rig.settled()
    rig.assert_nothing_held()
    assert len(rig.b.requests) == 0
    (record,) = rig.records()
    assert (record.outcome, record.status) == ("client_cancelled", 499)
    assert rig.router.plane.engines[rig.a.url].breaker.in_a_row == 0
    writer.close()


async def test_a_client_that_leaves_in_mid_stream_aborts_the_engine(rig: Rig) -> None:
    prefer_a(rig)
    rig.a.script = Script(sse=[chunk("one"), chunk("two")], gates={1: asyncio.Event()})
    reader, writer = await _send(rig)
    await reader.readuntil(b"one")
    writer.close()
    async with asyncio.timeout(1):
        await rig.a.requests[0].closed.wait()
        await rig.settled()
    rig.assert_nothing_held()


async def test_a_cancelled_prompt_counts_as_resident_once_the_engine_answered_with_headers(rig: Rig) -> None:
    prefer_a(rig)
    long = {"model": "m-7b", "messages": [{"role": "user", "content": "x" * 2000}], "stream": True}
    rig.a.script = Script(pieces=[b": hello\n\n", b""], gates={1: asyncio.Event()})
    _, writer = await _send(rig, long)
    await rig.a.wait_for(1)
    await until(lambda: any(engine.ledger.entries for engine in rig.router.plane.engines.values()))
    await until(lambda: any(flight for flight in rig.router.plane.tasks))
    await asyncio.sleep(0.05)
    writer.close()
    await rig.settled()
    held, _ = rig.router.plane.index.sizes()[rig.a.url]
    assert held > 0
    rig.assert_nothing_held()


async def test_a_refused_prompt_leaves_no_residency(rig: Rig) -> None:
    long = {"model": "m-7b", "messages": [{"role": "user", "content": "x" * 2000}]}
    rig.a.script = rig.b.script = Script(status=400, body={"error": {"message": "no", "type": "BadRequestError", "code": 400}})
    await rig.chat(long)
    assert {held for held, _ in rig.router.plane.index.sizes().values()} == {0}


async def test_abandoned_streams_keep_the_usage_that_was_seen(rig: Rig) -> None:
    events = [event({**chunk("x"), "usage": usage(100, count)}) for count in range(1, 50)]
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(pieces=events, gates={3: gate})
    reader, writer = await _send(rig)
    for _ in range(3):
        await reader.readuntil(b'"x"')
    writer.close()
    await rig.settled()
    (record,) = rig.records()
    assert record.prompt_tokens == 100
    assert record.completion_tokens in (3, 4)
    assert record.partial_usage


async def test_zeros_that_an_engine_reported_are_not_replaced_by_guesses(rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(pieces=[event({**chunk("x"), "usage": usage(0, 0)})], then="rst")
    await rig.chat(STREAM)
    await rig.settled()
    (record,) = rig.records()
    assert (record.prompt_tokens, record.completion_tokens) == (0, 0)


async def test_a_request_cancelled_before_dispatch_has_no_usage(rig: Rig) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {KEY_A}\r\nContent-Length: 500\r\n\r\n{{".encode())
    await until(lambda: rig.router.plane.in_flight == 1)
    writer.close()
    await rig.settled()
    (record,) = rig.records()
    assert (record.outcome, record.prompt_tokens, record.completion_tokens, record.attempts) == ("client_cancelled", None, None, ())
    assert rig.served() == 0


async def test_an_upload_that_stops_is_not_waited_for(make_rig: MakeRig) -> None:
    rig = await make_rig(idle_s=0.1)
    answer = await rig.raw(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {KEY_A}\r\nContent-Length: 500\r\n\r\n{{".encode()
    )
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_after_a_storm_of_every_ending_all_counts_are_exactly_zero(make_rig: MakeRig) -> None:
    rig = await make_rig(first_byte_s=0.1, answer_s=0.1, idle_s=0.1, breaker_failures=1000)
    endings = [
        Script(sse=[chunk("1")], then="rst"),
        Script(sse=[chunk("1")], then="close", chunked_end=False),
        Script(hold=asyncio.Event()),
        Script(status=400, body={"error": {"message": "no", "type": "BadRequestError", "code": 400}}),
        Script(status=500, body={}),
        Script(status=429, body={}),
        Script(sse=[chunk("1")], then="hang"),
        Script(sse=[{"error": {"code": 503, "message": "busy"}}]),
        Script(sse=[chunk("1"), chunk(finish="stop"), "[DONE]"]),
        Script(pieces=[b"data: nonsense\n\n"], then="rst"),
    ]
    rig.a.scripts, rig.b.scripts = endings * 4, list(reversed(endings * 4))

    async def stay(number: int) -> None:
        await rig.chat({**STREAM, "messages": [{"role": "user", "content": f"{number} " * 300}]}, key=(KEY_A, KEY_B)[number % 2])

    async def leave(number: int) -> None:
        reader, writer = await _send(rig, {**STREAM, "user": str(number)})
        if number % 2:
            await reader.read(10)
        else:
            await asyncio.sleep(number / 1000)
        writer.close()

    await asyncio.gather(*(stay(number) for number in range(40)), *(leave(number) for number in range(20)))
    await rig.settled()
    rig.assert_nothing_held()
    assert len(rig.records()) == 60
    page = rig.router.plane.metrics.page().decode()
    assert "saltroute_in_flight 0.0" in page
    assert sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("saltroute_requests_total{")) == 60
    assert not [record for record in rig.records() if record.outcome == "ok" and record.stream and not record.completion_tokens]
