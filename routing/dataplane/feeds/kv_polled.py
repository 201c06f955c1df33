"""KV events of an engine that publishes none and is asked for them: TensorRT-LLM's ``POST /kv_cache_events``, every ``POLL_S``.

An answer drains the engine's buffer: what it held is given once, to whoever asked. So there is no replay, a lost answer is a gap, and two routers,
or a router and anything else that asks, take the events from one another: each then sees gaps. Until an event shows a salt of ours the state is
``history`` with the reason ``unsupported``: versions that show none would make every engine look empty.

Asked through the same guarded session as everything else. From specification, unproven on a live engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import aiohttp

from routing.core import kv_events_trtllm, kv_pieces
from routing.core.byte_budget import Account
from routing.core.engines import ENGINES
from routing.core.event_index import Sizes
from routing.core.kv_events import SALT_PREFIX, Batch, EventError, Stored, salt_of
from routing.core.kv_events_trtllm import MAX_ANSWER_BYTES, BlockSize, Numbered
from routing.core.residency_state import Reason
from routing.core.sequence import Action, Apply, Gap, Restarted, Tracker
from routing.dataplane.feeds.kv_sources import Source
from routing.dataplane.feeds.kv_subscription import INCOMPLETE, PIECE_BLOCKS, UNUSABLE, look
from routing.dataplane.state import Engine, Plane

if TYPE_CHECKING:
    from routing.dataplane.feeds.kv import KvFeed

POLL_S = 0.25
ANSWER_S = 5.0  # versions before 1.2 wait two seconds for an event
ABSENT_S = 60.0  # until an engine that has no such path is asked again
log = logging.getLogger("saltroute.events")


class PolledSubscription:
    """One engine: asks, applies in pieces, and asks again when all is applied."""

    def __init__(self, plane: Plane, feed: KvFeed, engine: Engine, source: Source, account: Account) -> None:
        self._plane = plane
        self._feed = feed
        self._account = account
        self.engine = engine
        self.source = source
        self.target = (engine.url, source.rank)
        self.tracker: Tracker[Batch] = Tracker(can_replay=False)
        self._size = BlockSize()
        self._started_at: float | None = None
        self._lost = False  # something of this generation is lost for good
        self._emptied = False  # since the last event
        self._several = False  # ranks
        self._closed = False
        self._reading: Iterator[Numbered] | None = None
        self._todo: deque[Action[Batch]] = deque()
        self._read = asyncio.Event()  # all of the last answer is applied
        now_s = time.monotonic()
        plane.events.set_generation(self.target, self.tracker.generation, now_s)
        plane.residency.begin(self.target, now_s)
        plane.residency.add(self.target, "unsupported", now_s)
        self._task = asyncio.create_task(self._run(), name="kv poll")

    async def _run(self) -> None:
        """Ask, for ever."""
        while True:
            pause_s = POLL_S
            try:
                pause_s = await self._ask()
            except (aiohttp.ClientError, OSError):
                self._count("unreachable")
                self._plane.residency.add(self.target, "stale", time.monotonic())
            except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the polling; the type alone is named
                log.error("an engine's events could not be asked for: %s", type(error).__name__)  # noqa: TRY400 - nor the traceback
                self._count("mistake")
            await asyncio.sleep(pause_s)

    async def _ask(self) -> float:
        """One answer, to the end of what it says. Returns how long to wait before the next question.

        Raises:
            ClientError, OSError: none came.
        """
        replica = self._plane.replicas.get(self.engine.url)
        path = None if replica is None else ENGINES[replica.entry.engine].events_path
        if replica is None or path is None or not self.engine.reachable():
            return POLL_S
        headers = {"Accept-Encoding": "identity", "User-Agent": "saltroute"}
        if replica.credential is not None:
            headers["Authorization"] = f"Bearer {replica.credential}"
        async with asyncio.timeout(ANSWER_S), self._plane.session.post(f"{replica.url}{path}", headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                self._plane.residency.add(self.target, "no_events", time.monotonic())
                self._count("refused")
                return ABSENT_S if 300 <= answer.status < 500 else POLL_S
            body = await self._body(answer)
        now_s = time.monotonic()
        self._plane.residency.drop(self.target, "no_events", "stale", now_s=now_s)
        if body is None:
            self._begin_anew(now_s, "gap")  # drained all the same
            return POLL_S
        self._count("polled")
        self._reading = kv_events_trtllm.decode(body, self._size)
        self._read.clear()
        self._feed.pump.wake(self)
        await self._read.wait()
        self._account.set(0)
        return POLL_S

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes | None:
        """The answer's body; None where it is more than is read, or more than may wait."""
        parts: list[bytes] = []
        size = 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > MAX_ANSWER_BYTES or not self._account.fits(size):
                self._count("too_large")
                self._account.set(0)
                return None
            self._account.set(size)
            parts.append(part)
        return b"".join(parts)

    def step(self) -> bool:
        """Read one event, or apply one piece; True if there may be more. Called by the pump."""
        try:
            if not self._closed and (self._todo or self._next()):
                if self._todo:
                    self._do(self._todo.popleft())
                return True
        except EventError:
            self._count("undecodable")
            self._plane.residency.add(self.target, "malformed", time.monotonic())
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not stop the pump; the type alone is named: a text may quote an event
            log.error("an engine's events could not be read: %s", type(error).__name__)  # noqa: TRY400 - nor the traceback
            self._count("mistake")
            self._plane.residency.add(self.target, "malformed", time.monotonic())
        self._reading = None
        self._read.set()
        return False

    def _next(self) -> bool:
        """Take the next event of the answer; False at its end."""
        event = None if self._reading is None else next(self._reading, None)
        if event is None:
            return False
        if event.batch.rank:
            self._several = True  # ranks share one address here, and the engine picks: its blocks cannot be told apart
            self._plane.residency.add(self.target, "unsupported", time.monotonic())
            self._count("other_rank")
            return True
        self._act(self.tracker.live(event.seq, event.batch, time.monotonic()))
        return True

    def _act(self, actions: list[Action[Batch]]) -> None:
        for action in actions:
            if isinstance(action, Restarted):
                self._todo.clear()
                self._restarted(action.generation)
            elif isinstance(action, Apply):
                self._todo.extend(Apply(action.seq, piece, action.generation) for piece in kv_pieces.cut(action.batch, PIECE_BLOCKS))
            else:
                self._todo.append(action)

    def _do(self, work: Action[Batch]) -> None:
        book, now_s = self._plane.residency, time.monotonic()
        if isinstance(work, Apply):
            self._apply(work, now_s)
        elif isinstance(work, Gap):
            self._count("gap")
            self._lost = True
            if work.first == 0:
                book.add(self.target, "late_join", now_s)
            else:
                self._begin_anew(now_s, "gap")
        else:
            book.drop(self.target, "subscribing", "restart", *(() if self._lost else INCOMPLETE), now_s=now_s)

    def _apply(self, work: Apply[Batch], now_s: float) -> None:
        book = self._plane.residency
        self._emptied = False
        applied = self._plane.events.apply(self.target, work.batch, now_s, generation=work.generation)
        self.engine.evicted_blocks += applied.removed
        if applied.cleared:
            self._lost = False
            book.drop(self.target, *INCOMPLETE, now_s=now_s)
        if applied.unusable is not None:
            book.add(self.target, UNUSABLE[applied.unusable], now_s)
        if not self._several and any(isinstance(event, Stored) and (salt_of(event) or "").startswith(SALT_PREFIX) for event in work.batch.events):
            book.drop(self.target, "unsupported", now_s=now_s)

    def _restarted(self, generation: int) -> None:
        now_s = time.monotonic()
        self._count("restart")
        self._lost = False
        self._size = BlockSize(self._size.tokens)
        self._plane.events.set_generation(self.target, generation, now_s)
        self._plane.index.forget(self.engine.url)
        self._plane.residency.restarted(self.target, now_s)
        self._plane.residency.add(self.target, "unsupported", now_s)

    def _begin_anew(self, now_s: float, reason: Reason) -> None:
        """What was known may be wrong: forget it and learn from what comes."""
        self._count("forgotten")
        self._plane.events.clear(self.target)
        self._emptied = self._lost = True
        self._plane.residency.add(self.target, reason, now_s)
        self._plane.residency.drop(self.target, "malformed", now_s=now_s)

    # -- what the feed asks of a subscription ---------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """What stood against the events for too long empties the target."""
        if self._plane.residency.overdue(self.target, now_s) and not self._emptied:
            self._begin_anew(now_s, "relearning")

    def look(self, sizes: Sizes, *, over_budget: bool, now_s: float) -> None:
        """As :meth:`Subscription.look`."""
        look(self._plane, self.engine, self.target, sizes, over_budget=over_budget, now_s=now_s)

    def relearn(self) -> None:
        """Answers contradict what the events promise, and nothing can be asked for again."""
        self._count("relearn")
        self._plane.events.use_set_semantics(self.target)

    def check_start(self, now_s: float) -> None:
        """Tell the tracker which process it is, once its metrics say so."""
        started_at = self.engine.started_at
        if started_at is not None and started_at != self._started_at:
            self._started_at = started_at
            self._act(self.tracker.started(started_at, now_s))

    def close(self) -> asyncio.Task[None]:
        """The engine left the configuration: nothing of it is applied from now on."""
        self._closed = True
        self._todo.clear()
        self._feed.pump.drop(self)
        self._task.cancel()
        self._account.close()
        return self._task

    def _count(self, kind: str) -> None:
        self._plane.metrics.kv_messages.labels(kind=kind).inc()
