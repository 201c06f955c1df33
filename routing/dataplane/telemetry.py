"""Decision records on their way out: a bounded queue in memory, a bounded stream in Valkey, and never a request that waits for either.

Policy: while Valkey is away records stay in the queue in order and are sent when it is back (at least once: a write whose answer was lost is
repeated, and
ingest knows a record by its id). When the queue is full the newest record is dropped and counted.

Each record carries a number of its own within the process, taken also by those that are dropped: ingest sees from the gaps how many never came,
whether the queue was full, the stream was trimmed or Valkey lost it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.core import record
from routing.core.record import DecisionRecord
from routing.dataplane.metrics import Metrics

STREAM = "saltroute:records"
BATCH = 200
WRITE_S = 2.0
RETRY_S = 0.25
RETRY_MAX_S = 2.0
FULL_PER_S = 100.0  # records with candidates that one router makes: an outage in which all requests fail must not fill the stream
log = logging.getLogger("saltroute.telemetry")


class Telemetry:
    """The queue and the task that empties it."""

    def __init__(self, *, router_id: str, records_key: bytes, queue_bound: int, stream_maxlen: int, metrics: Metrics, sample: float = 0.01) -> None:
        self._router_id = router_id
        self._records_key = records_key
        self._bound = queue_bound
        self._maxlen = stream_maxlen
        self._metrics = metrics
        self._queue: deque[tuple[str, bytes]] = deque()
        self._wake = asyncio.Event()
        self._sample = sample
        self._full_left = FULL_PER_S
        self._full_at_s = 0.0
        self._boot_ms = time.time_ns() // 1_000_000
        self._serial = 0

    def keeps_candidates(self, entry: DecisionRecord, *, asked: bool) -> bool:
        """Whether ``entry`` is to hold its candidates: somebody will want them, and not too many records of late did."""
        why = record.wants_candidates(entry, asked=asked, share=self._sample)
        if why is None:
            return False
        now_s = time.monotonic()
        self._full_left = min(FULL_PER_S, self._full_left + (now_s - self._full_at_s) * FULL_PER_S)
        self._full_at_s = now_s
        if self._full_left < 1.0:
            self._metrics.records_shortened.labels(why=why).inc()
            return False
        self._full_left -= 1.0
        return True

    def add(self, entry: DecisionRecord) -> None:
        """Queue a record, or drop and count it."""
        self._serial += 1
        if len(self._queue) >= self._bound:
            self._metrics.records_dropped.inc()
            return
        numbered = msgspec.structs.replace(entry, boot_ms=self._boot_ms, serial=self._serial)
        self._queue.append((str(entry.tenant_id), record.encode(numbered)))
        self._wake.set()

    def queued(self) -> int:
        return len(self._queue)

    def waiting(self) -> list[DecisionRecord]:
        """The records not sent yet, oldest first; for status and tests."""
        return [record.decode(data) for _, data in self._queue]

    async def run(self, valkey: Redis) -> None:
        """Send what is queued, for ever."""
        pause_s = RETRY_S
        while True:
            await self._wake.wait()
            if await self.send_batch(valkey):
                pause_s = RETRY_S
                if not self._queue:
                    self._wake.clear()
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def send_batch(self, valkey: Redis) -> bool:
        """Write up to ``BATCH`` records; True unless Valkey did not take them, in which case they stay queued."""
        batch = [self._queue[place] for place in range(min(BATCH, len(self._queue)))]
        if not batch:
            return True
        pipe = valkey.pipeline(transaction=False)
        for tenant_id, data in batch:
            mac = record.authenticate(self._records_key, self._router_id, data)
            pipe.xadd(STREAM, {"r": self._router_id, "t": tenant_id, "d": data, "m": mac}, maxlen=self._maxlen, approximate=True)
        try:
            async with asyncio.timeout(WRITE_S):
                await pipe.execute()
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("records wait: %s", type(error).__name__)
            return False
        for _ in batch:
            self._queue.popleft()
        self._metrics.records_sent.inc(len(batch))
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
            self._metrics.records_dropped.inc(len(self._queue))
            log.warning("%d records lost at exit", len(self._queue))
