"""One conversation with an engine: what is sent, how long is waited, and every way in which it fails, named.

Request headers are an allow-list: nothing of the client's reaches an engine, except a well-formed trace parent. Redirects are not followed,
cookies are not
kept, compression is asked off (and undone if it comes anyway), and there is no total time limit.
"""

from __future__ import annotations

import asyncio
import os
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Literal

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from routing.core import tracecontext
from routing.dataplane.config import Config
from routing.dataplane.view import ReplicaView
from routing.outbound import guard

Cause = Literal["connect", "connect_timeout", "blocked", "first_byte_timeout", "idle_timeout", "broken", "stale_connection", "too_large", "encoding"]


class UpstreamFailed(Exception):
    """The engine could not be asked, or stopped answering. ``cause`` is ours; the original error's text, which may name an address, is left
    behind."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


class _Response(aiohttp.ClientResponse):
    """Keeps the address that was connected to: a short answer gives its connection back before anybody could ask."""

    peer: str | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        name = None if connection.transport is None else connection.transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) and name else None
        return await super().start(connection)


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
        response_class=_Response,
    )


HOP_HEADER = "X-Saltroute-Hop"  # says to a router that another one sent this: somebody registered a router as a replica


def request_headers(replica: ReplicaView, *, stream: bool, presented_parents: list[str], trace_id: str) -> dict[str, str]:
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
        response = await session.post(
            URL(replica.url + path, encoded=True), data=body, headers=headers, allow_redirects=False, trace_request_ctx=trace
        )
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        if isinstance(error, aiohttp.ServerTimeoutError):
            raise UpstreamFailed("connect_timeout") from None
        raise
    except aiohttp.ClientConnectorError as error:
        raise UpstreamFailed("blocked" if guard.was_refused(error) else "connect") from None
    except (aiohttp.ClientError, OSError) as error:
        if guard.was_refused(error):
            raise UpstreamFailed("blocked") from None
        raise UpstreamFailed("stale_connection" if trace.reused else "broken") from None
    return Upstream(response)


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

    response: aiohttp.ClientResponse
    _decoders: list[zlib._Decompress] = field(default_factory=list)
    _ready: bool = False

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def peer(self) -> str | None:
        """The address that was connected to; it passed the guard."""
        return self.response.peer if isinstance(self.response, _Response) else None

    @property
    def is_stream(self) -> bool:
        return self.response.headers.get("Content-Type", "").lower().startswith("text/event-stream")

    @property
    def retry_after(self) -> str | None:
        """Retry-After, if it is a plain number of seconds or a short date."""
        value = self.response.headers.get("Retry-After", "")
        return value if 0 < len(value) <= 40 and value.isascii() and value.isprintable() else None

    async def read(self) -> bytes:
        """The next piece, decoded; empty at the clean end.

        Raises:
            UpstreamFailed: ``broken`` when the connection ended in the middle, ``encoding`` for a compression that cannot be undone.
        """
        self._prepare()
        while True:
            try:
                piece = await self.response.content.readany()
            except (aiohttp.ClientError, OSError):
                raise UpstreamFailed("broken") from None
            if not piece or not self._decoders:
                return piece
            decoded = self._decode(piece)
            if decoded:
                return decoded

    async def read_all(self, *, limit_bytes: int, first_byte_at_s: float, idle_s: float) -> bytes:
        """The whole answer, bounded.

        Raises:
            UpstreamFailed: broken, too slow, or larger than ``limit_bytes``.
        """
        parts: list[bytes] = []
        size = 0
        deadline_s = first_byte_at_s
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    piece = await self.read()
            except TimeoutError:
                raise UpstreamFailed("idle_timeout" if parts else "first_byte_timeout") from None
            if not piece:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            parts.append(piece)
            size += len(piece)
            if size > limit_bytes:
                raise UpstreamFailed("too_large")
            deadline_s = loop.time() + idle_s

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

    def _decode(self, piece: bytes) -> bytes:
        for decoder in self._decoders:
            try:
                piece = decoder.decompress(piece, 64 * 1024 * 1024)
            except zlib.error:
                raise UpstreamFailed("encoding") from None
            if decoder.unconsumed_tail:
                raise UpstreamFailed("too_large")
        return piece

    def close(self) -> None:
        """End the conversation. A connection whose answer was read to the end goes back to the pool; any other is closed, which aborts the engine."""
        if self.response.connection is not None:
            self.response.close()
