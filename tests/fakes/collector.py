"""An OTLP collector over HTTP that keeps what it is sent, and can be told to refuse."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


class FakeCollector:
    """Start, look at ``spans``, stop. ``status`` is what it answers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status = 200
        self.asked = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked += 1
        if self.status == 200:
            self.bodies.append(body)
        return web.Response(status=self.status, body=b"{}")

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans so far, attributes as a plain dictionary."""
        found = []
        for body in self.bodies:
            for resource in json.loads(body)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found += [{**span, "attributes": {one["key"]: _plain(one["value"]) for one in span["attributes"]}} for span in scope["spans"]]
        return found


def _plain(value: dict[str, Any]) -> Any:
    ((kind, held),) = value.items()
    return int(held) if kind == "intValue" else held
