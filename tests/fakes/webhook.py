"""A webhook's receiver: it keeps what it got and answers as told."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Got:
    """One message as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Runs in a thread of its own, since the sender of the tests blocks. Used as a context manager."""

    status: int = 200
    location: str | None = None
    hang: bool = False
    got: list[Got] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Receiver:
        self._loop = asyncio.new_event_loop()
        self._ready, self._free = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._free.set)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request) -> web.Response:
        self.got.append(Got(request.path, dict(request.headers), await request.read()))
        if self.hang:
            await self._free.wait()
        return web.Response(status=self.status, text="whatever", headers={"Location": self.location} if self.location else {})
