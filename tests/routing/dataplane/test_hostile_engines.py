"""Engines that break HTTP, or say what no engine says: the request is answered by another one or refused in the API's shape, memory stays bounded,
and nobody else notices."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from routing.core import sse
from routing.core.snapshot import PolicyEntry
from tests.fakes.replica import Script, chunk, completion, event, usage
from tests.fakes.rig import HI, KEY_A, KEY_B, Rig, bumped, named, replica_entry, until
from tests.routing.dataplane.conftest import MakeRig

STREAM = {**HI, "stream": True}
WHOLE = msgspec.json.encode(completion())
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
STREAMS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENCE_BYTES = 32 * 1024 * 1024  # an engine that may send so much and is still read is not bounded


def sized(body: bytes, length: int | None = None, *lines: bytes) -> bytes:
    return OK + b"".join(line + b"\r\n" for line in lines) + f"Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def piece(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


@dataclass
class RawEngine:
    """Says ``answer`` to every POST, then ``endless`` again and again until the router closes, and then, where there is no more, closes."""

    answer: bytes
    endless: bytes = b""
    keeps: bool = False
    seen: asyncio.Event | None = None  # set by the test when its client has seen ``answer``; then comes ``rest``
    rest: bytes = b""
    port: int = 0
    asked: int = 0
    said_bytes: int = 0
    overheard: list[str] = field(default_factory=list)  # salts

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.overheard.append(json.loads(await reader.readexactly(size))["cache_salt"])
        self.asked += 1
        writer.write(self.answer)
        self.said_bytes += len(self.answer)
        await writer.drain()
        if self.seen is not None:
            await self.seen.wait()
            writer.write(self.rest)
        while self.endless and self.said_bytes < PATIENCE_BYTES:
            writer.write(self.endless)
            self.said_bytes += len(self.endless)
            await writer.drain()
        return self.keeps


@asynccontextmanager
async def broken(rig: Rig, engine: RawEngine) -> AsyncIterator[RawEngine]:
    """Acme's first choice is the broken engine, its second B. Globex has A and B, as before."""
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    first, second = sorted((named("replica A"), named("replica B")))
    replicas = (
        msgspec.structs.replace(replica_entry(engine.url, "A"), id=first),
        msgspec.structs.replace(replica_entry(rig.b), id=second),
    )
    spec = PolicyEntry(name="turns", version=1, spec={"policy": "round_robin"})
    endpoints = tuple(msgspec.structs.replace(one, routing_policy=spec) for one in rig.acme.endpoints)
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=replicas),), endpoints=endpoints))
    try:
        yield engine
    finally:
        server.close()


# Before an answer is judged another engine may be asked: the client sees nothing of these.
UNREADABLE = {
    "garbage": (b"\x00\xff\xfe garbage \r\n\r\n", b""),
    "a status that is none": (b"HTTP/1.1 abc OK\r\n\r\n", b""),
    "a status of four digits": (b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "a status line without end": (b"HTTP/1.1 200 ", b"x" * 65536),
    "a header without end": (OK + b"X: ", b"y" * 65536),
    "headers without end": (OK, b"X-More: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 1000),
    "interim answers without end": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 100),
    "a negative length": (sized(WHOLE, -1), b""),
    "two lengths": (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b""),
    "a length that was not kept": (sized(WHOLE, len(WHOLE) + 10), b""),
    "a chunk size that is none": (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", b""),
    "a chunk beyond 64 bits": (OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n", b""),
    "chunks without an end": (OK + b"Transfer-Encoding: chunked\r\n\r\n" + piece(WHOLE), b""),
    "another protocol": (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + WHOLE, b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\n\r\n", b""),
    "a redirect inwards": (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n", b""),
    "an answer without end": (OK + b"Transfer-Encoding: chunked\r\n\r\n", piece(b" " * 65536)),
    "few bytes that stand for very many": (sized(gzip.compress(b" " * 100_000_000), None, b"Content-Encoding: gzip"), b""),
    "bytes that are no text": (sized(b'{"choices":[{"message":{"content":"\xff\xfe"}}]}'), b""),
    "a number that is none": (sized(b'{"choices":[],"usage":{"prompt_tokens":NaN}}'), b""),
    "deep nesting": (sized(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), b""),
    "nothing": (b"", b""),
    "a stream that says nothing": (STREAMS + b"0\r\n\r\n", b""),
    "comments without end": (STREAMS, piece(b": ping\n\n" * 1000)),
}


@pytest.mark.parametrize("body", [HI, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(("answer", "endless"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_engine_that_cannot_be_understood_costs_its_client_nothing(make_rig: MakeRig, answer: bytes, endless: bytes, body: Any) -> None:
    """Another engine answers; the broken one is read for a bounded number of bytes, counts as failed, and holds nothing afterwards."""
    rig = await make_rig(first_byte_s=10.0, answer_s=10.0, max_answer_bytes=4 * 1024 * 1024)
    async with broken(rig, RawEngine(answer, endless)) as engine:
        reply = await rig.chat(body)
        assert (reply.status, engine.asked, len(rig.b.requests)) == (200, 1, 1)
        assert engine.said_bytes < PATIENCE_BYTES
        assert (await rig.chat(body, key=KEY_B)).status == 200
        await rig.settled()
        assert rig.router.plane.engines[engine.url].breaker.in_a_row == 1
        assert rig.router.plane.engines[rig.b.url].breaker.in_a_row == 0
    rig.assert_nothing_held()
    assert (rig.router.plane.holdings.bytes.used, rig.router.plane.holdings.places.used) == (0, 0)
    assert rig.records()[0].attempts[0].error is not None


async def test_an_engine_that_is_understood_is_not_asked_twice(rig: Rig) -> None:
    """The control: the same engine with a sound answer is the only one that is asked."""
    async with broken(rig, RawEngine(sized(WHOLE))) as engine:
        assert (await rig.chat()).json["choices"]
        assert (engine.asked, rig.served()) == (1, 0)


async def test_where_no_engine_is_understood_the_error_is_ours(rig: Rig) -> None:
    rig.b.script = Script(body=b"<html>")
    async with broken(rig, RawEngine(b"\x00garbage\r\n\r\n")):
        reply = await rig.chat()
    assert (reply.status, reply.error["code"], reply.error["type"]) == (502, "upstream_error", "server_error")
    assert "garbage" not in reply.body.decode()


@pytest.mark.parametrize("length", [b"Content-Length: 5", b""], ids=["length", "no length"])
async def test_chunks_and_a_length_leave_nothing_for_the_next_request(rig: Rig, length: bytes) -> None:
    """Read in one way the answer ends earlier than in the other. Whichever it is, the rest is nobody's answer."""
    chunked = OK + (length + b"\r\n" if length else b"") + b"Transfer-Encoding: chunked\r\n\r\n" + piece(WHOLE) + b"0\r\n\r\n"
    poison = sized(msgspec.json.encode(completion("poison")))
    async with broken(rig, RawEngine(chunked + poison, keeps=True)) as engine:
        for _ in range(4):
            reply = await rig.chat()
            assert reply.status == 200
            assert b"poison" not in reply.body
        assert engine.asked >= 1
    await rig.settled()
    rig.assert_nothing_held()


async def test_nothing_of_an_engines_headers_reaches_a_client(rig: Rig) -> None:
    lines = (
        b"Set-Cookie: session=stolen",
        b"Location: http://evil.example/",
        b"Access-Control-Allow-Origin: *",
        b"X-Engine: 10.0.0.1",
        b"Server: evil",
    )
    async with broken(rig, RawEngine(sized(WHOLE, None, *lines))):
        reply = await rig.chat()
    assert reply.status == 200
    assert {name.lower() for name in reply.headers} == {"content-length", "content-type", "date", "server", "x-saltroute-decision"}
    assert reply.headers["Server"] == "saltroute"


@pytest.mark.parametrize(("body", "answered"), [(HI, b"whole"), (STREAM, b"streamed")], ids=["not asked for", "asked for"])
async def test_a_stream_that_nobody_asked_for_is_no_answer(rig: Rig, body: Any, answered: bytes) -> None:
    """A client that reads one document gets one. The control: who asked for a stream gets it."""
    rig.b.script = Script(body=completion("whole"))
    events = piece(event(chunk("streamed", finish="stop"))) + piece(event("[DONE]")) + b"0\r\n\r\n"
    async with broken(rig, RawEngine(STREAMS + events)):
        assert answered in (await rig.chat(body)).body


# ---- once a stream has begun -------------------------------------------------------------------------------------------

BEGIN = piece(event(chunk("one ")))


@pytest.mark.parametrize(
    ("rest", "endless"),
    [
        (b"zz\r\n", b""),
        (b"5;" + b"x" * 10, b"x" * 65536),
        (piece(b"data: {"), b""),
        (b"0\r\nX-Trailer: ", b"y" * 65536),
        (b"FFFFFFFFFFFFFFFFF\r\n", b"x" * 65536),
        (b"0\r\n\r\n", b""),
    ],
    ids=["a chunk size that is none", "an extension without end", "half an event", "a trailer without end", "a chunk beyond 64 bits", "no last word"],
)
async def test_a_stream_that_breaks_ends_in_one_error_of_ours(make_rig: MakeRig, rest: bytes, endless: bytes) -> None:
    """What was said is shown, then one error event and a proper end; nothing is asked again."""
    rig = await make_rig(idle_s=1.0)
    async with broken(rig, RawEngine(STREAMS + BEGIN, endless, seen=asyncio.Event(), rest=rest)) as engine:
        body = msgspec.json.encode(STREAM)
        head = f"POST /v1/chat/completions HTTP/1.0\r\nAuthorization: Bearer {KEY_A}\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        writer.write(head.encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        told = await reader.readuntil(b"\n\n")
        assert engine.seen is not None
        engine.seen.set()
        told += await reader.read()
        writer.close()
        await rig.settled()
        assert engine.asked == 1
    events = [data for data in map(sse.data_of, sse.EventSplitter().feed(told)) if data is not None]
    assert msgspec.json.decode(events[0])["choices"][0]["delta"]["content"] == "one "
    assert msgspec.json.decode(events[1])["error"]["code"] in ("upstream_error", "upstream_timeout")
    assert len(events) == 2
    assert len(rig.b.requests) == 0
    rig.assert_nothing_held()


async def test_an_event_of_many_megabytes_passes_in_pieces(rig: Rig) -> None:
    """It is handed on as it comes, never gathered; what it takes of the common bytes is given back."""
    long = b"data: " + b"x" * (20 * 1024 * 1024)
    seen = 0
    shares = rig.router.plane.holdings.bytes
    take = shares.take

    def watched(owner: object, amount: int = 1) -> bool:
        nonlocal seen
        fits = take(owner, amount)
        seen = max(seen, shares.used)
        return fits

    shares.take = watched  # type: ignore[method-assign] # to see the most that was held
    pieces = [event(chunk("one ")), *(long[start : start + 65536] for start in range(0, len(long), 65536)), b"\n\n"]
    rig.a.script = rig.b.script = Script(pieces=[*pieces, event(chunk(finish="stop")), event("[DONE]")])
    reply = await rig.chat(STREAM)
    await rig.settled()
    assert reply.status == 200
    assert len(reply.body) > len(long)
    assert 64 * 1024 < seen <= sse.MAX_EVENT_BYTES + 512 * 1024
    assert shares.used == 0


async def test_a_stream_that_there_is_no_room_for_ends_and_blames_nobody(make_rig: MakeRig) -> None:
    rig = await make_rig(max_held_bytes=300_000)
    rig.a.script = rig.b.script = Script(pieces=[event(chunk("one ")), b"data: " + b"x" * 600_000, b"\n\n", event("[DONE]")])
    reply = await rig.chat(STREAM)
    assert b'"code":"overloaded"' in reply.body
    await rig.settled()
    rig.assert_nothing_held()
    assert rig.router.plane.holdings.bytes.used == 0
    assert {engine.breaker.in_a_row for engine in rig.router.plane.engines.values()} == {0}


async def test_an_answer_that_there_is_no_room_for_is_refused_and_blames_nobody(make_rig: MakeRig) -> None:
    rig = await make_rig(max_held_bytes=300_000)
    rig.a.script = rig.b.script = Script(body=completion("x" * 400_000))
    reply = await rig.chat()
    assert (reply.status, reply.error["code"]) == (503, "overloaded")
    assert rig.served() == 1
    assert {engine.breaker.in_a_row for engine in rig.router.plane.engines.values()} == {0}
    rig.a.script = rig.b.script = Script(body=completion("x" * 100_000))
    assert (await rig.chat()).status == 200
    rig.assert_nothing_held()


# ---- numbers -----------------------------------------------------------------------------------------------------------

NUMBERS: list[Any] = [-1, -(2**63), 2**31, 2**63, 2**200, 1.5, 1e308, "7", "NaN", True, None, [], {}, [7]]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_what_is_no_count_is_counted_as_not_said(rig: Rig, number: Any, streams: bool) -> None:
    """Neither record nor metric takes it, and the answer passes as it is."""
    told = {"prompt_tokens": number, "completion_tokens": number, "total_tokens": number, "prompt_tokens_details": {"cached_tokens": number}}
    last = {**chunk(finish="stop"), "choices": [], "usage": told}
    events = [event(chunk("x")), event(chunk(finish="stop")), b"data: " + json.dumps(last).encode() + b"\n\n", event("[DONE]")]
    rig.a.script = rig.b.script = Script(pieces=events) if streams else Script(body=json.dumps(completion(usage=told)).encode())
    assert (await rig.chat(STREAM if streams else HI)).status == 200
    await rig.settled()
    (record,) = rig.records()
    assert record.outcome == "ok"
    assert (record.prompt_tokens, record.cached_tokens) == (None, None)
    assert record.completion_tokens in (None, 2)
    page = rig.router.plane.metrics.page().decode()
    assert 'saltroute_tokens_total{kind="prompt"}' not in page
    rig.assert_nothing_held()


async def test_more_cached_tokens_than_there_were_are_all_that_there_were(rig: Rig) -> None:
    """Sums and shares stay possible; what it says is alarming all the same."""
    rig.a.script = rig.b.script = Script(body=completion(usage=usage(10, 2, 2_000_000)))
    assert (await rig.chat()).status == 200
    await rig.settled()
    (record,) = rig.records()
    assert (record.prompt_tokens, record.cached_tokens) == (10, 10)


async def test_an_engine_that_breaks_http_for_one_tenant_opens_no_breaker_of_anothers(make_rig: MakeRig) -> None:
    """Ten of acme's requests meet it; globex, on its own engines, is served by both all the while."""
    rig = await make_rig(breaker_failures=3)
    async with broken(rig, RawEngine(b"HTTP/1.1 abc\r\n\r\n")) as engine:
        for _ in range(10):
            assert (await rig.chat()).status == 200
            assert (await rig.chat(key=KEY_B)).status == 200
        assert rig.router.plane.engines[engine.url].breaker.opened_total == 1
        assert rig.router.plane.engines[rig.a.url].breaker.opened_total == 0
        assert rig.router.plane.engines[rig.b.url].breaker.opened_total == 0
        assert set(engine.overheard) == {rig.namespace().salt}
    await until(lambda: rig.router.plane.in_flight == 0)
