"""What waits to be sent somewhere that may be away: bounded, in order, and never a request that waits for it.

Policy: what the other side does not take stays, in order, and is sent when it is back; the pause between two attempts doubles meanwhile. When the
backlog is full the newest is refused, which is the owner's to count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

One = TypeVar("One")


class Backlog(Generic[One]):
    """At most ``bound`` things, sent ``batch`` at a time. One event loop owns it."""

    def __init__(self, *, bound: int, batch: int, retry_s: float, retry_max_s: float) -> None:
        self.bound = bound
        self._batch = batch
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._waiting: deque[One] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[One]:
        """Oldest first."""
        return iter(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self.bound

    def put(self, one: One) -> bool:
        """Add to the end; False: it is full, and nothing was added."""
        if self.full:
            return False
        self._waiting.append(one)
        self._wake.set()
        return True

    async def run(self, send: Callable[[list[One]], Awaitable[bool]]) -> None:
        """Send what waits, for ever. ``send`` says whether a batch is done with; if not, it stays."""
        pause_s = self._retry_s
        while True:
            await self._wake.wait()
            if await self.send_batch(send):
                pause_s = self._retry_s
                if not self._waiting:
                    self._wake.clear()
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(self._retry_max_s, pause_s * 2)

    async def send_batch(self, send: Callable[[list[One]], Awaitable[bool]]) -> bool:
        """Send one batch now; True unless it stays."""
        batch = [self._waiting[place] for place in range(min(self._batch, len(self._waiting)))]
        if not batch:
            return True
        if not await send(batch):
            return False
        for _ in batch:
            self._waiting.popleft()
        return True
