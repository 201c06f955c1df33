"""One conversation with an engine: what is sent, how long is waited, and every way in which it fails, named.

Request headers are an allow-list: nothing of the client's reaches an engine, except a well-formed trace parent. Redirects are not followed,
cookies are not
kept, compression is asked off (and undone if it comes anyway), and there is no total time limit.

Connections, their pool, their guard and the reading of answers are aiohttp's. Its session, which makes a dozen objects for every request, is left
out: that halves what asking costs. A request is handed over in one go, and the transport writes what the engine takes; an engine that answers before
it has read all has its connection closed, since what is left would stand before the next request.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Literal

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from aiohttp.tracing import Trace
from multidict import CIMultiDictProxy
from yarl import URL

from routing.core import tracecontext
from routing.dataplane.config import Config
from routing.dataplane.ranks import Rank
from routing.dataplane.view import ReplicaView
from routing.outbound import guard

Cause = Literal[
    "connect",
    "connect_timeout",
    "blocked",
    "no_socket",
    "unreachable",
    "first_byte_timeout",
    "idle_timeout",
    "broken",
    "stale_connection",
    "too_large",
    "encoding",
]

READ_BYTES = 64 * 1024  # an answer is read ahead of its reader by twice this
DECODED_BYTES = 128 * 1024  # of a compressed answer, at a time: few bytes may stand for very many
MAX_INTERIM = 16  # answers 1xx before the one that counts
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})  # this machine has no socket left: no engine's fault


def joined(whole: bytes | bytearray, piece: bytes) -> bytes | bytearray:
    """What came so far and what came now: one piece as it is, more in one growing buffer. Not a list, since a piece may be one byte."""
    if not whole:
        return piece
    if isinstance(whole, bytes):
        whole = bytearray(whole)
    whole += piece
    return whole


class UpstreamFailed(Exception):
    """The engine could not be asked, or stopped answering. ``cause`` is ours; the original error's text, which may name an address, is left
    behind."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


def _peer_of(connection: Connection) -> str | None:
    name = None if connection.transport is None else connection.transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else None


class _Reply:
    """An answer that has begun, without a session around it: as much of aiohttp's response as is used here."""

    __slots__ = ("connection", "content", "headers", "peer", "status")

    def __init__(self, connection: Connection, status: int, headers: CIMultiDictProxy[str], content: aiohttp.StreamReader) -> None:
        self.connection: Connection | None = connection
        self.peer = _peer_of(connection)
        self.status, self.headers, self.content = status, headers, content
        content.on_eof(self._read_to_its_end)

    def _read_to_its_end(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if _unsent(connection):
            _drop(connection)
        else:
            connection.release()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            _drop(connection)


def _unsent(connection: Connection) -> int:
    """Bytes of a request that the engine has not taken yet."""
    return 0 if connection.transport is None else connection.transport.get_write_buffer_size()


def _drop(connection: Connection) -> None:
    """End a connection at once: closed gently it would go on writing what nobody is to read, for as long as an engine does not."""
    if connection.transport is not None and _unsent(connection):
        connection.transport.abort()
    connection.close()


@dataclass(slots=True)
class _Trace:
    reused: bool = False


async def _noted_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams) -> None:
    if isinstance(context.trace_request_ctx, _Trace):
        context.trace_request_ctx.reused = True


def make_session(config: Config, *, pooled: bool, resolver: aiohttp.abc.AbstractResolver | None = None) -> aiohttp.ClientSession:
    """The session for engines. Two exist: one that keeps connections a little shorter than engines do, and one that never reuses any."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_noted_reuse)
    return aiohttp.ClientSession(
        connector=guard.connector(config.allowed_ranges, keepalive_s=config.keepalive_s, pooled=pooled, resolver=resolver),
        timeout=aiohttp.ClientTimeout(total=None, connect=config.connect_s, sock_connect=config.connect_s, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        requote_redirect_url=False,
        trace_configs=[trace] if pooled else [],
    )


HOP_HEADER = "X-Saltroute-Hop"  # says to a router that another one sent this: somebody registered a router as a replica


def request_headers(replica: ReplicaView, *, stream: bool, presented_parents: list[str], trace_id: str, rank: Rank | None = None) -> dict[str, str]:
    """All headers that an engine receives, but Host and Content-Length. The request id is drawn anew and cannot be guessed."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if stream else "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "saltroute",
        HOP_HEADER: "1",
        "X-Request-Id": f"sr-{uuid.uuid4().hex}",
        "traceparent": tracecontext.child(presented_parents, trace_id=trace_id, span_id=os.urandom(8).hex()),
    }
    if rank is not None and replica.engine.rank_header is not None:
        headers[replica.engine.rank_header] = str(rank.number)
    if replica.credential is not None:
        headers["Authorization"] = f"Bearer {replica.credential}"
    return headers


async def send(session: aiohttp.ClientSession, replica: ReplicaView, path: str, *, body: bytes, headers: Mapping[str, str]) -> Upstream:
    """Send a request and wait for the answer's headers; the caller holds the first-byte clock.

    Raises:
        UpstreamFailed: no connection, a refused address, or a connection that ended before an answer began (``stale_connection`` if it was a
        reused one).
    """
    trace = _Trace()
    try:
        response = await _ask(session, replica.url + path, body, headers, trace)
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        if isinstance(error, aiohttp.ServerTimeoutError):
            raise UpstreamFailed("connect_timeout") from None
        raise
    except aiohttp.ClientConnectorError as error:
        if guard.was_refused(error):
            raise UpstreamFailed("blocked") from None
        raise UpstreamFailed("no_socket" if error.os_error.errno in OURS else "connect") from None
    except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
        if guard.was_refused(error):
            raise UpstreamFailed("blocked") from None
        raise UpstreamFailed("stale_connection" if trace.reused else "broken") from None
    return Upstream(response)


@lru_cache(maxsize=4096)
def _address(url: str) -> aiohttp.ClientRequest:
    """Where a request goes, as aiohttp's connector wants it told, and its path and Host. Nothing of any one request is in it."""
    return aiohttp.ClientRequest("POST", URL(url, encoded=True), loop=asyncio.get_running_loop())


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], trace: _Trace) -> _Reply:
    """Write a request and wait for the answer's headers; errors are aiohttp's."""
    connector = session.connector
    if connector is None:
        raise aiohttp.ClientConnectionError("the session is closed")
    address = _address(url)
    traces = [Trace(session, one, one.trace_config_ctx(trace_request_ctx=trace)) for one in session.trace_configs]
    try:
        connection = await connector.connect(address, traces, session.timeout)
    except TimeoutError:
        raise aiohttp.ConnectionTimeoutError from None
    try:
        return await _converse(connection, _head(address, headers, len(body)), body, reused=trace.reused)
    except BaseException:
        _drop(connection)
        raise


def _spoke_unasked(protocol: ResponseHandler, transport: asyncio.Transport) -> bool:
    """Whether something came over a kept connection while nobody asked. It would be taken for the next answer, and that one for somebody else's."""
    if protocol.should_close:
        return True
    unread = select.poll()  # what the loop has not come to read
    unread.register(transport.get_extra_info("socket"), select.POLLIN)
    return bool(unread.poll(0))


def _head(address: aiohttp.ClientRequest, headers: Mapping[str, str], size: int) -> bytes:
    """Request line and headers.

    Raises:
        ValueError: a value holds a line end.
    """
    lines = [f"POST {address.url.raw_path_qs} HTTP/1.1", f"Host: {address.headers[hdrs.HOST]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, f"Content-Length: {size}", "", ""])
    ends = len(lines) + 2
    if head.count("\r") != ends or head.count("\n") != ends or "\0" in head:
        raise ValueError("a line end in a header")
    return head.encode()


async def _converse(connection: Connection, head: bytes, body: bytes, *, reused: bool) -> _Reply:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or (reused and _spoke_unasked(protocol, transport)):
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=READ_BYTES)
    transport.writelines((head, body))
    for _ in range(MAX_INTERIM + 1):
        message, content = await protocol.read()
        if not 100 <= message.code <= 199 or message.code == 101:
            return _Reply(connection, message.code, message.headers, content)
    raise aiohttp.ClientPayloadError("interim answers without end")


async def deliver(
    session: aiohttp.ClientSession, fresh_session: aiohttp.ClientSession, replica: ReplicaView, path: str, *, body: bytes, headers: Mapping[str, str]
) -> Upstream:
    """As :func:`send`; where a reused connection ended before a byte of the answer, once more on a new one.

    Raises:
        UpstreamFailed: as :func:`send`, never ``stale_connection``.
    """
    try:
        return await send(session, replica, path, body=body, headers=headers)
    except UpstreamFailed as failed:
        if failed.cause != "stale_connection":
            raise
    try:
        return await send(fresh_session, replica, path, body=body, headers=headers)
    except UpstreamFailed as failed:
        raise UpstreamFailed("broken" if failed.cause == "stale_connection" else failed.cause) from None


@dataclass(slots=True)
class Upstream:
    """An answer that has begun."""

    response: _Reply
    _decoders: list[zlib._Decompress] = field(default_factory=list)
    _undecoded: list[bytes | None] = field(default_factory=list)  # what each decoder has not taken yet; empty: it has more to give, None: it has not
    _ready: bool = False

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def peer(self) -> str | None:
        """The address that was connected to; it passed the guard."""
        return self.response.peer

    @property
    def is_stream(self) -> bool:
        return self.response.headers.get("Content-Type", "").lower().startswith("text/event-stream")

    @property
    def retry_after(self) -> str | None:
        """Retry-After, if it is a plain number of seconds or a short date."""
        value = self.response.headers.get("Retry-After", "")
        return value if 0 < len(value) <= 40 and value.isascii() and value.isprintable() else None

    async def read(self) -> bytes:
        """The next piece, decoded; empty at the clean end. Of a compressed answer ``DECODED_BYTES`` at most, and others have a turn before each.

        Raises:
            UpstreamFailed: ``broken`` when the connection ended in the middle, ``encoding`` for a compression that cannot be undone.
        """
        self._prepare()
        while True:
            while any(piece is not None for piece in self._undecoded):
                await asyncio.sleep(0)
                if decoded := self._decode():
                    return decoded
            try:
                piece = await self.response.content.readany()
            except (aiohttp.ClientError, OSError):
                raise UpstreamFailed("broken") from None
            if not piece or not self._decoders:
                return piece
            self._undecoded[0] = piece

    async def read_all(self, begun: bytes, *, limit_bytes: int, idle_s: float, keep: Callable[[int], None]) -> bytes:
        """The whole answer, bounded; ``begun`` is its first piece, as :meth:`read` gave it. ``keep`` is told of each piece's size before it is kept.

        Raises:
            UpstreamFailed: broken, too slow, or larger than ``limit_bytes``.
            ApiError: ``keep``'s, if there is no room.
        """
        whole: bytes | bytearray = b""
        piece = begun
        while piece:
            keep(len(piece))
            whole = joined(whole, piece)
            if len(whole) > limit_bytes:
                raise UpstreamFailed("too_large")
            try:
                if self.response.content.is_eof():  # nothing to wait for
                    piece = await self.read()
                else:
                    async with asyncio.timeout(idle_s):
                        piece = await self.read()
            except TimeoutError:
                raise UpstreamFailed("idle_timeout") from None
        return bytes(whole)

    def _prepare(self) -> None:
        """Set up one decoder for each encoding in the chain, innermost last."""
        if self._ready:
            return
        self._ready = True
        names = [name.strip().lower() for name in self.response.headers.get("Content-Encoding", "").split(",")]
        for name in reversed([name for name in names if name not in ("", "identity")]):
            if name not in ("gzip", "x-gzip", "deflate") or len(self._decoders) >= 3:
                raise UpstreamFailed("encoding")
            self._decoders.append(zlib.decompressobj(zlib.MAX_WBITS | 32))  # gzip or zlib, by its header
            self._undecoded.append(None)

    def _decode(self) -> bytes:
        """One step of the decoder nearest to the plain bytes that has something to do, and of those after it."""
        first = max(place for place, piece in enumerate(self._undecoded) if piece is not None)
        piece = self._undecoded[first] or b""
        for place in range(first, len(self._decoders)):
            decoder = self._decoders[place]
            try:
                piece = decoder.decompress(piece, DECODED_BYTES)
            except zlib.error:
                raise UpstreamFailed("encoding") from None
            if decoder.unused_data:  # kept by the decoder, however much comes
                raise UpstreamFailed("encoding")
            self._undecoded[place] = decoder.unconsumed_tail or (b"" if len(piece) == DECODED_BYTES else None)
        return piece

    def close(self) -> None:
        """End the conversation. A connection whose answer was read to the end goes back to the pool; any other is closed, which aborts the engine."""
        if self.response.connection is not None:
            self.response.close()
