"""Helpers of the wire tests: a fast replica, a client session, shapes of JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import RunningReplica, running_fleet

FAST = TimeModel(speed=500.0)
RECORDED_ENGINE = EngineConfig(blocks=200, block_size_tokens=32, max_model_len_tokens=4096, max_num_seqs=8, time=FAST)
RECORDED = ReplicaConfig(engine=RECORDED_ENGINE, model="tiny")
SLOW_DECODE = replace(RECORDED, engine=replace(RECORDED_ENGINE, time=TimeModel(step_s=0.02)))


@dataclass(frozen=True)
class Wire:
    """A running replica and a session to it."""

    running: RunningReplica
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.session.post(self.running.url + path, json=body, headers=headers) as answer:
            raw = await answer.read()
            return answer.status, json.loads(raw) if answer.content_type == "application/json" else raw.decode()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.running.url + path) as answer:
            return answer.status, await answer.text()

    async def chat(self, text: str, **more: Any) -> dict[str, Any]:
        status, body = await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 2, **more})
        assert status == 200, body
        answer: dict[str, Any] = body
        return answer

    async def mode(self, **changes: Any) -> None:
        status, body = await self.post("/sim/mode", changes)
        assert status == 200, body


@asynccontextmanager
async def wired(config: ReplicaConfig = RECORDED) -> AsyncIterator[Wire]:
    async with running_fleet(config) as fleet, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield Wire(fleet[0], session)


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until something is true; the test's own timeout is the bound."""
    while not condition():  # noqa: ASYNC110  # the state belongs to the product, which has no event for tests
        await asyncio.sleep(0.001)


def sse(text: str) -> list[Any]:
    """The events of a stream, decoded; [DONE] stays a string."""
    lines = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def shape(value: Any) -> Any:
    """Keys in order and types of scalars; the values of words from a closed list; a list by its distinct members."""
    if isinstance(value, dict):
        return [(key, value[key] if key in {"object", "finish_reason", "role", "type"} else shape(value[key])) for key in value]
    if isinstance(value, list):
        members: list[Any] = []
        for member in map(shape, value):
            if member not in members:
                members.append(member)
        return members
    return type(value).__name__
