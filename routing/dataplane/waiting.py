"""Where requests wait: behind the leader of an identical burst (:mod:`routing.dataplane.bursts`), and in the queue of their pool while every
replica is busy with others' work.

``turn`` is the one way from a request to a dispatch. Most requests pass without waiting. Those that wait are woken when a first byte or an end frees
a replica, in the order of :mod:`routing.core.fair_queue`, and every 50 ms, since estimates fade. Who waited as long as its policy allows is refused
with 429 and a Retry-After from its tenant's own queue. A pool's queue is the pool's, over all tenants that use it; what one may see of it is its own.

A second attempt has had its turn, so it goes at once unless every replica left to it has as many requests as it may. Then it waits beside the
queue, for what is left of its time: it goes first, and holds up nobody who may go where it failed. Not so where an engine fell silent: it may have
held very many, and nobody may go there now, so each of them takes its turn anew, under the queue's bound and beside others.

A request whose policy names a second pool stands in both queues, in each at its tenant's turn there, and leaves both when either starts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from routing.core import admission, overload
from routing.core.fair_queue import OUTPUT_WEIGHT, FairQueue, Waiter, retry_after_s
from routing.dataplane import errors
from routing.dataplane.bursts import Bursts
from routing.dataplane.choose import choose
from routing.dataplane.errors import ApiError

if TYPE_CHECKING:
    from routing.dataplane.attempt import Attempt
    from routing.dataplane.choice import Choice
    from routing.dataplane.inflight import Flight
    from routing.dataplane.state import Plane
    from routing.dataplane.view import EndpointView

TICK_S = 0.05
DEFAULT_QUEUE_S = 10.0  # how long a request may wait where no SLO policy says so
DEFAULT_OUTPUT_TOKENS = 128.0
MAX_ROOMS = 1024


@dataclass(slots=True)
class _Waiting:
    """A flight in the queues of one pool or two: ``views`` are its endpoint as each of them serves it."""

    serial: int
    flight: Flight
    future: asyncio.Future[Attempt]
    views: dict[UUID, EndpointView]
    waiters: dict[UUID, Waiter] = field(default_factory=dict)
    tried: frozenset[UUID] = frozenset()  # replicas that failed it


@dataclass(slots=True)
class _Room:
    """The queue of one pool. ``waiting`` are all; of those ``again`` are second attempts, which are not in the queue."""

    pool_id: UUID
    queue: FairQueue
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    again: dict[int, _Waiting] = field(default_factory=dict)


class Waiting:
    """All requests that wait in this router. One event loop owns it."""

    def __init__(self, *, max_waiters: int, burst_window_s: float) -> None:
        self._max_waiters = max_waiters
        self._rooms: dict[UUID, _Room] = {}
        self.bursts = Bursts(window_s=burst_window_s)
        self._serial = 0
        self._tick: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Requests that wait; one in two queues counts once."""
        return len({serial for room in self._rooms.values() for serial in room.waiting})

    async def turn(self, plane: Plane, flight: Flight, *, tried: Collection[UUID]) -> Attempt:
        """Wait until the flight may be dispatched, and begin its attempt in the same step, so that the next to choose sees it.

        Raises:
            ApiError: 429 ``queue_full`` or ``queue_timeout``; what :func:`choose` raises.
        """
        if flight.probe is None and flight.stranded:
            return await self._anew(plane, flight)
        if flight.probe is None and not tried and not flight.alone:
            return await self._at_first(plane, flight)
        choice = choose(plane, flight, tried=tried, now_s=time.monotonic())
        if flight.probe is not None or not choice.decision.full:  # an audit stands in nobody's queue
            return flight.begin_attempt(choice)
        return await self._once_more(plane, flight, tried)

    async def _anew(self, plane: Plane, flight: Flight) -> Attempt:
        """Take a turn once more, as if it were the first: the engine fell silent, so the filters keep it out for as long. What it waits
        is part of what the failed attempt cost.

        Raises:
            ApiError: as :meth:`turn`.
        """
        self.bursts.turned_away(flight)
        waited_s, began_s = flight.queue_s, time.monotonic()
        try:
            return await self._at_first(plane, flight)
        finally:
            flight.waited_again_s += time.monotonic() - began_s
            flight.queue_s = waited_s

    async def _at_first(self, plane: Plane, flight: Flight) -> Attempt:
        """The turn of a request that has failed nowhere.

        Raises:
            ApiError: as :meth:`turn`.
        """
        began_s = time.monotonic()
        try:
            choice = choose(plane, flight, tried=(), now_s=began_s)
        except ApiError as refusal:
            if flight.endpoint is None or flight.endpoint.spill is None:
                raise
            return await self._elsewhere(plane, flight, {}, began_s, refusal)
        if (hold_s := self.bursts.hold_s(plane, flight, choice)) is not None:
            await self.bursts.behind_leader(plane, flight, hold_s)
            flight.queue_s = time.monotonic() - began_s
            choice = choose(plane, flight, tried=(), now_s=time.monotonic())
        if self._is_empty(_pool_of(flight)) and admission.commits(choice.decision, flight.slo_s):
            return flight.begin_attempt(choice)
        return await self._elsewhere(plane, flight, {_pool_of(flight): choice}, began_s)

    async def _elsewhere(self, plane: Plane, flight: Flight, choices: dict[UUID, Choice], began_s: float, refusal: ApiError | None = None) -> Attempt:
        """The flight's own pool cannot start it now (``choices`` holds its choice there; where the pool has no replica nothing, and ``refusal`` says
        so): go to the pool it spills to if that one can, else wait for whichever is first.

        Raises:
            ApiError: as :meth:`turn`.
        """
        home = flight.endpoint
        views = {} if home is None else {view.pool.id: view for view in (home, home.spill) if view is not None}
        spill = None if home is None else home.spill
        if spill is not None:
            try:
                choice = _choose_at(plane, flight, spill)
            except ApiError as error:
                if not choices:
                    raise refusal or error from None
            else:
                if self._is_empty(spill.pool.id) and admission.commits(choice.decision, flight.slo_s):
                    return self._begin(plane, flight, spill, choice)
                choices[spill.pool.id] = choice
        try:
            return await self._in_line(plane, flight, choices, views)
        finally:
            flight.queue_s = time.monotonic() - began_s

    def _is_empty(self, pool_id: UUID) -> bool:
        room = self._rooms.get(pool_id)
        return room is None or not room.waiting

    def _begin(self, plane: Plane, flight: Flight, view: EndpointView, choice: Choice) -> Attempt:
        """Dispatch the flight on the pool of ``view``."""
        if view is not flight.endpoint:
            flight.endpoint, flight.spilled = view, "pool"
            plane.metrics.spilled.labels(to="pool").inc()
        return flight.begin_attempt(choice)

    def left(self, plane: Plane, flight: Flight) -> None:
        """The flight ended, in whatever way: nobody waits for it any more, and its pool pays what it really cost."""
        self.bursts.turned_away(flight)
        if flight.waiter is not None and (room := self._rooms.get(_pool_of(flight))) is not None:
            weight = flight.endpoint.pool.weight if flight.endpoint is not None else 1.0
            room.queue.settle(flight.waiter, _real_cost(flight), tenant_weight=weight)
        self.wake(plane)

    def wake(self, plane: Plane) -> None:
        """Something was freed: look soon whether somebody can go. Many calls in one turn of the loop cost one look."""
        if any(room.waiting for room in self._rooms.values()):
            self._schedule(plane, 0.0)

    def _room(self, pool_id: UUID) -> _Room:
        """The pool's room. It stays when it empties: who owes turns still does; rooms of pools nobody waits for go when there are too many."""
        room = self._rooms.get(pool_id)
        if room is None:
            if len(self._rooms) >= MAX_ROOMS:
                for empty in [one for one, other in self._rooms.items() if not other.waiting]:
                    del self._rooms[empty]
            room = self._rooms[pool_id] = _Room(pool_id, FairQueue(max_waiters=self._max_waiters))
        return room

    async def _in_line(self, plane: Plane, flight: Flight, choices: dict[UUID, Choice], views: dict[UUID, EndpointView]) -> Attempt:
        """Stand in the queues of the pools of ``choices`` until it is this flight's turn in one of them and a replica there is free enough.

        Raises:
            ApiError: 429; 503 if no replica is left.
        """
        limit_s = _queue_s(flight)
        if limit_s == 0 and any(admission.commits(choice.decision, flight.slo_s) for choice in choices.values()):
            limit_s = TICK_S  # it could go but for others' turns
        waiting = _Waiting(self._next_serial(), flight, asyncio.get_running_loop().create_future(), views)
        why = "shed"
        for pool_id, choice in choices.items() if limit_s else ():
            why = self._join(plane, self._room(pool_id), waiting, choice, limit_s) or why
        if not waiting.waiters:
            raise self._refused(plane, flight, why)
        self._schedule(plane, 0.0)
        try:
            return await self._wait(plane, waiting, limit_s)
        finally:
            for pool_id in list(waiting.waiters):
                self._leave(self._rooms[pool_id], waiting.serial)
            self.wake(plane)

    async def _once_more(self, plane: Plane, flight: Flight, tried: Collection[UUID]) -> Attempt:
        """Wait until a replica that has not failed the flight has room for it.

        Raises:
            ApiError: as :meth:`_in_line`.
        """
        limit_s = _queue_s(flight) - (flight.queue_s or 0.0) - flight.waited_again_s
        room, began_s = self._room(_pool_of(flight)), time.monotonic()
        if limit_s <= 0:
            raise self._refused(plane, flight, "shed")
        if sum(one.flight.owner == flight.owner for one in room.again.values()) >= self._max_waiters:
            raise self._refused(plane, flight, "queue_full")
        waiting = _Waiting(self._next_serial(), flight, asyncio.get_running_loop().create_future(), {}, tried=frozenset(tried))
        room.waiting[waiting.serial] = room.again[waiting.serial] = waiting
        self._schedule(plane, TICK_S)
        try:
            return await self._wait(plane, waiting, limit_s)
        finally:
            flight.waited_again_s += time.monotonic() - began_s
            room.again.pop(waiting.serial, None)
            room.waiting.pop(waiting.serial, None)
            self.wake(plane)

    async def _wait(self, plane: Plane, waiting: _Waiting, limit_s: float) -> Attempt:
        """The attempt that is begun for whoever waits.

        Raises:
            ApiError: 429 ``queue_timeout`` after ``limit_s``; whatever the one who looked for a replica met.
        """
        plane.metrics.held.labels(reason="wait").inc()
        try:
            async with asyncio.timeout(limit_s):
                return await waiting.future
        except TimeoutError:
            if waiting.future.done() and not waiting.future.cancelled():
                return waiting.future.result()
            raise self._refused(plane, waiting.flight, "queue_timeout") from None

    def _resume(self, plane: Plane, room: _Room) -> None:
        """Start the second attempts that can start, the oldest first. None stands in another's way."""
        for serial, waiting in list(room.again.items()):
            if waiting.future.done():
                continue
            try:
                choice = choose(plane, waiting.flight, tried=waiting.tried, now_s=time.monotonic())
            except ApiError as error:
                waiting.future.set_exception(error)
            else:
                if choice.decision.full:
                    continue
                waiting.future.set_result(waiting.flight.begin_attempt(choice))
            del room.again[serial], room.waiting[serial]

    def _join(self, plane: Plane, room: _Room, waiting: _Waiting, choice: Choice, limit_s: float) -> str | None:
        """Stand in one pool's queue. Returns why not, where it is full for this tenant."""
        flight, view = waiting.flight, waiting.views[room.pool_id]
        tenant, key = _flows(flight)
        waiter = Waiter(
            id=waiting.serial,
            tenant=tenant,
            key=key,
            cost_tokens=choice.decision.chosen.uncached_tokens + OUTPUT_WEIGHT * DEFAULT_OUTPUT_TOKENS,
            deadline_s=_due_s(flight, limit_s),
            priority=view.slo.priority_class if view.slo is not None else 1,
        )
        rate = plane.pool_rate(view)  # None: nobody knows yet how much is too much
        if rate is not None:
            weight, others = view.pool.weight, room.queue.weights_beside(tenant)
            cap = overload.token_cap(tokens_per_s=rate * len(view.replicas), wait_s=limit_s, weight=weight, other_weights=others)
            if overload.over_cap(held_tokens=room.queue.waiting_of(tenant)[1], cost_tokens=waiter.cost_tokens, cap_tokens=cap):
                return "queue_share"
        if not room.queue.add(waiter, tenant_weight=view.pool.weight):
            return "queue_full"
        room.waiting[waiting.serial] = waiting
        waiting.waiters[room.pool_id] = waiter
        return None

    def _leave(self, room: _Room, serial: int) -> None:
        room.queue.remove(serial)
        waiting = room.waiting.pop(serial, None)
        if waiting is not None:
            waiting.waiters.pop(room.pool_id, None)

    def _refused(self, plane: Plane, flight: Flight, why: str) -> ApiError:
        """The client hears of a full queue alike, whichever bound it met; the counter tells them apart."""
        plane.metrics.queue_refused.labels(reason=why).inc()
        tenant, _ = _flows(flight)
        room = self._rooms.get(_pool_of(flight))
        _, own_tokens = (0, 0.0) if room is None else room.queue.waiting_of(tenant)
        replicas, now_s = flight.endpoint.replicas if flight.endpoint else (), time.monotonic()
        rate = sum(plane.engine(replica.url).calibration.rate(None, now_s) for replica in replicas)
        return errors.queue_refused("queue_full" if why == "queue_share" else why, retry_after_s(own_tokens, rate))

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
            self._resume(plane, room)
            while (head := room.queue.peek()) is not None:
                if not self._start(plane, room, head):
                    break
        if any(room.waiting for room in self._rooms.values()):
            self._schedule(plane, TICK_S)

    def _start(self, plane: Plane, room: _Room, head: Waiter) -> bool:
        """Whether the head of the line is out of it: started, or refused for want of any replica."""
        waiting = room.waiting[head.id]
        flight, view = waiting.flight, waiting.views[room.pool_id]
        if waiting.future.done():  # it is leaving by itself
            room.queue.remove(head.id)
            return True
        try:
            choice = _choose_at(plane, flight, view)
        except ApiError as error:
            self._leave(room, head.id)
            if not waiting.waiters:
                waiting.future.set_exception(error)
            return True
        if not admission.commits(choice.decision, flight.slo_s):
            return False
        flight.waiter = room.queue.take(head.id)
        waiting.future.set_result(self._begin(plane, flight, view, choice))
        return True

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def _choose_at(plane: Plane, flight: Flight, view: EndpointView) -> Choice:
    """As :func:`choose`, on the pool of ``view``; the flight stays where it was."""
    before, flight.endpoint = flight.endpoint, view
    try:
        return choose(plane, flight, tried=(), now_s=time.monotonic())
    finally:
        flight.endpoint = before


def _pool_of(flight: Flight) -> UUID:
    if flight.endpoint is None:
        raise RuntimeError("no endpoint, no pool")
    return flight.endpoint.pool.id


def _due_s(flight: Flight, limit_s: float) -> float:
    """When the flight is due to start, on the monotonic clock: at its first token's objective, at the latest when its time for waiting is over."""
    slo_s, latest_s = flight.slo_s, time.monotonic() + limit_s
    return latest_s if slo_s is None else min(latest_s, flight.started_s + slo_s)


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
