"""A scripted TensorRT-LLM server, after its published code: KV cache events wait in a buffer that ``POST /kv_cache_events`` drains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.fakes.replica import FakeReplica, Received, Script

CREATED = {"type": "created", "num_blocks_per_cache_level": [4000, 0]}


class FakePolled(FakeReplica):
    """``buffer`` holds what the next question gets, ``next`` the number of the next event; ``drained`` counts questions."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.buffer: list[dict[str, Any]] = []
        self.next = 0
        self.drained = 0
        self.absent = False  # the server has no such path

    def say(self, *data: dict[str, Any], **more: Any) -> None:
        """One event for each."""
        for one in data:
            self.buffer.append({"event_id": self.next, "data": one, "window_size": 4096, **more})
            self.next += 1

    def begin(self) -> None:
        """Another process: numbers from 0, nothing said but that its cache was made."""
        self.buffer, self.next = [], 0
        self.say(CREATED)

    def _script_for(self, received: Received) -> Script:
        if received.path == "/kv_cache_events" and received.method == "POST" and not self.absent:
            self.drained += 1
            said, self.buffer = self.buffer, []
            return Script(body=msgspec.json.encode(said))
        return super()._script_for(received)


def block(own: int, tokens: Sequence[int], *, salt: str | None = None, **more: Any) -> dict[str, Any]:
    listed = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens]
    return {"type": "stored_block", "block_hash": own, "tokens": listed, "cache_level": 0, "priority": 35, "mm_keys": [], "cache_salt": salt, **more}


def stored(blocks: Sequence[dict[str, Any]], *, parent: int | None = None) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "removed", "block_hashes": list(hashes)}


@asynccontextmanager
async def running_polled(name: str = "T") -> AsyncIterator[FakePolled]:
    fake = FakePolled(name)
    await fake.start()
    fake.begin()
    try:
        yield fake
    finally:
        await fake.stop()
