"""Build a router by hand, run it, stop it. Tests start it by this same code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp import web
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from routing.core.byte_budget import ByteBudget
from routing.core.divergence import Turns
from routing.core.event_index import EventIndex
from routing.core.links import Links
from routing.dataplane import doors, upstream
from routing.dataplane.captures import CaptureDesk
from routing.dataplane.causes import Causes
from routing.dataplane.checks import CheckDoor
from routing.dataplane.config import Config, Secrets
from routing.dataplane.event_metrics import EventCollector
from routing.dataplane.feeds.artifacts import ArtifactFeed
from routing.dataplane.feeds.kv import KvFeed
from routing.dataplane.feeds.load import LoadFeed
from routing.dataplane.feeds.peers import PeerCollector, PeerFeed
from routing.dataplane.feeds.quotas import QuotaFeed
from routing.dataplane.feeds.snapshots import SnapshotFeed
from routing.dataplane.holdings import Holdings, HoldingsCollector, Workshop
from routing.dataplane.keys import Keys
from routing.dataplane.metrics import Metrics, PlaneCollector
from routing.dataplane.parity import ParityFeed
from routing.dataplane.probes import ProbeDoor
from routing.dataplane.replica_states import StateCollector, StateFeed
from routing.dataplane.spans import Tracing
from routing.dataplane.state import Plane
from routing.dataplane.telemetry import Telemetry
from routing.dataplane.tokens import TokenDesk
from routing.dataplane.waiting import Waiting
from routing.prompts.service import Prompts

FIRST_SYNC_S = 3.0
FLUSH_S = 2.0
CUT_S = 2.0  # for the last error events to be written
END_S = 0.2
END_TRIES = 10
WORKERS = 2
log = logging.getLogger("saltroute.router")


class Router:
    """One router: two ports, the plane between them, the feeds that fill it. Nothing runs before :meth:`start`."""

    def __init__(self, config: Config, secrets: Secrets, *, resolver: aiohttp.abc.AbstractResolver | None = None) -> None:
        self.config = config
        metrics = Metrics()
        telemetry = Telemetry(
            router_id=config.router_id,
            records_key=secrets.records_key,
            queue_bound=config.record_queue,
            stream_maxlen=config.stream_maxlen,
            metrics=metrics,
            sample=config.record_sample,
        )
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="body")
        self.plane = Plane(
            config=config,
            metrics=metrics,
            telemetry=telemetry,
            captures=CaptureDesk(
                router_id=config.router_id,
                records_key=secrets.records_key,
                queue_bound=config.capture_queue,
                stream_maxlen=config.capture_stream_maxlen,
                metrics=metrics,
            ),
            tracing=Tracing(
                endpoint=config.otlp_endpoint,
                share=config.trace_share,
                trusted=config.trace_trusted,
                router_id=config.router_id,
                metrics=metrics,
            ),
            session=upstream.make_session(config, pooled=True, resolver=resolver),
            fresh_session=upstream.make_session(config, pooled=False, resolver=resolver),
            waiting=Waiting(max_waiters=config.max_waiting, burst_window_s=config.burst_window_s),
            workers=self._workers,
            workshop=Workshop(self._workers),
            holdings=Holdings(config),
            tokens=TokenDesk(prompts=Prompts(catalogue=config.catalogue)),
            events=EventIndex(budget_bytes=config.event_index_bytes),
            causes=Causes(Turns(budget_bytes=config.turns_bytes)),
            kv_waiting=ByteBudget(whole_bytes=config.kv_waiting_bytes),
            links=Links(open_s=config.breaker_open_s),
        )
        metrics.registry.register(PlaneCollector(self.plane))
        metrics.registry.register(PeerCollector(self.plane))
        metrics.registry.register(EventCollector(self.plane))
        metrics.registry.register(HoldingsCollector(self.plane.holdings))
        self.states = StateFeed(self.plane, secrets.records_key)
        metrics.registry.register(StateCollector(self.plane, self.states))
        keys = Keys(secrets)
        self.snapshots = SnapshotFeed(self.plane, keys)
        self.load = LoadFeed(self.plane)
        self.kv = KvFeed(self.plane, resolver=resolver)
        self.peers = PeerFeed(self.plane, keys)
        self.quotas = QuotaFeed(self.plane)
        self.artifacts = ArtifactFeed(self.plane, keys)
        self.plane.tokens.artifacts = self.artifacts.status
        self.parity = ParityFeed(self.plane)
        self._probes = ProbeDoor(secrets.publish_public_key)
        self._checks = CheckDoor(self.plane, keys, secrets.publish_public_key)
        self._valkey = _connect(config.valkey_url)
        self._tasks: list[asyncio.Task[None]] = []
        self._runners: list[web.ServerRunner] = []
        self._sites: list[web.SockSite] = []
        self._sockets: list[socket.socket] = []

    async def start(self) -> None:
        """Load the configuration (from disk, then from Valkey if it answers), start the feeds, then open the ports.

        An engine that is away, or a Valkey that is, keeps no router from starting.
        """
        self.snapshots.load_from_disk()
        if self._valkey is not None:
            with contextlib.suppress(Exception):  # the poll tries again every second and says so
                async with asyncio.timeout(FIRST_SYNC_S):
                    await self.snapshots.sync(self._valkey)
            self._run(self.snapshots.poll(self._valkey), "poll")
            self._run(self.snapshots.listen(self._valkey), "listen")
            self._run(self.snapshots.report(self._valkey), "report")
            self._run(self.plane.telemetry.run(self._valkey), "records")
            self._run(self.plane.captures.run(self._valkey), "captures")
            self._run(self.states.run(self._valkey), "states of replicas")
            self._run(self.peers.listen(self._valkey), "siblings")
            self._run(self.peers.tell(self._valkey), "word to siblings")
            await self.peers.warm(self._valkey)
            await self.quotas.prime(self._valkey)
            self._run(self.quotas.run(self._valkey), "quotas")
        if self.plane.tracing.on:
            self._run(self.plane.tracing.run(), "spans")
        self._run(self.load.run(), "load")
        self._run(self.kv.run(), "kv events")
        self._run(self.artifacts.run(self._valkey), "artifacts")
        self._run(self.parity.run(), "parity")
        public = doors.Server(doors.public_door(self.plane), max_body_bytes=self.config.max_body_bytes, connections=self.plane.holdings.connections)
        internal_door = doors.internal_door(self.plane, self.snapshots, self._probes, self._checks)
        await self._listen(public, self.config.port, reuse_port=self.config.reuse_port)
        await self._listen(doors.Server(internal_door, max_body_bytes=self.config.max_body_bytes), self.config.internal_port)
        log.info("router %s on port %d, internal port %d", self.config.router_id, self.port, self.internal_port)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_ended)
        self._tasks.append(task)

    async def _listen(self, server: doors.Server, port: int, *, reuse_port: bool = False) -> None:
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        family = socket.AF_INET6 if ":" in self.config.host else socket.AF_INET
        bound = socket.create_server((self.config.host, port), family=family, backlog=1024, reuse_port=reuse_port)
        bound.setblocking(False)
        site = web.SockSite(runner, bound, backlog=1024)
        await site.start()
        self._sites.append(site)
        self._runners.append(runner)
        self._sockets.append(bound)

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @property
    def internal_port(self) -> int:
        return int(self._sockets[1].getsockname()[1])

    async def drain(self) -> None:
        """Stop taking traffic without losing any: not ready at once, still serving for ``linger_s``, then until the last request ends or ``drain_s``
        is over; what still runs then ends with an error of its own, not with a bare cut."""
        plane = self.plane
        plane.draining = True
        if self.config.reuse_port and self._sites:
            await self._sites[0].stop()  # the kernel gives new connections to the other processes at once
        began_s = time.monotonic()
        while (elapsed_s := time.monotonic() - began_s) < self.config.drain_s:
            if elapsed_s >= self.config.linger_s and plane.in_flight == 0:
                return
            await asyncio.sleep(0.02)
        plane.cutting = True
        for task in plane.tasks:
            task.cancel()
        if plane.tasks:
            await asyncio.wait(set(plane.tasks), timeout=CUT_S)

    async def stop(self) -> None:
        """Close the ports, send what records are left, keep the state, let go of everything."""
        for runner in self._runners:
            await runner.cleanup()
        await self._end_feeds()
        if self._valkey is not None:
            await self.peers.leave(self._valkey)
            await self.quotas.leave(self._valkey)
            await self.states.tell(self._valkey)
            await self.plane.telemetry.flush(self._valkey, FLUSH_S)
            await self.plane.captures.flush(self._valkey, FLUSH_S)
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._valkey.aclose()
        await self.snapshots.save()
        await self.plane.tokens.prompts.stop()
        await self.plane.session.close()
        await self.plane.fresh_session.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def _end_feeds(self) -> None:
        """Cancel the feeds until they have ended: a client library in the middle of a broken connection may answer a cancellation with an error
        of its own, which a feed takes for one more failure to live with."""
        pending: set[asyncio.Task[None]] = set(self._tasks)
        for _ in range(END_TRIES):
            for task in pending:
                task.cancel()
            if pending:
                _, pending = await asyncio.wait(pending, timeout=END_S)


def _connect(url: str | None) -> Redis | None:
    """A client that neither retries nor waits long: callers have their own clocks."""
    if url is None:
        return None
    return Redis.from_url(url, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0), health_check_interval=5)


def _ended(task: asyncio.Task[None]) -> None:
    """A feed that dies is a mistake of ours; it must not die unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        doors.log_mistake(error)


async def run(config: Config, secrets: Secrets) -> None:
    """Run until SIGTERM or SIGINT, drain, stop. A second signal stops at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    router = Router(config, secrets)

    def signalled() -> None:
        if stop.is_set():
            raise SystemExit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    await router.start()
    await stop.wait()
    await router.drain()
    await router.stop()
