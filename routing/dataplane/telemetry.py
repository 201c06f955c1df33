"""Decision records on their way out (:mod:`routing.dataplane.outlet`).

Each record carries a number of its own within the process, taken also by those that are dropped: ingest sees from the gaps how many never came,
whether the queue was full, the stream was trimmed or Valkey lost it.
"""

from __future__ import annotations

import time

import msgspec

from routing.core import record
from routing.core.record import DecisionRecord
from routing.dataplane.metrics import Metrics
from routing.dataplane.outlet import Outlet

STREAM = "saltroute:records"
FULL_PER_S = 100.0  # records with candidates that one router makes: an outage in which all requests fail must not fill the stream


class Telemetry(Outlet):
    """The records' outlet."""

    def __init__(self, *, router_id: str, records_key: bytes, queue_bound: int, stream_maxlen: int, metrics: Metrics, sample: float = 0.01) -> None:
        super().__init__(
            stream=STREAM,
            router_id=router_id,
            key=records_key,
            queue_bound=queue_bound,
            stream_maxlen=stream_maxlen,
            sent=metrics.records_sent,
            dropped=metrics.records_dropped,
        )
        self._metrics = metrics
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
        tenant_id = str(entry.tenant_id)
        if not self.room(tenant_id):
            self._dropped.inc()
            return
        self.put(tenant_id, record.encode(msgspec.structs.replace(entry, boot_ms=self._boot_ms, serial=self._serial)))

    def waiting(self) -> list[DecisionRecord]:
        """The records not sent yet, oldest first; for status and tests."""
        return [record.decode(data) for _, data in self._queue]
