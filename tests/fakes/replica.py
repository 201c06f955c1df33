"""A scripted engine on a real socket: it says exactly what a test tells it to, byte for byte, and remembers exactly what it was sent.

Raw asyncio streams, not an HTTP library: tests need half events, resets, and answers that no library would write. Waiting is by events that the
test sets.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Then = Literal["close", "rst", "hang"]


@dataclass
class Received:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    raw_headers: list[tuple[str, str]]
    body: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # set when the peer closed the connection

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Script:
    """What to answer. ``sse`` items become events, ``pieces`` are exact writes; ``gates[i]`` is awaited before piece i, ``hold`` before headers."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | dict[str, Any] | None = None
    sse: Sequence[Any] | None = None
    pieces: Sequence[bytes] | None = None
    gates: dict[int, asyncio.Event] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    gate_end: asyncio.Event | None = None
    then: Then | None = None  # after the answer; None keeps the connection alive
    chunked_end: bool = True  # a proper end of the chunked body
    refuse_connection: bool = False


def event(value: Any) -> bytes:
    """One server-sent event as engines write it."""
    return b"data: " + (value.encode() if isinstance(value, str) else msgspec.json.encode(value)) + b"\n\n"


def chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a chat stream."""
    delta = {} if text is None else {"content": text}
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-7b", "choices": [choice], **more}


def usage_chunk(prompt: int = 12, completion: int = 2, cached: int = 0) -> dict[str, Any]:
    """The chunk that ends a stream when usage was asked for."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-7b",
        "choices": [],
        "usage": usage(prompt, completion, cached),
    }


def usage(prompt: int = 12, completion: int = 2, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def completion(text: str = "hello", **more: Any) -> dict[str, Any]:
    """A whole chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-7b", "choices": [choice], "usage": usage(), **more}


class FakeReplica:
    """One fake engine. ``script`` answers everything that has no entry in ``scripts`` (used up in order) or ``on_path``.

    Without any script it behaves: streams when asked to, with usage when asked to, and refuses ``stream_options`` without ``stream`` as vLLM does.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.script: Script | None = None
        self.scripts: list[Script] = []
        self.on_path: dict[str, Script] = {}
        self.requests: list[Received] = []  # POST to /v1/...
        self.probes: list[Received] = []  # /health, /metrics, /version, /v1/models
        self.arrived = asyncio.Condition()
        self.connections = 0
        self.blocked_writes = asyncio.Event()  # a write of ours had to wait for the reader
        self.keepalive_s: float | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listen on a free port, or on the one that it had before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._server = None

    async def wait_for(self, count: int) -> Received:
        """Wait until ``count`` requests have arrived; returns the last of them."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        received: Received | None = None
        try:
            while True:
                received = await asyncio.wait_for(self._read(reader), self.keepalive_s)
                if received is None or not await self._answer(received, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            if received is not None:
                received.closed.set()
        except (TimeoutError, asyncio.CancelledError):
            pass  # our own keep-alive is over, or the test is
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Received | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        raw_headers = [(line.split(":", 1)[0].strip(), line.split(":", 1)[1].strip()) for line in lines]
        headers = {name.lower(): value for name, value in raw_headers}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        received = Received(method=method, path=path, headers=headers, raw_headers=raw_headers, body=body)
        async with self.arrived:
            (self.requests if path.startswith("/v1/") and method == "POST" else self.probes).append(received)
            self.arrived.notify_all()
        return received

    def _script_for(self, received: Received) -> Script:
        if received.path in self.on_path:
            return self.on_path[received.path]
        if received.path == "/health":
            return Script(body=b"")
        if received.method != "POST" or not received.path.startswith("/v1/"):
            return Script(status=404, body={"detail": "Not Found"})
        if self.scripts:
            return self.scripts.pop(0)
        return self.script or self._behave(received)

    def _behave(self, received: Received) -> Script:
        asked = received.json
        if "stream_options" in asked and asked.get("stream") is not True:
            return Script(
                status=400,
                body={
                    "error": {
                        "message": "Stream options can only be defined when `stream=True`.",
                        "type": "BadRequestError",
                        "param": "stream_options",
                        "code": 400,
                    }
                },
            )
        if asked.get("stream"):
            events: list[Any] = [chunk(""), chunk("hel"), chunk("lo"), chunk(finish="stop")]
            if (asked.get("stream_options") or {}).get("include_usage"):
                events.append(usage_chunk())
            return Script(sse=[*events, "[DONE]"])
        return Script(body=completion())

    async def _answer(self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True if the connection may be used again."""
        script = self._script_for(received)
        watch = asyncio.create_task(_until_closed(reader, received))
        try:
            if script.hold is not None and not await _first(script.hold, received.closed):
                return False
            pieces = script.pieces if script.pieces is not None else None if script.sse is None else [event(item) for item in script.sse]
            if pieces is None:
                return await self._whole(script, writer)
            return await self._stream(script, pieces, received, writer)
        finally:
            watch.cancel()
            await asyncio.wait([watch])  # two readers of one stream cannot be

    async def _whole(self, script: Script, writer: asyncio.StreamWriter) -> bool:
        body = script.body if isinstance(script.body, bytes) else msgspec.json.encode(script.body if script.body is not None else {})
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Server": "fake-engine", **script.headers}
        writer.write(_head(script.status, headers) + body)
        await writer.drain()
        return await self._then(script, writer)

    async def _stream(self, script: Script, pieces: Sequence[bytes], received: Received, writer: asyncio.StreamWriter) -> bool:
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked", "Server": "fake-engine", **script.headers}
        writer.write(_head(script.status, headers))
        await writer.drain()
        for place, piece in enumerate(pieces):
            gate = script.gates.get(place)
            if gate is not None and not await _first(gate, received.closed):
                return False
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if writer.transport.get_write_buffer_size() > 0:
                self.blocked_writes.set()
            await writer.drain()
        if script.gate_end is not None and not await _first(script.gate_end, received.closed):
            return False
        if script.then is None or (script.then == "close" and script.chunked_end):
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return await self._then(script, writer)

    async def _then(self, script: Script, writer: asyncio.StreamWriter) -> bool:
        if script.then == "hang":
            await asyncio.Event().wait()
        if script.then == "rst":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        return script.then is None


def _head(status: int, headers: dict[str, str]) -> bytes:
    return f"HTTP/1.1 {status} Scripted\r\n".encode() + "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"


async def _until_closed(reader: asyncio.StreamReader, received: Received) -> None:
    """Notice that the peer closed, without taking what it may send next on a kept connection."""
    while not reader.at_eof():
        if reader._buffer:  # type: ignore[attr-defined] # a peek that StreamReader does not offer; nothing is consumed
            return
        await reader._wait_for_data("peek")  # type: ignore[attr-defined] # as above
    received.closed.set()


async def _first(wanted: asyncio.Event, closed: asyncio.Event) -> bool:
    """Wait for ``wanted``; False if the peer closes first."""
    tasks = [asyncio.create_task(wanted.wait()), asyncio.create_task(closed.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return wanted.is_set()
    finally:
        for task in tasks:
            task.cancel()
