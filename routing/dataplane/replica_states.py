"""Every few seconds, what became of each replica since: how long it had work, what it evicted, what it holds. For metrics, and for rollups by way of
the stream that carries records.

Nothing is queued: what could not be sent is in the next state, which covers the longer time.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.core import duplication, replica_state
from routing.core.duplication import Held
from routing.core.replica_state import MAX_OBSERVED_US, ReplicaState
from routing.dataplane.telemetry import STREAM

if TYPE_CHECKING:
    from routing.dataplane.engine import Engine
    from routing.dataplane.state import Plane

MAX_STATES = 2000  # in one go: replicas of all pools that a router knows; the rest is told in turn
WRITE_S = 2.0
log = logging.getLogger("saltroute.states")


@dataclass(frozen=True, slots=True)
class Mark:
    """An engine's figures as of the last state that was sent; times in seconds, ``at_s`` monotonic."""

    engine: Engine
    at_s: float
    busy_s: float
    request_s: float
    evicted: int
    read_events: bool


class StateFeed:
    """Tells of every replica in the configuration, each ``state_s``."""

    def __init__(self, plane: Plane, records_key: bytes) -> None:
        self._plane = plane
        self._records_key = records_key
        self._marks: dict[str, Mark] = {}
        self._turn = 0
        self.blocks: dict[str, Held] = {}  # by URL, as of the last look
        self.sent = 0
        self.failed = 0

    async def run(self, valkey: Redis) -> None:
        """Look and tell, for ever."""
        self.begin()
        while True:
            await asyncio.sleep(self._plane.config.state_s)
            await self.tell(valkey)

    def begin(self) -> None:
        """Observe engines that are not observed yet, and none that are gone."""
        now_s = time.monotonic()
        engines = self._plane.engines
        self._marks = {url: mark for url, mark in self._marks.items() if engines.get(url) is mark.engine}
        for url, engine in engines.items():
            if url not in self._marks:
                self._marks[url] = self._mark(engine, now_s)

    async def tell(self, valkey: Redis) -> bool:
        """Write a state of each replica; True unless Valkey did not take them, in which case the next ones cover this time too."""
        now_s = time.monotonic()
        self.measure()
        marks = {url: self._mark(engine, now_s) for url, engine in self._plane.engines.items()}
        states = self._states(marks)
        if states:
            pipe = valkey.pipeline(transaction=False)
            router_id = self._plane.config.router_id
            for state in states:
                data = replica_state.encode(state)
                entry = {"k": replica_state.KIND, "r": router_id, "t": str(state.tenant_id), "d": data}
                entry["m"] = replica_state.authenticate(self._records_key, router_id, data)
                pipe.xadd(STREAM, entry, maxlen=self._plane.config.stream_maxlen, approximate=True)  # type: ignore[arg-type]  # as in telemetry
            try:
                async with asyncio.timeout(WRITE_S):
                    await pipe.execute()
            except (RedisError, OSError, TimeoutError) as error:
                self.failed += 1
                log.warning("states of replicas wait: %s", type(error).__name__)
                self.begin()
                return False
            self.sent += len(states)
        self._marks = marks
        return True

    def measure(self) -> None:
        """Look at what engines hold by their events, whole or a sample."""
        self._turn += 1
        held = duplication.measure(self._plane.events.holdings(), turn=self._turn)
        found: dict[str, Held] = {}
        for (url, _rank), one in held.items():
            known = found.get(url, Held(0, 0.0))
            found[url] = Held(known.resident + one.resident, known.distinct + one.distinct)
        self.blocks = {url: one for url, one in found.items() if self._reads_events(url)}

    def _reads_events(self, url: str) -> bool:
        """Whether its events say what it holds now. Of an engine that is away nothing is heard, so nothing is claimed."""
        engine = self._plane.engines.get(url)
        return engine is not None and engine.away_since is None and self._plane.residency.of(url).state != "history"

    def _mark(self, engine: Engine, now_s: float) -> Mark:
        busy_s, request_s = engine.work.read(now_s)
        return Mark(engine, now_s, busy_s, request_s, engine.evicted_blocks, self._reads_events(engine.url))

    def _replicas(self) -> Iterator[tuple[UUID, UUID, str]]:
        """(owner of the pool, replica, URL) of each replica row, once each however many tenants use its pool."""
        seen: set[UUID] = set()
        for tenant in self._plane.view.tenants.values():
            for pool in () if tenant.snapshot.deleted else tenant.snapshot.pools:
                for entry in pool.replicas:
                    if entry.id not in seen:
                        seen.add(entry.id)
                        yield pool.owner_tenant_id, entry.id, entry.url

    def _states(self, marks: dict[str, Mark]) -> list[ReplicaState]:
        found: list[ReplicaState] = []
        rows = list(self._replicas())
        first = self._turn * MAX_STATES % len(rows) if len(rows) > MAX_STATES else 0
        for owner, replica_id, url in (rows[first:] + rows[:first])[:MAX_STATES]:
            before, after = self._marks.get(url), marks.get(url)
            if before is not None and after is not None and before.engine is after.engine and after.at_s > before.at_s:
                found.append(self._state(owner, replica_id, url, before, after))
        return found

    def _state(self, owner: UUID, replica_id: UUID, url: str, before: Mark, after: Mark) -> ReplicaState:
        observed_us = min(MAX_OBSERVED_US, max(1, _us(after.at_s - before.at_s)))
        events = before.read_events and after.read_events
        held = self.blocks.get(url)
        kv_used = after.engine.kv_used if after.engine.scrape is not None and after.engine.away_since is None else None
        return ReplicaState(
            id=uuid.uuid4(),
            tenant_id=owner,
            replica_id=replica_id,
            router_id=self._plane.config.router_id,
            started_at=time.time() - observed_us / 1e6,
            observed_us=observed_us,
            busy_us=min(observed_us, _us(after.busy_s - before.busy_s)),
            request_us=_us(after.request_s - before.request_s),
            event_us=observed_us if events else 0,
            evicted_blocks=max(0, after.evicted - before.evicted) if events else 0,
            kv_used_ppm=None if kv_used is None else min(1_000_000, max(0, round(kv_used * 1e6))),
            resident_blocks=None if held is None else held.resident,
            distinct_blocks=0 if held is None else round(held.distinct),
        )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


class StateCollector(Collector):
    """The same figures as metrics: counters of now, blocks as of the last look."""

    def __init__(self, plane: Plane, feed: StateFeed) -> None:
        self._plane = plane
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        now_s = time.monotonic()
        label = ["replica"]
        busy = CounterMetricFamily("saltroute_replica_busy_seconds", "Time with work of this router", labels=label)
        requests = CounterMetricFamily("saltroute_replica_request_seconds", "Time in flight of all requests together", labels=label)
        evicted = CounterMetricFamily("saltroute_replica_evicted_blocks", "Blocks that KV events told to be gone", labels=label)
        resident = GaugeMetricFamily("saltroute_replica_resident_blocks", "Blocks resident by KV events, as of the last look", labels=label)
        distinct = GaugeMetricFamily(
            "saltroute_replica_distinct_blocks", "The replica's share of the distinct ones: a block that two hold counts half", labels=label
        )
        used = GaugeMetricFamily("saltroute_replica_kv_used_ratio", "Share of the KV cache in use, by the engine's metrics", labels=label)
        for url, engine in self._plane.engines.items():
            busy_s, request_s = engine.work.read(now_s)
            busy.add_metric([url], busy_s)
            requests.add_metric([url], request_s)
            evicted.add_metric([url], engine.evicted_blocks)
            if engine.kv_used is not None and engine.away_since is None:
                used.add_metric([url], engine.kv_used)
            if (held := self._feed.blocks.get(url)) is not None:
                resident.add_metric([url], held.resident)
                distinct.add_metric([url], held.distinct)
        yield from (busy, requests, evicted, resident, distinct, used)
        yield CounterMetricFamily("saltroute_replica_states_sent", "States of replicas written to the stream", value=self._feed.sent)
        yield CounterMetricFamily("saltroute_replica_states_failed", "Times that they could not be written", value=self._feed.failed)
