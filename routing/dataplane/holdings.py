"""What one request holds of what all tenants share in this process: a place, and the bytes of its body and of its answer.

Bounded over all tenants and fairly between them (:mod:`routing.core.shares`), so that nobody's uploads, slow reading or talkative engine takes memory
or places from others. Large bodies are read by threads, one at a time for each owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from routing.core.shares import Shares
from routing.dataplane import connections, errors
from routing.dataplane.connections import Connections

if TYPE_CHECKING:
    from routing.dataplane.config import Config

OFF_LOOP_BYTES = 256 * 1024  # bodies larger than this are parsed and hashed in a worker thread
MAX_REST_S = 1.0
SMALL_BYTES = 64 * 1024  # of an event that is not whole yet; less is not counted
T = TypeVar("T")


class Holdings:
    """What a router has of each: places for requests, bytes, connections of clients."""

    def __init__(self, config: Config) -> None:
        self.places = Shares(config.max_in_flight)
        self.bytes = Shares(config.max_held_bytes)
        self.connections = Connections(connections.bound(config.max_connections))

    def admit(self, owner: Hashable) -> Held:
        """A place for a request.

        Raises:
            ApiError: 503 ``overloaded``, the same whether its tenant or all together hold too many.
        """
        if not self.places.take(owner):
            raise errors.overloaded()
        return Held(self, owner)


class Held:
    """One request's part. Close it."""

    __slots__ = ("_holdings", "_kept_bytes", "_owner", "_passing_bytes")

    def __init__(self, holdings: Holdings | None, owner: Hashable) -> None:
        self._holdings, self._owner = holdings, owner
        self._kept_bytes = self._passing_bytes = 0

    def keep(self, more_bytes: int) -> None:
        """So many bytes more are kept until the request ends.

        Raises:
            ApiError: 503 ``overloaded``.
        """
        if self._holdings is None:
            raise RuntimeError("not admitted")
        if not self._holdings.bytes.take(self._owner, more_bytes):
            raise errors.no_room()
        self._kept_bytes += more_bytes

    def passing(self, now_bytes: int) -> bool:
        """So much of a stream waits for the rest of its event; a little is not counted. False: there is no room for more than waited before."""
        counted = now_bytes if now_bytes > SMALL_BYTES else 0
        more_bytes = counted - self._passing_bytes
        if self._holdings is None:
            return True
        if more_bytes > 0 and not self._holdings.bytes.take(self._owner, more_bytes):
            return False
        if more_bytes < 0:
            self._holdings.bytes.give_back(self._owner, -more_bytes)
        self._passing_bytes = counted
        return True

    def close(self) -> None:
        """Give everything back. Safe to repeat."""
        holdings, self._holdings = self._holdings, None
        if holdings is not None:
            holdings.bytes.give_back(self._owner, self._kept_bytes + self._passing_bytes)
            holdings.places.give_back(self._owner)


NOTHING_HELD = Held(None, None)  # of a request that was not admitted yet


class HoldingsCollector(Collector):
    """What is held, as metrics."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def collect(self) -> Iterator[Metric]:
        """Read from the running state at each scrape."""
        held = self._holdings
        yield GaugeMetricFamily("saltroute_connections", "Open connections of clients", value=len(held.connections))
        closed = held.connections.closed
        yield CounterMetricFamily("saltroute_connections_closed", "Connections of clients closed to make room for others", value=closed)
        yield GaugeMetricFamily("saltroute_held_bytes", "Bytes of bodies and answers in memory", value=held.bytes.used)
        refused = CounterMetricFamily("saltroute_share_refused", "Requests beyond their tenant's share, or beyond the whole", labels=["what"])
        refused.add_metric(["requests"], held.places.refused)
        refused.add_metric(["bytes"], held.bytes.refused)
        yield refused


class Workshop:
    """Threads for what would hold the event loop up: one piece of work at a time for each owner, who waits for its own and not for another's many.

    A parser holds the interpreter while it works, so threads alone leave others little: an owner that made one work rests as long before its next.
    """

    def __init__(self, threads: Executor, *, rest_s: Callable[[float], float] = lambda spent_s: min(spent_s, MAX_REST_S)) -> None:
        """``rest_s``: of the seconds that a piece of work took, how long its owner's next waits."""
        self._threads = threads
        self._rest_s = rest_s
        self._queues: dict[Hashable, deque[asyncio.Future[None]]] = {}  # by owner with a piece of work at a thread: who waits for that

    async def run(self, owner: Hashable, size_bytes: int, work: Callable[..., T], *args: object) -> T:
        """Do pure work: here where it is small, else in a thread. Where a caller is cancelled its owner's turn ends when the thread is done."""
        if size_bytes <= OFF_LOOP_BYTES:
            return work(*args)
        await self._turn(owner)
        loop = asyncio.get_running_loop()
        spent_s = 0.0

        def timed() -> T:
            nonlocal spent_s
            began_s = time.monotonic()
            try:
                return work(*args)
            finally:
                spent_s = time.monotonic() - began_s

        def ended(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(loop.call_later, self._rest_s(spent_s), self._leave, owner)

        try:
            job = self._threads.submit(timed)
        except BaseException:
            self._leave(owner)
            raise

        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)

    async def _turn(self, owner: Hashable) -> None:
        queue = self._queues.get(owner)
        if queue is None:
            self._queues[owner] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(owner)
            raise

    def _leave(self, owner: Hashable) -> None:
        queue = self._queues[owner]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._queues[owner]
