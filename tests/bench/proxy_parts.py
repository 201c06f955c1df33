"""The processes around a proxy in ``tests.bench.proxy``: an engine that answers at once, and a plain pass-through to compare with.

python -m tests.bench.proxy_parts engine PORT
python -m tests.bench.proxy_parts passthrough PORT ENGINE_PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import aiohttp
import msgspec
import uvloop
from aiohttp import web

MODEL = "m-7b"
EVENTS = 32
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})


def _usage(body_bytes: int) -> dict[str, object]:
    """Of an engine that has every prompt in its cache: the router then has no reason to hold anything back."""
    tokens = body_bytes // 4
    return {
        "prompt_tokens": tokens,
        "completion_tokens": EVENTS,
        "total_tokens": tokens + EVENTS,
        "prompt_tokens_details": {"cached_tokens": (tokens - 1) // 16 * 16},
    }


def whole(body_bytes: int) -> bytes:
    """An answer of about 1 KB."""
    message = {"role": "assistant", "content": "Salt keeps bread from spoiling. " * 22}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": _usage(body_bytes)}
    raw = msgspec.json.encode(body)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(raw), raw)


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = tuple(_chunk(_event({"content": f"word{number} "}, "stop" if number == EVENTS - 1 else None)) for number in range(EVENTS))
STREAM_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_MODEL = {"id": MODEL, "object": "model", "created": 1, "owned_by": "bench", "max_model_len": 131072}
_MODELS = msgspec.json.encode({"object": "list", "data": [_MODEL]})
MODELS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Engine(asyncio.Protocol):
    """HTTP/1.1 with Content-Length alone, one request after the other: what routers send. Every event is a write of its own."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._held[:end]).lower()
            place = head.find(b"content-length:")
            size = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self._held) < end + 4 + size:
                return
            body = bytes(self._held[end + 4 : end + 4 + size])
            del self._held[: end + 4 + size]
            self._serve(head, body)

    def _serve(self, head: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        if head.startswith(b"post /v1/chat/completions "):
            if b'"stream":true' in body or b'"stream": true' in body:
                self._transport.write(STREAM_HEAD)
                usage = len(body) if b'"include_usage":true' in body else 0
                asyncio.get_running_loop().call_soon(self._say, 0, usage)
            else:
                self._transport.write(whole(len(body)))
        elif head.startswith((b"get /health", b"get /metrics", b"get /ping")):
            self._transport.write(EMPTY)
        else:
            self._transport.write(MODELS if head.startswith(b"get /v1/models") else NOT_FOUND)

    def _say(self, number: int, usage_of: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if number == EVENTS:
            if usage_of:
                said = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": _usage(usage_of)}
                self._transport.write(_chunk(b"data: " + msgspec.json.encode(said) + b"\n\n"))
            self._transport.write(STREAM_END)
            return
        self._transport.write(STREAM[number])
        asyncio.get_running_loop().call_later(0.001, self._say, number + 1, usage_of)


async def engine(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


async def passthrough(port: int, engine_port: int) -> None:
    """What a proxy of a few lines does: no key, no limits, no choice, no record."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = f"http://127.0.0.1:{engine_port}{request.raw_path}"
        async with session.request(request.method, url, data=await request.read(), headers=headers, allow_redirects=False) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            if "Content-Length" in answer.headers:
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
            reply = web.StreamResponse(status=answer.status, headers=kept)
            await reply.prepare(request)
            async for piece in answer.content.iter_any():
                await reply.write(piece)
            await reply.write_eof()
            return reply

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main(arguments: list[str]) -> int:
    what, *ports = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(engine(int(ports[0])) if what == "engine" else passthrough(int(ports[0]), int(ports[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
