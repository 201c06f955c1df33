"""Where requests wait: behind the leader of an identical burst, and in the queue of their pool while every replica is busy with others' work.

``turn`` is the one way from a request to a dispatch. Most requests pass without waiting. Those that wait are woken when a first byte or an end frees
a replica, in the order of :mod:`routing.core.fair_queue`, and every 50 ms, since estimates fade. Who waited as long as its policy allows is refused
with 429 and a Retry-After from its tenant's own queue. A pool's queue is the pool's, over all tenants that use it; what one may see of it is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from routing.core import admission, gate, prefix
from routing.core.fair_queue import OUTPUT_WEIGHT, FairQueue, Waiter, retry_after_s
from routing.core.gate import Gate
from routing.dataplane import errors
from routing.dataplane.choose import choose
from routing.dataplane.errors import ApiError

if TYPE_CHECKING:
    from routing.dataplane.inflight import Attempt, Choice, Flight
    from routing.dataplane.state import Plane

TICK_S = 0.05
DEFAULT_QUEUE_S = 10.0  # how long a request may wait where no SLO policy says so
DEFAULT_OUTPUT_TOKENS = 128.0
MAX_ROOMS = 1024


@dataclass(slots=True)
class _Waiting:
    flight: Flight
    future: asyncio.Future[Attempt]


@dataclass(slots=True)
class _Room:
    """The queue of one pool."""

    queue: FairQueue
    waiting: dict[int, _Waiting] = field(default_factory=dict)


class Waiting:
    """All requests that wait in this router. One event loop owns it."""

    def __init__(self, *, max_waiters: int, burst_window_s: float) -> None:
        self._max_waiters = max_waiters
        self._rooms: dict[UUID, _Room] = {}
        self._gate = Gate(window_s=burst_window_s)
        self._followers: dict[int, asyncio.Event] = {}
        self._serial = 0
        self._tick: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(len(room.waiting) for room in self._rooms.values())

    @property
    def following(self) -> int:
        """Requests held behind the leader of their burst."""
        return len(self._followers)

    async def turn(self, plane: Plane, flight: Flight, *, tried: Collection[UUID]) -> Attempt:
        """Wait until the flight may be dispatched, and begin its attempt in the same step, so that the next to choose sees it.

        Raises:
            ApiError: 429 ``queue_full`` or ``queue_timeout``; what :func:`choose` raises.
        """
        choice = choose(plane, flight, tried=tried, now_s=time.monotonic())
        if flight.probe is not None or tried:  # an audit stands in nobody's queue; a second attempt has waited already
            return flight.begin_attempt(choice)
        began_s = time.monotonic()
        if self._follows(plane, flight, choice):
            await self._behind_leader(plane, flight, choice)
            flight.queue_s = time.monotonic() - began_s
            choice = choose(plane, flight, tried=tried, now_s=time.monotonic())
        pool_id = _pool_of(flight)
        room = self._rooms.get(pool_id)
        if (room is None or not room.waiting) and admission.commits(choice.decision, _slo_s(flight)):
            return flight.begin_attempt(choice)
        try:
            return await self._in_line(plane, flight, choice, self._room(pool_id))
        finally:
            flight.queue_s = time.monotonic() - began_s

    def first_byte(self, flight: Flight) -> None:
        """The flight's prefix is resident where it went: those who follow it may go."""
        if flight.burst is not None:
            self._open(self._gate.opened(flight.burst, flight.serial))

    def left(self, plane: Plane, flight: Flight) -> None:
        """The flight ended, in whatever way: nobody waits for it any more, and its pool pays what it really cost."""
        if flight.burst is not None:
            heir = self._gate.lost(flight.burst, flight.serial)
            self._open(() if heir is None else (heir,))
        if flight.waiter is not None and (room := self._rooms.get(_pool_of(flight))) is not None:
            room.queue.settle(flight.waiter, _real_cost(flight))
        self.wake(plane)

    def wake(self, plane: Plane) -> None:
        """Something was freed: look soon whether somebody can go. Many calls in one turn of the loop cost one look."""
        if len(self):
            self._schedule(plane, 0.0)

    def _follows(self, plane: Plane, flight: Flight, choice: Choice) -> bool:
        """Whether the flight belongs to a burst that somebody leads. What marks a burst is the prefix that ends :data:`gate.MIN_TOKENS` after what
        the chosen replica holds for certain."""
        prompt, namespace, endpoint, chosen = flight.prompt, flight.namespace, flight.endpoint, choice.decision.chosen
        if prompt is None or namespace is None or endpoint is None or chosen.uncached_tokens < gate.MIN_TOKENS:
            return False
        if endpoint.policy.policy != "ettft":  # the baselines are what they are called
            return False
        if chosen.evidence == "event":
            held_blocks = int(chosen.matched_tokens * prompt.bytes_per_token / prefix.BLOCK_BYTES)
        else:
            key = bytes.fromhex(namespace.public_id.removeprefix("ns-"))
            held_blocks = plane.index.settled(key, prompt.digests, choice.replica.url, owner=flight.owner)
        position = held_blocks + int(gate.MIN_TOKENS * prompt.bytes_per_token / prefix.BLOCK_BYTES)
        if position >= len(prompt.digests):
            return False
        flight.serial = self._next_serial()
        flight.burst = namespace.public_id.encode() + prompt.digests[position]
        return self._gate.arrive(flight.burst, flight.serial, uncached_tokens=chosen.uncached_tokens, now_s=time.monotonic())

    async def _behind_leader(self, plane: Plane, flight: Flight, choice: Choice) -> None:
        event = self._followers[flight.serial] = asyncio.Event()
        plane.metrics.held.labels(reason="burst").inc()
        limit_s = gate.hold_s(leader_ttft_s=choice.decision.chosen.expected_ttft_s, slo_s=_slo_s(flight))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await event.wait()
        finally:
            del self._followers[flight.serial]
            if flight.burst is not None and not event.is_set():
                self._gate.gave_up(flight.burst, flight.serial)

    def _open(self, serials: Collection[int]) -> None:
        for serial in serials:
            if (event := self._followers.get(serial)) is not None:
                event.set()

    def _room(self, pool_id: UUID) -> _Room:
        """The pool's room. It stays when it empties: who owes turns still does; rooms of pools nobody waits for go when there are too many."""
        room = self._rooms.get(pool_id)
        if room is None:
            if len(self._rooms) >= MAX_ROOMS:
                for empty in [one for one, other in self._rooms.items() if not other.waiting]:
                    del self._rooms[empty]
            room = self._rooms[pool_id] = _Room(FairQueue(max_waiters=self._max_waiters))
        return room

    async def _in_line(self, plane: Plane, flight: Flight, choice: Choice, room: _Room) -> Attempt:
        """Stand in the pool's queue until it is this flight's turn and a replica is free enough.

        Raises:
            ApiError: 429; 503 if no replica is left.
        """
        now_s = time.monotonic()
        tenant, key = _flows(flight)
        limit_s = _queue_s(flight)
        waiter = Waiter(
            id=self._next_serial(),
            tenant=tenant,
            key=key,
            cost_tokens=choice.decision.chosen.uncached_tokens + OUTPUT_WEIGHT * DEFAULT_OUTPUT_TOKENS,
            deadline_s=now_s + limit_s,
            priority=flight.endpoint.slo.priority_class if flight.endpoint is not None and flight.endpoint.slo is not None else 1,
        )
        if limit_s == 0 and admission.commits(choice.decision, _slo_s(flight)):
            limit_s = TICK_S  # it could go but for others' turns
        if limit_s == 0 or not room.queue.add(waiter):
            raise self._refused(plane, flight, room, "queue_full" if limit_s else "shed")
        future: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        room.waiting[waiter.id] = _Waiting(flight, future)
        plane.metrics.held.labels(reason="wait").inc()
        self._schedule(plane, 0.0)
        try:
            async with asyncio.timeout(limit_s):
                attempt = await future
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()
            raise self._refused(plane, flight, room, "queue_timeout") from None
        finally:
            room.queue.remove(waiter.id)
            del room.waiting[waiter.id]
            self.wake(plane)
        flight.waiter = waiter
        return attempt

    def _refused(self, plane: Plane, flight: Flight, room: _Room, code: str) -> ApiError:
        tenant, _ = _flows(flight)
        _, own_tokens = room.queue.waiting_of(tenant)
        replicas, now_s = flight.endpoint.replicas if flight.endpoint else (), time.monotonic()
        rate = sum(plane.engine(replica.url).calibration.rate(None, now_s) for replica in replicas)
        return errors.queue_refused(code, retry_after_s(own_tokens, rate))

    def _schedule(self, plane: Plane, delay_s: float) -> None:
        if self._tick is not None:
            if delay_s > 0:
                return
            self._tick.cancel()
        self._tick = asyncio.get_running_loop().call_later(delay_s, self._look, plane)

    def _look(self, plane: Plane) -> None:
        """Start whoever can start, in order. Nobody is passed over because a later one would fit better."""
        self._tick = None
        for room in list(self._rooms.values()):
            while (head := room.queue.peek()) is not None:
                if not self._start(plane, room, head):
                    break
        if len(self):
            self._schedule(plane, TICK_S)

    def _start(self, plane: Plane, room: _Room, head: Waiter) -> bool:
        """Whether the head of the line is out of it: started, or refused for want of any replica."""
        waiting = room.waiting[head.id]
        if waiting.future.done():  # it is leaving by itself
            room.queue.remove(head.id)
            return True
        try:
            choice = choose(plane, waiting.flight, tried=(), now_s=time.monotonic())
        except ApiError as error:
            room.queue.remove(head.id)
            waiting.future.set_exception(error)
            return True
        if not admission.commits(choice.decision, _slo_s(waiting.flight)):
            return False
        room.queue.take(head.id)
        waiting.future.set_result(waiting.flight.begin_attempt(choice))
        return True

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def _pool_of(flight: Flight) -> UUID:
    if flight.endpoint is None:
        raise RuntimeError("no endpoint, no pool")
    return flight.endpoint.pool.id


def _slo_s(flight: Flight) -> float | None:
    return flight.endpoint.slo.ttft_s if flight.endpoint is not None and flight.endpoint.slo is not None else None


def _queue_s(flight: Flight) -> float:
    slo = flight.endpoint.slo if flight.endpoint is not None else None
    return DEFAULT_QUEUE_S if slo is None else slo.max_queue_ms / 1000


def _flows(flight: Flight) -> tuple[bytes, bytes]:
    """Whose turn a request takes: its tenant's, and in it its key's."""
    if flight.caller is None:
        raise RuntimeError("nobody is calling")
    return flight.owner, flight.caller.grant.key.id.bytes


def _real_cost(flight: Flight) -> float:
    """What the request took of its pool, in tokens, as far as its answer says; what it was expected to, where it says nothing."""
    usage, waiter = flight.usage, flight.waiter
    if waiter is None or usage.prompt_tokens is None:
        return 0.0 if waiter is None else waiter.cost_tokens
    return max(1.0, usage.prompt_tokens - (usage.cached_tokens or 0)) + OUTPUT_WEIGHT * (usage.completion_tokens or 0)
