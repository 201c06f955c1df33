"""What engines say of themselves: are they there, how busy are they, how large is their cache, are they still the process they were.

One task an engine, every ``scrape_s``: ``/health``, then ``/metrics``, now and then ``/version``, ``/v1/models`` and ``/kv_event_sources``. A scrape
adds other people's load to ours and never replaces our own count; it is faded by age and ignored when old. A new process start time means an empty
cache: its residency is forgotten. Health checks go through the same connect-time guard as requests; two misses in a row take an engine out, one
answer brings it back.
They never open or close a breaker; an engine that is back is only tried sooner. Requests that wait for an engine's first byte are told what each
check says of it (:mod:`routing.core.silence`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time

import aiohttp

from routing.core import build, silence
from routing.core.exposition import read_load
from routing.core.ranks import addressable
from routing.dataplane import upstream
from routing.dataplane.engine import MISSES_UNTIL_UNREACHABLE, Engine
from routing.dataplane.feeds import kv_sources
from routing.dataplane.patience import Pulse
from routing.dataplane.ranks import Rank
from routing.dataplane.state import Plane
from routing.dataplane.view import ReplicaView
from routing.outbound import guard

MAX_PAGE_BYTES = 4 * 1024 * 1024
FACTS_S = 60.0  # between two questions which build an engine is
log = logging.getLogger("saltroute.load")


class LoadFeed:
    """Keeps one watching task for each engine in the configuration."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Start and stop watchers as engines come and go, for ever."""
        try:
            while True:
                self.adjust()
                await asyncio.sleep(min(0.25, self._plane.config.scrape_s))
        finally:
            for task in self._tasks.values():
                task.cancel()

    def adjust(self) -> None:
        """One watcher for each engine that is known now."""
        known = self._plane.replicas
        for url in [url for url, task in self._tasks.items() if url not in known or task.done()]:
            self._tasks.pop(url).cancel()
        for url in known:
            if url not in self._tasks:
                self._tasks[url] = asyncio.create_task(self._watch(url), name=f"watch {url}")

    async def _watch(self, url: str) -> None:
        while True:
            replica = self._plane.replicas.get(url)
            if replica is None:
                return
            await check(self._plane, replica)
            await asyncio.sleep(self._plane.config.scrape_s)


async def check(plane: Plane, replica: ReplicaView) -> None:
    """One health check and, if the engine is there, one scrape."""
    engine = plane.engine(replica.url)
    asked_s, answered_s, words = time.monotonic(), -math.inf, engine.words
    with Pulse() as pulse:
        try:
            async with asyncio.timeout(plane.config.connect_s):
                async with plane.session.get(f"{replica.url}/health", headers=_headers(replica), allow_redirects=False) as answer:
                    alive = answer.status < 500
                    answered_s = time.monotonic()
                    await answer.content.read(1024)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            missed(engine, blocked=guard.was_refused(error))
            heed(plane, engine, _meaning(error, answered=answered_s >= asked_s, words=engine.words - words, since_s=asked_s, late_s=pulse.late_s))
            return
    heed(plane, engine, "spoke")
    if not alive:
        missed(engine, blocked=False)
        return
    back = engine.misses >= MISSES_UNTIL_UNREACHABLE
    if back:
        engine.returned_at_s = time.monotonic()
    if engine.misses:
        engine.breaker.came_back(time.monotonic())
    engine.misses = 0
    engine.answered_s = answered_s
    engine.health = "ok"
    engine.watched(time.monotonic(), time.time(), back=back)
    engine.calibration.observe_network(answered_s - asked_s)
    await scrape(plane, replica, engine)
    await identify(plane, replica, engine)


def missed(engine: Engine, *, blocked: bool) -> None:
    """Note a failed health check."""
    engine.misses += 1
    engine.facts_due_s = 0.0
    engine.health = "blocked" if blocked else "failing"
    engine.watched(time.monotonic(), time.time())


def heed(plane: Plane, engine: Engine, meaning: silence.Meaning) -> None:
    """Tell the requests that have no byte of the engine's answer what a health check says of it."""
    if meaning != "spoke":
        plane.metrics.checks_unanswered.labels(meaning=meaning).inc()
    given_up = sum([patience.heard(meaning, plane.config.silent_checks) for patience in list(engine.awaited)])
    if given_up:
        log.warning("an engine is silent; %d requests that it had not begun to answer are given up", given_up)


def _meaning(error: Exception, *, answered: bool, words: int, since_s: float, late_s: float) -> silence.Meaning:
    """What a check says that ended with an error."""
    no_socket = isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in upstream.OURS
    asked = not (no_socket or guard.was_refused(error) or isinstance(error, aiohttp.ClientConnectorDNSError))
    lasted_s = time.monotonic() - since_s
    return silence.meaning(silence.Check(answered=answered, words=words, asked=asked, lasted_s=lasted_s, late_s=late_s))


async def scrape(plane: Plane, replica: ReplicaView, engine: Engine) -> None:
    """Read the metrics page, if there is one; its absence says nothing about health."""
    places: tuple[Engine | Rank, ...] = (engine, *engine.ranks)
    underway = {place.key: place.in_flight + place.more_answers for place in places}
    page = await _page(plane, replica, "/metrics")
    if page is None:
        return
    load = read_load(replica.entry.engine, page)
    if load.started_at is not None:
        if engine.started_at is not None and abs(load.started_at - engine.started_at) > 0.5:
            engine.restarted()
            engine.returned_at_s = time.monotonic()
            engine.breaker.came_back(time.monotonic())
            plane.forget_history(engine)
            plane.trust.forget_engine(engine.url)
            plane.links.forget(engine.url)
            log.info("an engine was restarted; its residency is forgotten")
        engine.started_at = load.started_at
        plane.on_start(engine)
    if load.asleep and not engine.asleep:
        plane.forget_residency(engine.url)  # it may never say so by an event
        log.info("an engine sleeps; its residency is forgotten")
    engine.asleep = load.asleep
    engine.facts.settings, engine.facts.block_tokens = build.read_settings(page)
    rows = None if load.ranks is None else [one.number for one in load.ranks]
    published = [source.rank for source in engine.sources or ()]
    if replica.engine.rank_header is not None and (published or rows is not None):
        plane.set_ranks(engine, addressable(rows, published) if plane.config.name_ranks else 0)
    if load.running is not None or load.waiting is not None:
        now_s = time.monotonic()
        believed = plane.siblings.believed(now_s)
        engine.scraped(load, now_s, plane.shared(engine, now_s) if believed else None, underway=underway[engine.key])
        for rank, row in zip(engine.ranks, load.ranks or (), strict=False):
            shared = plane.siblings.load(rank.key, now_s) if believed else None
            rank.scraped(row, now_s, shared, underway=underway.get(rank.key, 0))
    if load.capacity_tokens is not None:
        engine.capacity_tokens = load.capacity_tokens
        plane.set_capacity(engine)


async def identify(plane: Plane, replica: ReplicaView, engine: Engine) -> None:
    """Ask which build the engine is: when it is new here or came back, after a restart, and once a minute. Both pages are taken together or not at
    all, so that no mixture of two builds is ever reported. Where the first does not come the others are not waited for: health is asked next."""
    if time.monotonic() < engine.facts_due_s:
        return
    version = await _page(plane, replica, "/version")
    if version is None:
        return
    models = await _page(plane, replica, "/v1/models")
    sources = await _page(plane, replica, "/kv_event_sources")
    if sources is not None:
        engine.sources = kv_sources.read(sources)
    if models is not None:
        engine.facts.version = build.read_version(version)
        listed = build.read_models(models)
        engine.facts.models, engine.facts.served = listed.base, listed.served
        engine.facts.adapters, engine.facts.lists_all = listed.adapters, listed.whole
        engine.facts.listed_s = time.monotonic()
        engine.facts_due_s = time.monotonic() + FACTS_S


async def _page(plane: Plane, replica: ReplicaView, path: str) -> bytes | None:
    """A page of the engine's own; empty where it says that there is none, None where it says nothing or too much."""
    try:
        async with asyncio.timeout(plane.config.connect_s):
            async with plane.session.get(f"{replica.url}{path}", headers=_headers(replica), allow_redirects=False) as answer:
                if answer.status != 200:
                    return b"" if 300 <= answer.status < 500 and answer.status not in (408, 429) else None
                return await _bounded(answer)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


async def _bounded(answer: aiohttp.ClientResponse) -> bytes | None:
    """The page, or None if it is larger than any metrics page."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_PAGE_BYTES:
            return None
    return b"".join(parts)


def _headers(replica: ReplicaView) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "saltroute"}
    if replica.credential is not None:
        headers["Authorization"] = f"Bearer {replica.credential}"
    return headers
