"""The pump that turns all sources of KV events without holding up requests."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.002  # of the event loop, at a time
REST_S = 0.001  # between two full slices while requests are in flight


class Readable(Protocol):
    """What the pump turns."""

    def step(self) -> bool:
        """Take one message; True if there may be more."""


class Pump:
    """Turns every source that has something, one message each in turn, for at most ``SLICE_S`` of a turn of the event loop.

    So a flood from one engine delays neither requests nor the events of others: what is not read is not received either.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._ready: deque[Readable] = deque()
        self._waiting: set[Readable] = set()
        self._wake = asyncio.Event()
        self.slices = 0
        self.full_slices = 0
        self.busy_s = 0.0

    def wake(self, source: Readable) -> None:
        """Something of ``source`` may be readable."""
        if source not in self._waiting:
            self._waiting.add(source)
            self._ready.append(source)
            self._wake.set()

    def drop(self, source: Readable) -> None:
        """``source`` is closed."""
        if source in self._waiting:
            self._waiting.discard(source)
            self._ready.remove(source)

    async def run(self) -> None:
        """Turn, for ever."""
        while True:
            await self._wake.wait()
            before_s = self.busy_s
            if self.turn():
                # Half of the loop at most is ours while requests are in flight, even where one message took longer than a slice.
                await asyncio.sleep(max(REST_S, self.busy_s - before_s - SLICE_S) if self._busy() else 0)
            else:
                self._wake.clear()

    def turn(self) -> bool:
        """One slice; True if something is left."""
        began_s = now_s = time.perf_counter()
        ends_s = began_s + SLICE_S
        while self._ready and now_s < ends_s:
            source = self._ready.popleft()
            if source.step():
                self._ready.append(source)
            else:
                self._waiting.discard(source)
            now_s = time.perf_counter()
        self.slices += 1
        self.full_slices += bool(self._ready)
        self.busy_s += now_s - began_s
        return bool(self._ready)
