"""What the router knows while it runs, typed and in one place. Built by hand in ``app.py``, passed by hand to everything else; one event loop
owns it.

Load, residency, calibration and breaker belong to the physical engine (its normalised URL) over all tenants; which tenants may use it is the
snapshot's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial, reduce
from statistics import median
from typing import TYPE_CHECKING
from uuid import UUID

import aiohttp
import msgspec

from routing.core import prefix
from routing.core.age import AgeConstant
from routing.core.breaker import Breaker
from routing.core.byte_budget import ByteBudget
from routing.core.calibration import ByteRatio
from routing.core.event_index import EventIndex, Sizes
from routing.core.links import Links
from routing.core.peering import Outbox
from routing.core.residency import HistoryIndex
from routing.core.siblings import Shared, Siblings
from routing.core.trust_table import TrustTable
from routing.dataplane.captures import CaptureDesk
from routing.dataplane.causes import Causes
from routing.dataplane.config import Config
from routing.dataplane.engine import Engine
from routing.dataplane.holdings import Holdings, Workshop
from routing.dataplane.metrics import Metrics
from routing.dataplane.quotas import QuotaDesk
from routing.dataplane.ranks import Rank
from routing.dataplane.residency import Book
from routing.dataplane.spans import Tracing
from routing.dataplane.telemetry import Telemetry
from routing.dataplane.tokens import TokenDesk
from routing.dataplane.unserved import Unserved
from routing.dataplane.view import EMPTY, EndpointView, Lookups, PlaneView, ReplicaView

if TYPE_CHECKING:
    from routing.dataplane.waiting import Waiting


def _nobody_listens(_engine: Engine) -> None:
    pass


def _nobody_relearns(_url: str) -> None:
    pass


@dataclass(slots=True)
class EndpointState:
    """What is learned of one endpoint, hence from one tenant's requests alone."""

    ratio: ByteRatio = field(default_factory=ByteRatio)
    ages: dict[str, AgeConstant] = field(default_factory=dict)  # by workload class
    sequence: int = 0
    chosen: dict[UUID, int] = field(default_factory=dict)  # by replica: the sequence when it was last chosen

    def age(self, workload: str) -> AgeConstant:
        """How fast beliefs fade, for one of the classes of :data:`routing.core.age.CLASSES`."""
        return self.ages.setdefault(workload, AgeConstant(workload))


@dataclass(slots=True)
class Feed:
    """How the configuration came: for readiness, status and metrics. ``contact_at`` is unix seconds of the last word from Valkey."""

    contact_at: float | None = None
    loaded: bool = False
    refused: dict[UUID, str] = field(default_factory=dict)  # tenants whose newest document was refused, and why


@dataclass(slots=True)
class Plane:
    """The whole running state of a router."""

    config: Config
    metrics: Metrics
    telemetry: Telemetry
    captures: CaptureDesk  # requests that tenants have asked to keep as traces
    tracing: Tracing
    session: aiohttp.ClientSession
    fresh_session: aiohttp.ClientSession  # never reuses a connection
    workers: Executor  # parsing and hashing of large bodies
    workshop: Workshop  # the same, with a turn for each tenant
    holdings: Holdings  # what requests hold of what all tenants share here
    waiting: Waiting
    tokens: TokenDesk
    swapped: asyncio.Event = field(default_factory=asyncio.Event)  # another view is in force; the artifact feed waits for it
    view: PlaneView = EMPTY
    feed: Feed = field(default_factory=Feed)
    engines: dict[str, Engine] = field(default_factory=dict)
    ranks: dict[str, Rank] = field(default_factory=dict)  # those that requests name, by key; replaced whole when they change
    index: HistoryIndex = field(default_factory=partial(HistoryIndex, extent=prefix.extent))
    events: EventIndex = field(default_factory=EventIndex)  # what engines' own events show
    kv_waiting: ByteBudget = field(default_factory=ByteBudget)  # bytes of KV events received and not applied yet
    residency: Book = field(default_factory=Book)  # how far those can be trusted
    outbox: Outbox = field(default_factory=Outbox)  # what siblings are to be told
    siblings: Siblings = field(default_factory=Siblings)  # what they told
    trust: TrustTable = field(default_factory=TrustTable)
    causes: Causes = field(default_factory=Causes)  # what it takes to say why an answer was slow
    links: Links = field(default_factory=Links)  # ways of KV caches between engines
    endpoints: dict[UUID, EndpointState] = field(default_factory=dict)
    unserved: Unserved = field(default_factory=Unserved)
    quotas: QuotaDesk = field(default_factory=QuotaDesk)
    names: Lookups = field(default_factory=Lookups)  # look-ups of kept namespaces, over all tenants
    began_at: float = field(default_factory=time.time)  # unix s: of what happened before, this router knows nothing
    in_flight: int = 0
    draining: bool = False
    cutting: bool = False  # the drain deadline has passed
    replicas: Mapping[str, ReplicaView] = field(default_factory=dict)  # the engines in the view, by URL
    used_by: Mapping[str, frozenset[UUID]] = field(default_factory=dict)  # ids of the endpoints that reach an engine, by URL
    on_start: Callable[[Engine], None] = _nobody_listens  # told whenever an engine's start time was read
    on_relearn: Callable[[str], None] = _nobody_relearns  # asked, by URL, when an engine's events and answers contradict each other
    tasks: set[asyncio.Task[object]] = field(default_factory=set)  # requests in flight, to be cut at the drain deadline

    def engine(self, url: str) -> Engine:
        """The engine behind ``url``, made known on first use."""
        known = self.engines.get(url)
        if known is None:
            breaker = Breaker(failures=self.config.breaker_failures, open_s=self.config.breaker_open_s)
            known = self.engines[url] = Engine(url=url, breaker=breaker)
        return known

    def endpoint_state(self, endpoint_id: UUID) -> EndpointState:
        return self.endpoints.setdefault(endpoint_id, EndpointState())

    def swap(self, view: PlaneView) -> None:
        """Put a new configuration in force and forget what no tenant names any more. Requests under way keep the view they began with."""
        for tenant_id, tenant in view.tenants.items():
            if tenant.snapshot.deleted and tenant is not self.view.tenants.get(tenant_id):
                self.index.forget_owner(tenant_id.bytes)
                self.events.forget_owner(tenant_id.bytes)
                self.causes.turns.forget_owner(tenant_id.bytes)
        self.view = view
        self.swapped.set()
        self.feed.loaded = True
        self.replicas, self.used_by = view.reach()
        for url in self.replicas:
            self.engine(url)
        live = {endpoint.entry.id for tenant in view.tenants.values() for endpoint in tenant.endpoints.values()}
        for endpoint_id in [one for one in self.endpoints if one not in live]:
            del self.endpoints[endpoint_id]
        self.unserved.served(view.assigned())
        self.quotas.swapped(view)
        self.forget_unused()

    def set_ranks(self, engine: Engine, count: int) -> None:
        """Let requests to an engine name one of ``count`` ranks; 0: none. Those under way keep what they took."""
        if count == len(engine.ranks):
            return
        for rank in engine.ranks:
            self.index.forget(rank.key)
        engine.ranks = tuple(Rank(engine, number) for number in range(count))
        kept = {key: rank for key, rank in self.ranks.items() if rank.engine is not engine}
        self.ranks = kept | {rank.key: rank for rank in engine.ranks}
        self.set_capacity(engine)

    def known_engine(self, key: str) -> Engine | None:
        """The engine of a place: its own key, or that of one of its ranks."""
        rank = self.ranks.get(key)
        return self.engines.get(key) if rank is None else rank.engine

    def shared(self, engine: Engine, now_s: float) -> Shared:
        """What siblings have at an engine, over all its ranks."""
        return reduce(Shared.plus, [self.siblings.load(key, now_s) for key in engine.keys])

    def forget_history(self, engine: Engine) -> None:
        """What was sent there says nothing any more."""
        for key in engine.keys:
            self.index.forget(key)

    def forget_residency(self, url: str) -> None:
        """The engine's cache is gone, by its own word."""
        self.forget_history(self.engine(url))
        for rank in self.residency.ranks.get(url, {}):
            self.events.clear((url, rank))

    def forget_unused(self) -> None:
        """Drop engines that are in no snapshot and have no request left."""
        for url in [url for url, engine in self.engines.items() if url not in self.replicas and engine.in_flight == 0]:
            self.set_ranks(self.engines[url], 0)
            del self.engines[url]
            self.index.forget(url)
            self.trust.forget_engine(url)
            self.links.forget(url)

    def block_sizes(self, endpoint: EndpointView) -> tuple[int, ...]:
        """The distinct block sizes, in tokens, that the engines of an endpoint have said they use, or shown in their events."""
        engines = [engine for replica in endpoint.replicas if (engine := self.engines.get(replica.url)) is not None]
        found = {engine.facts.block_tokens for engine in engines if engine.facts.block_tokens}
        for engine in engines:
            for target in engine.targets:
                found.update(self.events.block_sizes(target))
        return tuple(found)

    def pool_rate(self, endpoint: EndpointView) -> float | None:
        """The median of the prefill rates known in a pool, tokens/s; None if none is."""
        rates = [
            engine.calibration.own_rate
            for replica in endpoint.replicas
            if (engine := self.engines.get(replica.url)) is not None and engine.calibration.own_rate is not None
        ]
        return median(rates) if rates else None

    def set_capacity(self, engine: Engine) -> None:
        """Bound the index of an engine by its cache: KV tokens, at the bytes per token of the endpoints that use it."""
        if engine.capacity_tokens is None:
            return
        states = [self.endpoints.get(endpoint_id) for endpoint_id in self.used_by.get(engine.url, ())]
        ratios = [state.ratio.bytes_per_token for state in states if state is not None]
        bytes_per_token = sum(ratios) / len(ratios) if ratios else ByteRatio().bytes_per_token
        blocks = int(min(64 * prefix.MAX_BYTES, engine.capacity_tokens * bytes_per_token)) // prefix.BLOCK_BYTES
        self.index.set_capacity(engine.url, blocks)
        for rank in engine.ranks:
            self.index.set_capacity(rank.key, blocks // len(engine.ranks))

    def _residency(self, url: str, shown: Mapping[tuple[str, int], Sizes], now_s: float) -> dict[str, object]:
        """The state of an engine's events, why, since when, and how many blocks they show."""
        standing, ranks = self.residency.told(url), self.residency.ranks.get(url, ())
        return {
            "residency": standing.state,
            "residency_reason": standing.reason,
            "residency_for_s": None if standing.since_s is None else round(now_s - standing.since_s, 1),
            "residency_since": self.residency.since_at(url),
            "event_blocks": sum(shown[url, rank].ours for rank in ranks if (url, rank) in shown),
        }

    def engine_report(self, now_s: float) -> dict[str, dict[str, object]]:
        """What the router's report says of each engine, by URL. ``residency`` says what beliefs about its cache rest on."""
        sizes, shown = self.index.sizes(), self.events.sizes()
        return {
            url: {
                "condition": engine.condition(now_s),
                "away_since": engine.away_since,
                "in_flight": engine.in_flight,
                "max_concurrency": self.replicas[url].entry.max_concurrency if url in self.replicas else None,
                "queued_tokens": round(engine.queued(now_s)[0]),
                "waiting": engine.waiting,
                **self._residency(url, shown, now_s),
                "residency_blocks": sum(sizes.get(key, (0, 0))[0] for key in engine.keys),
                "trust": msgspec.to_builtins(self.trust.report_of(engine.targets, now_s)),
                "named_ranks": len(engine.ranks),
                "build": engine.facts.digest(self.replicas[url].entry.engine) if url in self.replicas else None,
                "block_size_tokens": engine.facts.block_tokens,
                "calibration": {
                    "tokens_per_s": round(engine.calibration.rate(None, now_s), 1),
                    "learned": engine.calibration.own_rate is not None,
                    "fixed_s": round(engine.calibration.fixed_s, 6),
                },
                "capacity_tokens": engine.capacity_tokens,
                "models": engine.facts.served,
                "started_at": engine.started_at,
            }
            for url, engine in sorted(self.engines.items())
        }
