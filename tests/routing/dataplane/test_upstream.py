"""Asking an engine over a real socket: small bodies and large ones, which an engine may not take to their end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from routing.core.engines import ENGINES
from routing.dataplane import upstream
from routing.dataplane.config import Config
from routing.dataplane.upstream import Upstream, UpstreamFailed
from routing.dataplane.view import ReplicaView
from tests.fakes.rig import LOOPBACK, replica_entry

SMALL, LARGE = b"{}", b'{"x":"' + b"x" * 100_000 + b'"}'
HUGE = b'{"x":"' + b"x" * 32 * 1024 * 1024 + b'"}'  # more than sockets hold
SIZES = pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Server:
    """Answers each request with the next of ``answers``; None: closes the connection. Keeps what it was asked."""

    answers: list[bytes | None]
    asked: list[bytes]
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.asked.append(head + await reader.readexactly(size))
                answer = self.answers.pop(0)
                if answer is None:
                    return
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncIterator[Server]:
    server = Server(list(answers), [])
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


Sessions = tuple[aiohttp.ClientSession, aiohttp.ClientSession]


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    config = Config(router_id="r", state_dir=tmp_path, allowed_ranges=LOOPBACK, connect_s=2.0)
    async with upstream.make_session(config, pooled=True) as pooled, upstream.make_session(config, pooled=False) as fresh:
        yield pooled, fresh


def replica_at(port: int) -> ReplicaView:
    return ReplicaView(replica_entry(f"http://127.0.0.1:{port}/base", "a"), ENGINES["vllm"], credential="the engine's", credential_opens=True)


async def ask(sessions: Sessions, replica: ReplicaView, body: bytes) -> Upstream:
    headers = upstream.request_headers(replica, stream=False, presented_parents=[], trace_id="0" * 32)
    return await upstream.deliver(*sessions, replica, "/v1/x", body=body, headers=headers)


async def whole(opened: Upstream) -> bytes:
    try:
        return await opened.read_all(await opened.read(), limit_bytes=1000, idle_s=5, keep=lambda _: None)
    finally:
        opened.close()


async def test_small_and_large_bodies_go_under_the_same_headers(sessions: Sessions) -> None:
    async with serving(WHOLE, WHOLE) as server:
        for body in (SMALL, LARGE):
            assert await whole(await ask(sessions, replica_at(server.port), body)) == b"ok"
    heads = [one.split(b"\r\n\r\n")[0].split(b"\r\n") for one in server.asked]
    assert heads[0][0] == heads[1][0] == b"POST /base/v1/x HTTP/1.1"
    small, large = ({line.split(b": ")[0].lower(): line.split(b": ")[1] for line in head[1:]} for head in heads)
    assert (small.pop(b"content-length"), large.pop(b"content-length")) == (b"2", str(len(LARGE)).encode())
    drawn = (b"x-request-id", b"traceparent")
    assert all(small.pop(name) != large.pop(name) for name in drawn)
    assert small == large
    assert server.connections == 1


@SIZES
async def test_what_comes_before_an_answer_is_passed_over(sessions: Sessions, body: bytes) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with serving(early + early + WHOLE) as server:
        opened = await ask(sessions, replica_at(server.port), body)
        assert (opened.status, opened.peer) == (200, "127.0.0.1")
        assert await whole(opened) == b"ok"


@SIZES
async def test_a_kept_connection_that_ends_is_replaced_once(sessions: Sessions, body: bytes) -> None:
    async with serving(WHOLE, None, WHOLE, None) as server:
        for _ in range(2):
            assert await whole(await ask(sessions, replica_at(server.port), body)) == b"ok"
        assert (len(server.asked), server.connections) == (3, 2)
        with pytest.raises(UpstreamFailed) as failed:
            await ask(sessions, replica_at(server.port), body)
        assert failed.value.cause == "broken"


@SIZES
@pytest.mark.parametrize("answer", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000])
async def test_what_is_not_http_is_a_broken_answer(sessions: Sessions, body: bytes, answer: bytes) -> None:
    async with serving(answer) as server:
        with pytest.raises(UpstreamFailed) as failed:
            await ask(sessions, replica_at(server.port), body)
        assert failed.value.cause == "broken"


@SIZES
async def test_an_answer_left_in_the_middle_ends_its_connection(sessions: Sessions, body: bytes) -> None:
    """As does a request cancelled before its answer: no next request may read what was meant for another."""
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"", WHOLE) as server:
        replica = replica_at(server.port)
        opened = await ask(sessions, replica, body)
        assert await opened.read() == b"half"
        opened.close()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await ask(sessions, replica, body)
        assert await whole(await ask(sessions, replica, body)) == b"ok"
        assert server.connections == 3


@SIZES
async def test_a_header_with_a_line_end_is_never_sent(sessions: Sessions, body: bytes) -> None:
    async with serving(WHOLE) as server:
        replica = replica_at(server.port)
        for value in ("a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b"):
            with pytest.raises(ValueError, match="header"):
                await upstream.deliver(*sessions, replica, "/v1/x", body=body, headers={"Authorization": value})
        assert server.asked == []
        assert await whole(await ask(sessions, replica, body)) == b"ok"


@dataclass
class Deaf:
    """Reads the head of each request alone and answers; only when ``listens`` is set does it read on, to the connection's end, and keeps how much."""

    answer: bytes
    port: int = 0
    connections: int = 0
    headed: asyncio.Event = field(default_factory=asyncio.Event)
    listens: asyncio.Event = field(default_factory=asyncio.Event)
    taken: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        self.headed.set()
        await self.listens.wait()
        taken = 0
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                taken += len(piece)
        writer.close()
        self.taken.put_nowait(taken)


@asynccontextmanager
async def deaf(answer: bytes) -> AsyncIterator[Deaf]:
    server = Deaf(answer)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=4096)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def test_an_engine_that_answers_before_it_has_read_all_is_heard_and_its_connection_is_not_used_again(sessions: Sessions) -> None:
    """What is left of a request would stand before the next one. The control: of a request that was read whole the connection is kept."""
    async with deaf(b"HTTP/1.1 413 X\r\nContent-Length: 2\r\n\r\nno") as server, asyncio.timeout(20):
        for number in (1, 2):
            opened = await ask(sessions, replica_at(server.port), HUGE)
            assert (opened.status, await whole(opened)) == (413, b"no")
            assert server.connections == number
        server.listens.set()
        assert all([await server.taken.get() < len(HUGE) for _ in range(2)])
    async with serving(WHOLE, WHOLE) as reads:
        for _ in range(2):
            assert await whole(await ask(sessions, replica_at(reads.port), HUGE)) == b"ok"
        assert reads.connections == 1


async def test_a_request_that_is_given_up_while_it_is_sent_ends_at_once(sessions: Sessions) -> None:
    """Nothing of it waits in this process for an engine that does not read, and an engine that does later gets no whole request."""
    async with deaf(b"") as server, asyncio.timeout(20):
        asked = asyncio.create_task(ask(sessions, replica_at(server.port), HUGE))
        await server.headed.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.listens.set()
        assert await server.taken.get() < len(HUGE)


async def _turns(count: int = 20) -> None:
    """Let the loop read what lies in sockets."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
async def test_what_an_engine_says_unasked_is_nobodys_answer(sessions: Sessions, read: bool) -> None:
    """One answer too many would make each next request's answer the one before's: another tenant's. The control: a quiet connection is used again."""
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as listening:
        replica = replica_at(listening.sockets[0].getsockname()[1])
        for body in (b"one", b"two"):
            assert await whole(await ask(sessions, replica, body)) == body
        assert len(writers) == 1
        writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra")
        if read:
            await _turns()
        for body in (b"of one tenant", b"of another", b"of a third"):
            assert await whole(await ask(sessions, replica, body)) == body


async def test_interim_answers_without_end_are_a_broken_answer(sessions: Sessions) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    async with serving(interim * upstream.MAX_INTERIM + WHOLE, interim * (upstream.MAX_INTERIM + 1) + WHOLE) as server:
        assert await whole(await ask(sessions, replica_at(server.port), SMALL)) == b"ok"
        with pytest.raises(UpstreamFailed) as failed:
            await ask(sessions, replica_at(server.port), SMALL)
        assert failed.value.cause == "broken"


def packed(plain: bytes, encoding: str) -> bytes:
    inner = gzip.compress(zlib.compress(plain)) if "," in encoding else gzip.compress(plain)
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s" % (encoding.encode(), len(inner), inner)


@pytest.mark.parametrize("encoding", ["gzip", "deflate, gzip"])
async def test_few_bytes_that_stand_for_very_many_come_out_in_pieces(sessions: Sessions, encoding: str) -> None:
    """Whole to the last byte, each piece bounded, and others have their turn between two of them."""
    plain = b"data: {}\n\n" * 800_000 + b"the end"
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(packed(plain, encoding)) as server:
        opened = await ask(sessions, replica_at(server.port), SMALL)
        beside = asyncio.create_task(other())
        pieces = []
        while piece := await opened.read():
            pieces.append(piece)
        beside.cancel()
        assert b"".join(pieces) == plain
        assert max(map(len, pieces)) <= upstream.DECODED_BYTES
        assert turns >= len(pieces)


async def test_what_follows_a_compressed_answer_is_refused_and_not_kept(sessions: Sessions) -> None:
    inner = gzip.compress(b"ok")
    for rest, expected in ((b"", b"ok"), (b"x" * 1000, None)):
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(inner + rest)
        async with serving(head + inner + rest) as server:
            opened = await ask(sessions, replica_at(server.port), SMALL)
            if expected is not None:
                assert await whole(opened) == expected
                continue
            with pytest.raises(UpstreamFailed) as failed:
                await whole(opened)
            assert failed.value.cause == "encoding"
