"""One rank of one engine, followed: connect, listen, ask for what was missed, apply, and connect again.

Policy: nothing of an event, and no address of a source, is logged or reported: the stream holds token ids and salts in clear. A gap that no replay
fills empties the target, since removals may be among what was lost; so does silence of 30 s. What waits in memory has a bound for each source and one
for all (:mod:`routing.core.byte_budget`): a replay that is more is cut off, gone on with from where it brought us, and in the end given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from routing.core import kv_events
from routing.core.byte_budget import Account
from routing.core.kv_events import Batch
from routing.core.sequence import Action, Apply, AskReplay, CaughtUp, Gap, Restarted, Tracker
from routing.dataplane.engine import Engine
from routing.dataplane.feeds.kv_followed import Followed
from routing.dataplane.feeds.kv_sockets import MAX_MESSAGE_BYTES, EventSockets
from routing.dataplane.feeds.kv_sources import Source
from routing.dataplane.state import Plane
from routing.outbound import guard
from routing.outbound.literal import checked_literal

if TYPE_CHECKING:
    from routing.dataplane.feeds.kv import KvFeed

MAX_REPLAY_MESSAGES = 100_000
MAX_REPLAY_BYTES = 512 * 1024 * 1024
RETRY_MAX_S = 30.0


@dataclass(slots=True)
class _Session:
    """One connection of a subscription."""

    sockets: EventSockets
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begun: bool = False  # messages are taken: what can be known of the process was asked before
    request: int = 0  # of the replay under way
    replay_messages: int = 0
    replay_bytes: int = 0
    live_next: bool = False  # live and replay take turns


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a batch that is quick to apply."""

    batch: Batch
    generation: int


@dataclass(frozen=True, slots=True)
class _Reading:
    """A payload that is read in steps."""

    parts: Iterator[Batch]
    payload_bytes: int
    generation: int


class Subscription(Followed[bytes]):
    """Connects, listens, asks, and connects again."""

    def __init__(self, plane: Plane, feed: KvFeed, engine: Engine, source: Source, account: Account) -> None:
        tracker: Tracker[bytes] = Tracker(can_replay=source.replay_port is not None, deadline_s=plane.config.kv_replay_s)
        super().__init__(plane, feed, engine, source, account, tracker=tracker)
        self._session: _Session | None = None
        self._todo: deque[Apply[bytes] | Gap | CaughtUp | _Reading | _Piece] = deque()
        self._todo_bytes = 0  # of payloads in it
        self._again = asyncio.Event()  # it may be there again: do not wait any longer
        self._task = asyncio.create_task(self._run(), name="kv events")

    # -- the connection ------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Connect, and again when a connection ended, for ever; the pause doubles while nobody answers."""
        book, pause_s = self._plane.residency, self._plane.config.kv_retry_s
        while True:
            refused = False
            try:
                await self._connect()
                pause_s = self._plane.config.kv_retry_s
            except guard.AddressRefused:
                refused = True
                self._count("refused")
            except OSError:
                self._count("unreachable")
            except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the subscription
                self._mistaken("followed", error)
            if refused or book.has(self.target, "subscribing"):
                book.add(self.target, "no_events", time.monotonic())
            else:
                book.add(self.target, "stale", time.monotonic())
            self._again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._again.wait()
            pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def _connect(self) -> None:
        """One connection, from its check to its end. Raises AddressRefused or OSError where it could not be made."""
        config = self._plane.config
        host = urlsplit(self.engine.url).hostname or ""
        async with asyncio.timeout(config.connect_s):
            address = await checked_literal(host, config.allowed_ranges, self._feed.resolver)
        sockets = EventSockets(
            address,
            port=self.source.port,
            replay_port=self.source.replay_port,
            topic=self.source.topic,
            connect_s=config.connect_s,
            wake=self._wake,
            admit=self._admit,
        )
        self._session = session = _Session(sockets)
        try:
            self._wake()
            async with asyncio.timeout(config.connect_s):
                await sockets.established.wait()
            if sockets.lost:
                raise ConnectionRefusedError
            self._count("connected")
            self.check_start(time.monotonic())  # as it was read last
            self.tracker.disconnected(time.monotonic())  # whatever was asked for meanwhile went nowhere
            await self._feed.ask_start(self.engine.url)  # which process is it? Numbers alone may not tell
            now_s = time.monotonic()
            self._plane.residency.drop(self.target, "no_events", now_s=now_s)
            self._act(self.tracker.subscribed(now_s))
            session.begun = True
            self._wake()
            await session.ended.wait()
        finally:
            self._session = None
            sockets.close()
            self.tracker.disconnected(time.monotonic())
            self._settle()

    def _wake(self) -> None:
        self._feed.pump.wake(self)

    # -- what waits ----------------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Say how many bytes wait."""
        if not self._closed:
            received = 0 if self._session is None else self._session.sockets.waiting_bytes
            self._account.set(received + self.tracker.held_bytes + self._todo_bytes)

    def _admit(self, more_bytes: int) -> bool:
        """Whether so many bytes more than wait now may wait. Asked by the sockets, which just received something."""
        if self._closed:  # what still comes in while the sockets are closing is read by nobody
            return False
        before = self._account.held_bytes
        received = 0 if self._session is None else self._session.sockets.waiting_bytes
        waiting = received + self.tracker.held_bytes + self._todo_bytes
        fits = self._account.fits(waiting + more_bytes)
        if fits or waiting < before:
            self._account.set(waiting)
        return fits

    def _make_room(self, more_bytes: int, now_s: float) -> None:
        """Give a replay up rather than keep more live batches for its end than may wait."""
        if self.tracker.replaying and self.tracker.held_bytes and not self._admit(more_bytes):
            self._count("replay_over_budget")
            self._act(self.tracker.too_much(now_s))

    def _clear_todo(self) -> None:
        self._todo.clear()
        self._todo_bytes = 0

    # -- what arrives --------------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """As :meth:`Followed.step`."""
        session = self._session
        if self._closed:
            return False
        try:
            if self._todo:
                self._do(self._todo.popleft())
                return True
            if session is None:
                return False
            if not session.sockets.lost:
                return session.begun and self._take(session)
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not stop the pump
            self._mistaken("read", error)
            self._malformed(time.monotonic())
            self._todo_bytes = sum(len(one.batch) for one in self._todo if isinstance(one, Apply))
        finally:
            self._settle()
        if session is not None:
            session.ended.set()
        return False

    def _take(self, session: _Session) -> bool:
        sockets, now_s = session.sockets, time.monotonic()
        session.live_next = not session.live_next
        message = sockets.live() or sockets.replay() if session.live_next else sockets.replay() or sockets.live()
        if message is None:
            return False
        kind, number, payload = message
        self._count(kind)
        if kind == "live":
            self._act(self.tracker.live(number, payload, now_s, cost_bytes=len(payload)))
            self._make_room(0, now_s)
        elif kind == "replay":
            session.replay_messages += 1
            session.replay_bytes += len(payload)
            if session.replay_messages > MAX_REPLAY_MESSAGES or session.replay_bytes > MAX_REPLAY_BYTES:
                self._count("replay_too_long")
                self._act(self.tracker.too_much(now_s))
            else:
                self._act(self.tracker.replayed(session.request, number, payload, now_s))
        elif kind == "end":
            self._act(self.tracker.replay_end(session.request, now_s))
        elif kind == "cut":
            self._act(self.tracker.replay_cut(session.request, now_s))
        elif kind == "too_large":  # its number will be missing
            self._make_room(MAX_MESSAGE_BYTES, now_s)
        else:
            self._malformed(now_s)
        if not self.tracker.replaying:
            sockets.end_replay()
            session.replay_messages = session.replay_bytes = 0
        return True

    def tick(self, now_s: float) -> None:
        """Time passed: replays have deadlines, and what stood against the events for too long empties the target."""
        if self._todo:
            self.tracker.busy(now_s)
        if self._session is not None:
            self._act(self.tracker.tick(now_s))
        if self._plane.residency.overdue(self.target, now_s) and not self._emptied:
            self._begin_anew(now_s)
            if self._session is None:  # whatever comes back is a new source, of which even the beginning may be there again
                self.tracker.anew()
                self._lost = False
                self._plane.events.set_generation(self.target, self.tracker.generation, now_s)

    def relearn(self) -> None:
        """Answers contradict what the events promise. From here on a removal takes all copies of a block along, which errs on the safe side.

        Where messages were lost, what is known is forgotten and all there is replayed; without a loss a replay would say the same again, and blocks
        long gone would count meanwhile.
        """
        self._count("relearn")
        self._plane.events.use_set_semantics(self.target)
        actions = self.tracker.relearn(time.monotonic()) if self._lost else []
        if actions:
            self._begin_anew(time.monotonic())
            self._act(actions)

    def check_start(self, now_s: float) -> None:
        """As :meth:`Followed.check_start`; an engine that has just started need not be waited for."""
        if self.engine.started_at not in (None, self._started_at):
            self._again.set()
        super().check_start(now_s)

    def _act(self, actions: list[Action[bytes]]) -> None:
        """Do what the tracker says, in its order, a piece at a time: thousands of batches may have waited for a replay. What must not wait is done
        at once: asking, and forgetting a process that is gone, whose batches are refused from then on."""
        for action in actions:
            if isinstance(action, AskReplay):
                self._ask(action)
            elif isinstance(action, Restarted):
                self._clear_todo()
                self._restarted(action.generation, time.monotonic())
            else:
                self._todo.append(action)
                self._todo_bytes += len(action.batch) if isinstance(action, Apply) else 0
        if actions:
            self._wake()

    def _do(self, work: Apply[bytes] | Gap | CaughtUp | _Reading | _Piece) -> None:
        now_s = time.monotonic()
        if isinstance(work, Apply):
            self._read(_Reading(kv_events.decode_in_steps(work.batch), len(work.batch), work.generation), now_s)
        elif isinstance(work, _Reading):
            self._read(work, now_s)
        elif isinstance(work, _Piece):
            self._applied(work.batch, work.generation, now_s)
        elif isinstance(work, Gap):
            self._gap(work, now_s)
        elif not self.tracker.behind:  # the connection may have been lost since
            self._caught_up(now_s)

    def _ask(self, action: AskReplay) -> None:
        session, book = self._session, self._plane.residency
        if session is None:
            return  # the next connection asks by itself
        if not (book.has(self.target, "subscribing") or book.has(self.target, "restart")):
            book.add(self.target, "replay", time.monotonic())
        self._count("asked")
        session.request = action.request
        session.sockets.ask(action.first)

    def _read(self, reading: _Reading, now_s: float) -> None:
        """The next part of a payload; what follows it comes after its pieces."""
        try:
            batch = next(reading.parts, None)
        except kv_events.EventError:
            self._count("undecodable")
            self._malformed(now_s)
            batch = None
        if batch is not None and batch.rank is not None and batch.rank != self.source.rank:
            self._count("other_rank")
            self._malformed(now_s)
            batch = None
        if batch is None:
            self._todo_bytes -= reading.payload_bytes
            return
        self._todo.appendleft(reading)
        self._todo.extendleft(_Piece(piece, reading.generation) for piece in reversed(self._cut(batch)))
