"""KV events: what engines say of their own caches, as it happens.

One subscription for each data-parallel rank of each physical engine, over all tenants that use it. Where its sockets are comes from ``kv_sources``;
the host is always the replica's own, resolved and checked again before every connection. A subscription that joins, or comes back, asks for what it
missed; ``routing.core.sequence`` puts both streams in order and says what is lost. What is applied goes to the event index, which credits a block
only under a namespace that this router derived itself. Whatever goes wrong here, requests go on with residency from history.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Hashable
from urllib.parse import urlsplit

import aiohttp

from routing.core.engines import ENGINES
from routing.dataplane import learn
from routing.dataplane.engine import Engine
from routing.dataplane.feeds import kv_sources, load
from routing.dataplane.feeds.kv_polled import PolledSubscription
from routing.dataplane.feeds.kv_pump import Pump
from routing.dataplane.feeds.kv_sources import Source
from routing.dataplane.feeds.kv_subscription import Subscription
from routing.dataplane.state import Plane

LOOK_S = 1.0  # between two looks at the index's sizes
TURN_S = 0.1  # between two looks at the configuration and at the clocks of replays
BUDGET_S = 60.0  # without an eviction, until the index counts as whole again
log = logging.getLogger("saltroute.events")


class KvFeed:
    """Keeps one subscription for each source of each engine in the configuration."""

    def __init__(self, plane: Plane, *, resolver: aiohttp.abc.AbstractResolver | None = None) -> None:
        self._plane = plane
        self._given_resolver = resolver
        self._subscriptions: dict[tuple[str, int], Subscription | PolledSubscription] = {}
        self._owners: dict[str, Hashable] = {}
        self._owners_of: object = None  # the view that they are from
        self._doubtful: set[tuple[str, int]] = set()  # sources that are not followed: another engine has the same port
        self._looked_s = self._evicted_s = -math.inf
        self._evicted = 0

    async def run(self) -> None:
        """Start and stop subscriptions as engines come and go, for ever."""
        self.resolver = self._given_resolver or aiohttp.DefaultResolver()
        self.pump = Pump(busy=lambda: self._plane.in_flight > 0)
        self._plane.on_start = self._started
        self._plane.on_relearn = self._relearn
        pumping = asyncio.create_task(self.pump.run(), name="kv pump")
        try:
            while True:
                await self.adjust()
                self._tick(time.monotonic())
                await asyncio.sleep(TURN_S)
        finally:
            pumping.cancel()
            await asyncio.gather(*[one.close() for one in self._subscriptions.values()], pumping, return_exceptions=True)
            if self._given_resolver is None:
                with contextlib.suppress(OSError):
                    await self.resolver.close()

    def _tick(self, now_s: float) -> None:
        """Time passed: clocks of replays, and conditions that no message brings or ends."""
        for subscription in list(self._subscriptions.values()):
            subscription.tick(now_s)
        self._plane.events.advance()
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        learn.act(self._plane, self._plane.trust.retry(now_s))
        evicted = self._plane.events.counters["evicted"]
        if evicted > self._evicted:
            self._evicted, self._evicted_s = evicted, now_s
        over_budget = now_s < self._evicted_s + BUDGET_S
        for target, sizes in self._plane.events.sizes().items():
            if target in self._subscriptions:
                self._subscriptions[target].look(sizes, over_budget=over_budget, now_s=now_s)

    async def adjust(self) -> None:
        """One subscription for each source that is known now; what is gone is forgotten."""
        wanted, closing = self._wanted(), []
        for target, subscription in list(self._subscriptions.items()):
            known = wanted.get(target)
            if known is None or known != (subscription.engine, subscription.source):
                closing.append(self._subscriptions.pop(target).close())
                self._plane.events.forget(target)
                self._plane.residency.end(target)
        await asyncio.gather(*closing, return_exceptions=True)  # before their ports are connected to again
        for target, (engine, source) in wanted.items():
            if target not in self._subscriptions:
                account = self._plane.kv_waiting.account(self._owner(engine.url))
                follow = PolledSubscription if source is kv_sources.POLLED else Subscription
                self._subscriptions[target] = follow(self._plane, self, engine, source, account)

    def _wanted(self) -> dict[tuple[str, int], tuple[Engine, Source]]:
        found: dict[tuple[str, int], tuple[Engine, Source]] = {}
        claims: dict[tuple[str, int], kv_sources.Claim] = {}
        for url, replica in self._plane.replicas.items():
            engine = self._plane.engine(url)
            known = kv_sources.sources(replica.entry.kv_events, engine.sources)
            for source in known or ():
                found[url, source.rank] = (engine, source)
                said = replica.entry.kv_events is None
                claims[url, source.rank] = kv_sources.Claim(self._owner(url), urlsplit(url).hostname or "", source.port, said)
            if not known and ENGINES[replica.entry.engine].events_path is not None:
                found[url, 0] = (engine, kv_sources.POLLED)
        doubtful = kv_sources.doubtful(claims)
        if len(doubtful) > len(self._doubtful):
            log.warning("%d event sources are not followed: other engines of the same owner have the same ports", len(doubtful))
        self._doubtful = doubtful
        return {target: one for target, one in found.items() if target not in doubtful}

    def _owner(self, url: str) -> Hashable:
        """Who pays for what waits of an engine: the one tenant that uses it; an engine of several stands for itself."""
        if self._owners_of is not self._plane.view:
            self._owners_of, self._owners = self._plane.view, {}
            for tenant in self._plane.view.tenants.values():
                for endpoint in tenant.endpoints.values():
                    for replica in endpoint.replicas:
                        mine: Hashable = tenant.snapshot.tenant_id
                        self._owners[replica.url] = mine if self._owners.get(replica.url, mine) == mine else replica.url
            self._plane.kv_waiting.owners = len(set(self._owners.values()))
        return self._owners.get(url, url)

    def _relearn(self, url: str) -> None:
        """Trust in an engine's events was shaken."""
        for target, subscription in list(self._subscriptions.items()):
            if target[0] == url:
                subscription.relearn()

    def _started(self, engine: Engine) -> None:
        """An engine's start time was read."""
        now_s = time.monotonic()
        for target, subscription in list(self._subscriptions.items()):
            if target[0] == engine.url:
                subscription.check_start(now_s)

    async def ask_start(self, url: str) -> None:
        """Read an engine's start time now."""
        replica = self._plane.replicas.get(url)
        if replica is not None:
            await load.scrape(self._plane, replica, self._plane.engine(url))
