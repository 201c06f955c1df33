"""A stream is relayed event by event as bytes; what is judged, hidden or replaced is exactly what the rules name."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.fakes.replica import Script, chunk, event, usage_chunk
from tests.fakes.rig import HI, Rig, prefer_a
from tests.routing.dataplane.conftest import MakeRig

STREAM = {**HI, "stream": True}
WITH_USAGE = {**STREAM, "stream_options": {"include_usage": True}}
ROLE, CONTENT, USAGE = (msgspec.json.encode(value) for value in (chunk(""), chunk("北京🙂"), usage_chunk(7, 3, 5)))


def _events(line_end: bytes, *, space: bytes = b" ") -> list[bytes]:
    return [b"data:" + space + data + line_end * 2 for data in (ROLE, CONTENT, USAGE, b"[DONE]")]


VARIANTS = {
    "LF": _events(b"\n"),
    "CRLF": _events(b"\r\n"),
    "CR": _events(b"\r"),
    "no space": _events(b"\n", space=b""),
    "comments": [b": ping\n\n" + one for one in _events(b"\n")],
    "event and id lines": [b"event: message\nid: 7\n" + one for one in _events(b"\n")],
}


@pytest.mark.parametrize("variant", VARIANTS)
async def test_each_event_reaches_the_client_before_the_next_is_sent(rig: Rig, variant: str) -> None:
    events = VARIANTS[variant]
    gates = {place: asyncio.Event() for place in range(1, len(events))}
    rig.a.script = rig.b.script = Script(pieces=events, gates=gates)
    got = b""
    async with rig.client.post(f"{rig.url}/v1/chat/completions", json=WITH_USAGE, headers=_auth()) as answer:
        for place in range(len(events)):
            while len(got) < sum(map(len, events[: place + 1])):
                got += await answer.content.readany()
            assert got == b"".join(events[: place + 1])
            if place + 1 in gates:
                gates[place + 1].set()
        got += await answer.content.read()
    assert got == b"".join(events)
    await rig.settled()
    (record,) = rig.records()
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens, record.outcome) == (7, 3, 5, "ok")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("asked", [True, False])
async def test_one_byte_at_a_time_changes_nothing(rig: Rig, variant: str, asked: bool) -> None:
    events = VARIANTS[variant]
    whole = b"".join(events)
    rig.a.script = rig.b.script = Script(pieces=[whole[place : place + 1] for place in range(len(whole))])
    reply = await rig.chat(WITH_USAGE if asked else STREAM)
    expected = whole if asked else whole.replace(next(one for one in events if USAGE in one).removeprefix(b": ping\n\n"), b"")
    assert reply.body.replace(b"\n", b"").replace(b"\r", b"") == expected.replace(b"\n", b"").replace(b"\r", b"")
    if asked:
        assert reply.body == whole
    assert "北京🙂" in reply.body.decode()


async def test_fields_we_do_not_know_pass_as_bytes(rig: Rig) -> None:
    payloads: list[Any] = [
        {"choices": [{"index": 0, "delta": {"reasoning": "step"}}]},
        {"choices": [{"index": 0, "delta": {"content": "", "reasoning_items": [{"enc": "zz"}]}}]},
        {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}], "token_ids": [5], "x_new": 1},
        {"id": "ctl", "object": "chat.completion.chunk"},
        "[DONE]",
    ]
    rig.a.script = rig.b.script = Script(sse=payloads)
    reply = await rig.chat({**STREAM, "n": 2, "logprobs": True, "top_logprobs": 2})
    assert reply.body == b"".join(event(payload) for payload in payloads)
    received = rig.received()
    assert (received["n"], received["logprobs"], received["top_logprobs"]) == (2, True, 2)


async def test_usage_is_always_asked_for_and_hidden_from_who_did_not_ask(rig: Rig) -> None:
    reply = await rig.chat(STREAM)
    assert rig.received()["stream_options"] == {"include_usage": True}
    chunks = _chunks(reply.body)
    assert all(one["choices"] != [] and one.get("usage") is None for one in chunks)
    (record,) = rig.records()
    assert (record.prompt_tokens, record.completion_tokens) == (12, 2)


async def test_usage_reaches_who_asked_exactly_once(rig: Rig) -> None:
    reply = await rig.chat(WITH_USAGE)
    assert [one["choices"] for one in _chunks(reply.body)].count([]) == 1


async def test_options_that_only_show_with_usage_are_not_switched_on_by_us(rig: Rig) -> None:
    await rig.chat({**STREAM, "stream_options": {"continuous_usage_stats": True, "x": 1}})
    assert rig.received()["stream_options"] == {"x": 1, "include_usage": True}


async def test_a_replica_that_dies_in_mid_stream_ends_in_one_error_and_no_done(rig: Rig) -> None:
    prefer_a(rig)
    rig.a.script = Script(sse=[chunk("one "), chunk("two ")], then="rst")
    reply = await rig.chat(STREAM)
    assert reply.status == 200
    *sent, last = reply.body.split(b"\n\n")[:-1]
    assert [_content(one) for one in sent] == ["one ", "two "]
    error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
    assert {"message", "type", "code"} <= error.keys()
    assert b"[DONE]" not in reply.body
    assert str(rig.a.port) not in reply.body.decode()
    assert len(rig.b.requests) == 0
    await rig.settled()
    (record,) = rig.records()
    assert (record.outcome, record.partial_usage, record.completion_tokens) == ("incomplete", True, 2)
    assert rig.router.plane.engines[rig.a.url].failures == 1
    rig.assert_nothing_held()


@pytest.mark.parametrize("then", ["close", "rst"])
async def test_half_an_event_is_never_relayed(rig: Rig, then: Any) -> None:
    rig.a.script = rig.b.script = Script(pieces=[event(chunk("whole ")), b'data: {"choices":[{"index":0,"del'], then=then, chunked_end=False)
    reply = await rig.chat(STREAM)
    first, last = reply.body.split(b"\n\n")[:-1]
    assert _content(first) == "whole "
    assert b'"error"' in last


async def test_a_clean_end_without_a_word_of_completion_is_not_an_answer(rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(sse=[chunk("one ")])
    reply = await rig.chat(STREAM)
    assert b'"error"' in reply.body
    assert (await _only_record(rig)).outcome == "incomplete"


async def test_an_engine_that_ends_with_a_finish_reason_only_is_believed(rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(sse=[chunk("one "), chunk(finish="stop")])
    reply = await rig.chat(STREAM)
    assert reply.body == event(chunk("one ")) + event(chunk(finish="stop"))
    assert (await _only_record(rig)).outcome == "ok"


async def test_an_error_event_in_mid_stream_becomes_ours(rig: Rig) -> None:
    error = {"error": {"message": "EngineCore encountered an issue at 10.1.2.3", "type": "InternalServerError", "param": None, "code": 500}}
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(sse=[chunk("one "), error, "[DONE]"], gates={1: gate})
    async with rig.client.post(f"{rig.url}/v1/chat/completions", json=STREAM, headers=_auth()) as answer:
        body = await answer.content.readuntil(b"\n\n")
        gate.set()
        body += await answer.content.read()
    assert b"EngineCore" not in body
    assert b"[DONE]" not in body
    assert body.count(b'"error"') == 1
    assert (await _only_record(rig)).outcome == "incomplete"


def _error_first(code: int) -> Script:
    error = msgspec.json.encode({"error": {"message": "bad", "type": "invalid_request", "code": code}})
    return Script(pieces=[b": hello\n\n", b"event: error\ndata: " + error + b"\n\n", b"data: [DONE]\n\n"])


async def test_an_error_as_first_event_is_a_status_not_a_stream(rig: Rig) -> None:
    prefer_a(rig)
    rig.a.script = _error_first(400)
    reply = await rig.chat(STREAM)
    assert (reply.status, reply.headers["Content-Type"]) == (400, "application/json")
    assert reply.error["message"] == "bad"
    assert len(rig.b.requests) == 0
    engine = rig.router.plane.engines[rig.a.url]
    assert (engine.breaker.in_a_row, engine.failures) == (0, 0)


async def test_a_replicas_own_error_as_first_event_is_tried_elsewhere(rig: Rig) -> None:
    prefer_a(rig)
    rig.a.script = _error_first(503)
    reply = await rig.chat(STREAM)
    assert (reply.status, len(rig.a.requests), len(rig.b.requests)) == (200, 1, 1)
    assert b"bad" not in reply.body
    assert rig.router.plane.engines[rig.a.url].breaker.in_a_row == 1


@pytest.mark.parametrize("body", [HI, STREAM])
async def test_an_error_object_under_200_is_an_error(rig: Rig, body: Any) -> None:
    prefer_a(rig)
    rig.a.script = Script(body={"object": "error", "message": "context too long", "type": "BadRequestError", "code": 400})
    reply = await rig.chat(body)
    assert reply.status == 400
    assert reply.error == {"message": "context too long", "type": "invalid_request_error", "param": None, "code": "engine_refused"}
    assert len(rig.b.requests) == 0
    record = await _only_record(rig)
    assert (record.outcome, record.prompt_tokens) == ("client_error", None)


@pytest.mark.parametrize(
    "script",
    [
        Script(sse=[chunk(finish="abort"), "[DONE]"]),
        Script(pieces=[event(chunk("")) + event(chunk(finish="abort")), event("[DONE]")]),
        Script(body={"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}),
    ],
)
async def test_an_answer_that_an_engine_aborted_by_itself_is_asked_for_elsewhere(rig: Rig, script: Script) -> None:
    prefer_a(rig)
    rig.a.script = script
    reply = await rig.chat(STREAM)
    assert (reply.status, len(rig.b.requests)) == (200, 1)
    assert b"abort" not in reply.body


async def test_no_status_is_committed_before_the_first_event(rig: Rig) -> None:
    prefer_a(rig)
    gate = asyncio.Event()
    rig.a.script = Script(
        pieces=[b": waiting\n\n", event({"error": {"message": "too long", "type": "BadRequestError", "code": 400}})], gates={1: gate}
    )
    asked = asyncio.create_task(rig.chat(STREAM))
    await rig.a.wait_for(1)
    assert not asked.done()
    gate.set()
    assert (await asked).status == 400


@pytest.mark.parametrize("accept", ["gzip", "identity"])
@pytest.mark.parametrize("body", [HI, WITH_USAGE])
async def test_an_engine_that_compresses_unasked_is_undone(rig: Rig, accept: str, body: Any) -> None:
    plain = b"".join(VARIANTS["LF"]) if body is WITH_USAGE else b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
    kind = {"Content-Type": "text/event-stream"} if body is WITH_USAGE else {"Content-Type": "application/json"}
    packed = gzip.compress(zlib.compress(plain))
    rig.a.script = rig.b.script = Script(pieces=[packed[:20], packed[20:]], headers={**kind, "Content-Encoding": "deflate, gzip"})
    reply = await rig.chat(body, headers={"Accept-Encoding": accept})
    assert reply.body == plain
    assert "Content-Encoding" not in reply.headers
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert received.headers["accept-encoding"] == "identity"
    assert (await _only_record(rig)).prompt_tokens == 7


async def test_long_streams_end_properly_every_time(rig: Rig) -> None:
    events = [*(chunk(str(number)) for number in range(100)), chunk(finish="stop"), "[DONE]"]
    rig.a.script = rig.b.script = Script(sse=events, then="close")
    for reply in await asyncio.gather(*(rig.chat(STREAM) for _ in range(20))):
        assert reply.body == b"".join(map(event, events))
    await rig.settled()
    rig.assert_nothing_held()


async def test_a_client_that_does_not_read_slows_the_engine_and_is_closed_in_the_end(make_rig: MakeRig) -> None:
    rig = await make_rig(write_s=0.3)
    piece = event(chunk("x" * 32_000))
    rig.a.script = rig.b.script = Script(pieces=[piece] * 4000)
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port, limit=1024)
    body = msgspec.json.encode(STREAM)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: {_auth()['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(b"\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined] # asyncio's transports have it, their base class does not
    await asyncio.wait([asyncio.create_task(fake.blocked_writes.wait()) for fake in (rig.a, rig.b)], return_when="FIRST_COMPLETED")
    (received,) = [*rig.a.requests, *rig.b.requests]
    await received.closed.wait()
    await rig.settled()
    record = await _only_record(rig)
    assert (record.outcome, record.error_code) == ("client_cancelled", "client_too_slow")
    rig.assert_nothing_held()
    writer.close()


async def test_a_stream_has_no_total_time_limit(rig: Rig) -> None:
    for session in (rig.router.plane.session, rig.router.plane.fresh_session):
        assert session.timeout.total is None
        assert session.timeout.sock_read is None
        assert isinstance(session.connector, aiohttp.TCPConnector)
        assert session.connector.limit == 0


async def test_a_stream_that_falls_silent_is_ended(make_rig: MakeRig) -> None:
    rig = await make_rig(idle_s=0.1)
    rig.a.script = rig.b.script = Script(sse=[chunk("one ")], then="hang")
    reply = await rig.chat(STREAM)
    assert b'"upstream_timeout"' in reply.body
    await rig.settled()
    rig.assert_nothing_held()


def _auth() -> dict[str, str]:
    return {"Authorization": "Bearer sk-sr-acme-key-of-the-tests-0000000001"}


def _chunks(body: bytes) -> list[Any]:
    return [msgspec.json.decode(part.removeprefix(b"data: ")) for part in body.split(b"\n\n") if part.startswith(b"data: {")]


def _content(part: bytes) -> str:
    content: str = msgspec.json.decode(part.removeprefix(b"data: "))["choices"][0]["delta"]["content"]
    return content


async def _only_record(rig: Rig) -> Any:
    await rig.settled()
    (record,) = rig.records()
    return record
