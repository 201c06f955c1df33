"""Clients that bend HTTP: what cannot be read in one way alone is refused, and no request reaches an engine twice or under another's salt."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from routing.dataplane import doors
from tests.fakes.replica import Script, chunk
from tests.fakes.rig import HI, KEY_A, KEY_B, Rig, until
from tests.routing.dataplane.conftest import MakeRig

BODY = msgspec.json.encode(HI)
SIZE = str(len(BODY)).encode()
CHUNKED = f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n\r\n"
STREAM = msgspec.json.encode({**HI, "stream": True})
LONG = b"x" * 9000


def head(*lines: bytes, key: str = KEY_A, first: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: r", f"Authorization: Bearer {key}".encode(), *lines, b"", b""])


# What a front may read in one way and we in another would let a body be taken for a request, of whoever comes next.
SMUGGLED = head(b"Content-Length: " + SIZE, key=KEY_B) + BODY
AMBIGUOUS = {
    "length and chunks": head(b"Content-Length: 6", b"Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED,
    "chunks and length": head(b"Transfer-Encoding: chunked", b"Content-Length: " + SIZE) + CHUNKED + SMUGGLED,
    "two lengths": head(b"Content-Length: " + SIZE, b"Content-Length: 5") + BODY + SMUGGLED,
    "two equal lengths": head(b"Content-Length: " + SIZE, b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a list of lengths": head(b"Content-Length: " + SIZE + b", " + SIZE) + BODY + SMUGGLED,
    "a signed length": head(b"Content-Length: +" + SIZE) + BODY + SMUGGLED,
    "a negative length": head(b"Content-Length: -1") + SMUGGLED,
    "a hexadecimal length": head(b"Content-Length: 0x10") + BODY + SMUGGLED,
    "a length beyond 64 bits": head(b"Content-Length: 18446744073709551626") + BODY + SMUGGLED,
    "a length with an underscore": head(b"Content-Length: 1_0") + BODY + SMUGGLED,
    "chunked spelled with a tab": head(b"Transfer-Encoding: \x0bchunked") + CHUNKED + SMUGGLED,
    "chunked by another name": head(b"Transfer-Encoding: xchunked") + CHUNKED + SMUGGLED,
    "chunked is not the last": head(b"Transfer-Encoding: chunked, identity") + CHUNKED + SMUGGLED,
    "chunked twice": head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity") + CHUNKED + SMUGGLED,
    "a blank before the colon": head(b"Content-Length : " + SIZE) + BODY + SMUGGLED,
    "a blank in a name": head(b"Content Length: " + SIZE) + BODY + SMUGGLED,
    "a folded line": head(b"X-Folded: a", b" Content-Length: 5") + SMUGGLED,
    "a first line that is folded": head(b" X: y", b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a null in a value": head(b"X-Null: a\0b", b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a null in a name": head(b"X\0: a", b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a null in the target": head(b"Content-Length: " + SIZE, first=b"POST /v1/chat/completions\0 HTTP/1.1") + BODY + SMUGGLED,
    "a carriage return in a value": head(b"X-Cr: a\rContent-Length: 5", b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "no name": head(b": a", b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a long value": head(b"X-Long: " + LONG, b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a long target": head(b"Content-Length: " + SIZE, first=b"POST /v1/chat/completions?" + LONG + b" HTTP/1.1") + BODY + SMUGGLED,
    "many headers": head(*[b"X-%d: y" % number for number in range(200)], b"Content-Length: " + SIZE) + BODY + SMUGGLED,
    "a version that is none": head(b"Content-Length: " + SIZE, first=b"POST /v1/chat/completions HTTP/9.9") + BODY + SMUGGLED,
    "HTTP/0.9": b"POST /v1/chat/completions\r\n\r\n" + SMUGGLED,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + SMUGGLED,
    "a negative chunk": head(b"Transfer-Encoding: chunked") + b"-1\r\n" + SMUGGLED,
    "a chunk beyond 64 bits": head(b"Transfer-Encoding: chunked") + b"FFFFFFFFFFFFFFFFF\r\n" + BODY + SMUGGLED,
    "a chunk with a sign": head(b"Transfer-Encoding: chunked") + b"+5\r\nhello\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk with a prefix": head(b"Transfer-Encoding: chunked") + b"0x5\r\nhello\r\n0\r\n\r\n" + SMUGGLED,
    "a length in a trailer": head(b"Transfer-Encoding: chunked") + CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n" + SMUGGLED,
    "a chunk without an end": head(b"Transfer-Encoding: chunked") + b"5\r\nhelloX\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk that is longer than it says": head(b"Transfer-Encoding: chunked") + b"1\r\n" + BODY + b"\r\n0\r\n\r\n" + SMUGGLED,
}


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_can_be_read_in_two_ways_is_refused_and_ends_the_connection(rig: Rig, text: bytes) -> None:
    """The answer is ours, in the API's shape; nothing that follows on the connection is taken for a request."""
    answer = await rig.raw(text)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer[:200]
    assert answer.count(b"HTTP/1.") == 1
    assert msgspec.json.decode(answer.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"
    assert b"Authorization" not in answer
    await rig.settled()
    rig.assert_nothing_held()
    assert rig.served() == 0
    assert (await rig.chat()).status == 200


async def test_the_shapes_above_are_refused_for_their_fault_alone(rig: Rig) -> None:
    """The control: the same two requests without a fault are two answers, each under its own tenant's salt."""
    last = head(b"Content-Length: " + SIZE, b"Connection: close", key=KEY_B) + BODY
    for first in (head(b"Content-Length: " + SIZE) + BODY, head(b"Transfer-Encoding: chunked") + CHUNKED):
        answer = await rig.raw(first + last)
        assert answer.count(b"HTTP/1.1 200 ") == 2
    salts = [received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests]]
    assert sorted(salts) == sorted([rig.namespace(KEY_A).salt, rig.namespace(KEY_B).salt] * 2)


async def test_pipelined_requests_are_answered_in_order_each_under_its_own_salt(rig: Rig) -> None:
    """Ten in one segment, of two tenants in turn, streams and not; the marker says whose answer is whose."""
    rig.only_a()
    texts = []
    for number in range(10):
        body = msgspec.json.encode({**HI, "messages": [{"role": "user", "content": f"number {number}"}], "stream": number % 3 == 0})
        close = [b"Connection: close"] if number == 9 else []
        marker = f"X-Request-Id: client-{number}".encode()
        texts.append(head(f"Content-Length: {len(body)}".encode(), marker, *close, key=(KEY_A, KEY_B)[number % 2]) + body)
    answer = await rig.raw(b"".join(texts))
    assert answer.count(b"HTTP/1.1 200 ") == 10
    places = [answer.index(f"client-{number}\r\n".encode()) for number in range(10)]
    assert places == sorted(places)
    received = sorted([*rig.a.requests, *rig.b.requests], key=lambda one: one.json["messages"][0]["content"])
    assert [one.json["messages"][0]["content"] for one in received] == [f"number {number}" for number in range(10)]
    assert [one.json["cache_salt"] for one in received] == [rig.namespace((KEY_A, KEY_B)[number % 2]).salt for number in range(10)]


async def test_a_client_that_pipelines_without_end_is_not_read_further(rig: Rig) -> None:
    """While its first request is answered, what else it sends waits in its own socket and not in this process."""
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body={"choices": []})
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    one = head(b"Content-Length: " + SIZE) + BODY
    writer.write(one)
    await until(lambda: rig.served() == 1)
    sent = 0
    while sent < 32 * 1024 * 1024:
        writer.write(one * 1000)
        sent += len(one) * 1000
        try:
            await asyncio.wait_for(writer.drain(), 0.2)
        except TimeoutError:
            break
    assert sent < 32 * 1024 * 1024
    assert rig.served() == 1
    writer.transport.abort()
    gate.set()
    await rig.settled()
    rig.assert_nothing_held()
    del reader


async def test_trailers_are_no_headers(rig: Rig) -> None:
    """They come after the caller is known: neither key nor scope of theirs counts."""
    trailers = f"Authorization: Bearer {KEY_B}\r\nX-Saltroute-Scope: support\r\n\r\n".encode()
    chunked = CHUNKED.removesuffix(b"\r\n") + trailers
    answer = await rig.raw(head(b"Transfer-Encoding: chunked", b"Trailer: Authorization", b"Connection: close") + chunked)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert rig.received()["cache_salt"] == rig.namespace(KEY_A).salt


@pytest.mark.parametrize("chunks", [1, 7, len(BODY)])
async def test_chunks_of_any_size_with_extensions_are_one_body(rig: Rig, chunks: int) -> None:
    size = -(-len(BODY) // chunks)
    pieces = [BODY[start : start + size] for start in range(0, len(BODY), size)]
    text = b"".join(f"{len(piece):X};name=value\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"
    answer = await rig.raw(head(b"Transfer-Encoding: chunked", b"Connection: close") + text)
    assert answer.startswith(b"HTTP/1.1 200 ")
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert received.headers["content-length"] == str(len(received.body))
    assert "transfer-encoding" not in received.headers


@pytest.mark.parametrize("late", [b"zz\r\n", b"-1\r\n", b"FFFFFFFFFFFFFFFFF\r\n"], ids=["no number", "negative", "beyond 64 bits"])
async def test_a_body_that_breaks_after_its_request_began_is_refused_at_once(rig: Rig, late: bytes) -> None:
    """The request waits for its body already, and for a minute if need be; it need not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    writer.write(head(b"Transfer-Encoding: chunked") + b"1\r\n{\r\n")
    await until(lambda: rig.router.plane.holdings.bytes.used == 1)
    writer.write(late)
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.") == 1
    writer.close()
    await rig.settled()
    rig.assert_nothing_held()
    assert rig.served() == 0


async def test_a_chunk_extension_without_end_is_an_upload_that_stopped(make_rig: MakeRig) -> None:
    rig = await make_rig(idle_s=0.1)
    answer = await rig.raw(head(b"Transfer-Encoding: chunked") + b"5;" + b"x" * 100_000)
    assert answer.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 "))
    await rig.settled()
    rig.assert_nothing_held()
    assert rig.served() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_old_client_gets_the_answer_alone_and_then_the_end(rig: Rig, stream: bool) -> None:
    """HTTP/1.0 knows no chunks: the end of the connection is the end of the answer."""
    body = STREAM if stream else BODY
    answer = await rig.raw(head(f"Content-Length: {len(body)}".encode(), first=b"POST /v1/chat/completions HTTP/1.0") + body)
    status, _, rest = answer.partition(b"\r\n")
    headers, _, told = rest.partition(b"\r\n\r\n")
    assert status.split(b" ")[1] == b"200"
    assert b"transfer-encoding" not in headers.lower()
    if stream:
        assert told.startswith(b"data: {")
        assert told.endswith(b"data: [DONE]\n\n")
    else:
        assert msgspec.json.decode(told)["choices"]


async def test_an_old_client_is_not_told_to_continue(rig: Rig) -> None:
    """It would take the interim answer for the answer."""
    text = head(b"Content-Length: " + SIZE, b"Expect: 100-continue", first=b"POST /v1/chat/completions HTTP/1.0") + BODY
    answer = await rig.raw(text)
    assert answer.split(b" ", 2)[1] == b"200"
    assert b"100 Continue" not in answer


async def test_head_of_a_list_has_no_body_and_head_of_an_engines_route_is_refused(rig: Rig) -> None:
    listed = await rig.raw(head(b"Connection: close", first=b"HEAD /v1/models HTTP/1.1"))
    assert listed.startswith(b"HTTP/1.1 200 ")
    assert listed.endswith(b"\r\n\r\n")
    refused = await rig.raw(head(b"Connection: close", first=b"HEAD /v1/chat/completions HTTP/1.1"))
    assert refused.startswith(b"HTTP/1.1 405 ")
    assert refused.endswith(b"\r\n\r\n")
    assert rig.served() == 0


@pytest.mark.parametrize("first", [b"OPTIONS /v1/chat/completions HTTP/1.1", b"GET /v1/models HTTP/1.1", b"GET /healthz HTTP/1.1"])
async def test_a_body_that_nobody_asked_for_is_not_the_next_request(rig: Rig, first: bytes) -> None:
    """What hides in it is thrown away; what follows after it is answered."""
    hidden = SMUGGLED
    after = head(b"Content-Length: " + SIZE, b"Connection: close") + BODY
    answer = await rig.raw(head(f"Content-Length: {len(hidden)}".encode(), first=first) + hidden + after)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert rig.received()["cache_salt"] == rig.namespace(KEY_A).salt


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
async def test_nothing_is_upgraded(rig: Rig, upgrade: bytes) -> None:
    """A request to change the protocol is answered as what it is, or refused; nothing after it slips past under another protocol."""
    answer = await rig.raw(head(b"Connection: Upgrade, close", b"Upgrade: " + upgrade, b"Content-Length: " + SIZE) + BODY + SMUGGLED)
    assert not answer.startswith(b"HTTP/1.1 101")
    assert rig.namespace(KEY_B).salt not in [received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests]]
    assert rig.served() <= 1
    await rig.settled()
    rig.assert_nothing_held()


@pytest.mark.parametrize("first", [b"CONNECT 127.0.0.1:22 HTTP/1.1", b"TRACE / HTTP/1.1", b"GET http://169.254.169.254/ HTTP/1.1", b"GET * HTTP/1.1"])
async def test_the_router_is_nobodys_proxy(rig: Rig, first: bytes) -> None:
    answer = await rig.raw(head(b"Connection: close", first=first))
    assert answer.split(b" ", 2)[1] in (b"400", b"404", b"405")
    assert rig.served() == 0
    assert not rig.a.connections + rig.b.connections


@pytest.mark.parametrize("named", ["gzip, identity", "identity, gzip"])
async def test_one_header_of_two_cannot_have_a_body_inflated(rig: Rig, named: str) -> None:
    """Each header line is looked at; of two the library would follow whichever it likes."""
    lines = [f"Content-Encoding: {one}".encode() for one in named.split(", ")]
    answer = await rig.raw(head(*lines, b"Connection: close", b"Content-Length: " + SIZE) + BODY)
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert rig.served() == 0


async def test_a_client_may_leave_after_any_byte(make_rig: MakeRig) -> None:
    """Whatever was there of its request, nothing is left behind, and at most one engine was asked, once."""
    rig = await make_rig(idle_s=0.2)
    text = head(b"Content-Length: " + str(len(STREAM)).encode()) + STREAM
    cuts = range(0, len(text) + 1, 13)
    for cut in cuts:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        writer.write(text[:cut])
        await writer.drain()
        if cut % 2:
            writer.write_eof()
        writer.close()
    assert (await rig.chat()).status == 200
    await rig.settled()
    rig.assert_nothing_held()
    assert rig.router.plane.holdings.bytes.used == 0
    assert rig.served() <= 2
    await until(lambda: len(rig.router.plane.holdings.connections) <= 1)


async def test_a_client_may_leave_after_any_event(rig: Rig) -> None:
    events = [chunk(str(number)) for number in range(6)]
    for seen in range(6):
        gate = asyncio.Event()
        rig.a.script = rig.b.script = Script(sse=[*events, chunk(finish="stop"), "[DONE]"], gates={seen + 1: gate})
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        writer.write(head(b"Content-Length: " + str(len(STREAM)).encode()) + STREAM)
        await reader.readuntil(f'"content":"{seen}"'.encode())
        writer.transport.abort()
        await rig.settled()
        rig.assert_nothing_held()
        assert rig.served() == seen + 1
    assert rig.router.plane.holdings.bytes.used == 0


async def test_a_connection_that_asks_nothing_is_closed(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a request keeps a connection no longer than none."""
    monkeypatch.setattr(doors, "KEEPALIVE_S", 0.05)
    rig = await make_rig()
    for text in (b"", b"POST /v1/chat", head(b"X-Unfinished: ")[:-4]):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        writer.write(text)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    await until(lambda: len(rig.router.plane.holdings.connections) == 0)
