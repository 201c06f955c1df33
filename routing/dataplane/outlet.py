"""What leaves a router for Valkey: a bounded queue in memory (:mod:`routing.dataplane.backlog`), a bounded stream there, and never a request that
waits for either.

Policy: entries are sent at least once: a write whose answer was lost is repeated, and ingest knows each by its id. When the queue is full, or a
tenant has its share of it, the newest entry is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.core import record
from routing.core.shares import Shares
from routing.dataplane.backlog import Backlog

BATCH = 200
WRITE_S = 2.0
RETRY_S = 0.25
RETRY_MAX_S = 2.0
log = logging.getLogger("saltroute.telemetry")


class Counts(Protocol):
    """A counter."""

    def inc(self, amount: float = 1) -> None: ...


class Outlet:
    """The queue of one stream, and the task that empties it. ``key`` authenticates this router's entries; ``dropped`` counts what the queue lost."""

    def __init__(self, *, stream: str, router_id: str, key: bytes, queue_bound: int, stream_maxlen: int, sent: Counts, dropped: Counts) -> None:
        self._stream = stream
        self._router_id = router_id
        self._key = key
        self._maxlen = stream_maxlen
        self._sent = sent
        self._dropped = dropped
        self._queue: Backlog[tuple[str, bytes]] = Backlog(bound=queue_bound, batch=BATCH, retry_s=RETRY_S, retry_max_s=RETRY_MAX_S)
        self._shares = Shares(queue_bound)  # by tenant: one that asks much while Valkey is away leaves room for the others' entries

    def room(self, tenant_id: str) -> bool:
        """Whether another entry of a tenant would be queued: what would be dropped need not be made."""
        return self._shares.room(tenant_id)

    def put(self, tenant_id: str, data: bytes) -> None:
        """Queue an entry, or drop and count it."""
        if not self._shares.take(tenant_id):
            self._dropped.inc()
            return
        self._queue.put((tenant_id, data))

    def queued(self) -> int:
        return len(self._queue)

    async def run(self, valkey: Redis) -> None:
        """Send what is queued, for ever."""
        await self._queue.run(partial(self._write, valkey))

    async def send_batch(self, valkey: Redis) -> bool:
        """Write up to ``BATCH`` entries; True unless Valkey did not take them, in which case they stay queued."""
        return await self._queue.send_batch(partial(self._write, valkey))

    async def _write(self, valkey: Redis, batch: list[tuple[str, bytes]]) -> bool:
        pipe = valkey.pipeline(transaction=False)
        for tenant_id, data in batch:
            mac = record.authenticate(self._key, self._router_id, data)
            pipe.xadd(self._stream, {"r": self._router_id, "t": tenant_id, "d": data, "m": mac}, maxlen=self._maxlen, approximate=True)
        try:
            async with asyncio.timeout(WRITE_S):
                await pipe.execute()
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("records wait: %s", type(error).__name__)
            return False
        for tenant_id, _ in batch:
            self._shares.give_back(tenant_id)
        self._sent.inc(len(batch))
        return True

    async def flush(self, valkey: Redis, within_s: float) -> None:
        """Send what is left before the process ends; what cannot be sent in time is dropped and counted."""
        try:
            async with asyncio.timeout(within_s):
                while self._queue and await self.send_batch(valkey):
                    pass
        except TimeoutError:
            pass
        if self._queue:
            self._dropped.inc(len(self._queue))
            log.warning("%d records lost at exit", len(self._queue))
