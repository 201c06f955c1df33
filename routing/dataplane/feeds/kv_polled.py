"""KV events of an engine that publishes none and is asked for them: TensorRT-LLM's ``POST /kv_cache_events``, every ``POLL_S``.

An answer drains the engine's buffer: what it held is given once, to whoever asked. So there is no replay, a lost answer is a gap, and two routers,
or a router and anything else that asks, take the events from one another: each then sees gaps. Until an event shows a salt of ours the state is
``history`` with the reason ``unsupported``: versions that show none would make every engine look empty.

Asked through the same guarded session as everything else. From specification, unproven on a live engine.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import aiohttp

from routing.core import kv_events_trtllm
from routing.core.byte_budget import Account
from routing.core.engines import ENGINES
from routing.core.kv_events import SALT_PREFIX, Batch, EventError, Stored, salt_of
from routing.core.kv_events_trtllm import MAX_ANSWER_BYTES, BlockSize, Numbered
from routing.core.sequence import Action, Apply, Gap, Restarted, Tracker
from routing.dataplane.engine import Engine
from routing.dataplane.feeds.kv_followed import Followed
from routing.dataplane.feeds.kv_sources import Source
from routing.dataplane.state import Plane

if TYPE_CHECKING:
    from routing.dataplane.feeds.kv import KvFeed

POLL_S = 0.25
ANSWER_S = 5.0  # versions before 1.2 wait two seconds for an event
ABSENT_S = 60.0  # until an engine that has no such path is asked again


class PolledSubscription(Followed[Batch]):
    """Asks, applies in pieces, and asks again when all is applied."""

    def __init__(self, plane: Plane, feed: KvFeed, engine: Engine, source: Source, account: Account) -> None:
        super().__init__(plane, feed, engine, source, account, tracker=Tracker(can_replay=False))
        self._size = BlockSize()
        self._several = False  # ranks
        self._reading: Iterator[Numbered] | None = None
        self._todo: deque[Action[Batch]] = deque()
        self._read = asyncio.Event()  # all of the last answer is applied
        plane.residency.add(self.target, "unsupported", time.monotonic())
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
            except Exception as error:  # noqa: BLE001 - a mistake of ours must not end the polling
                self._mistaken("asked for", error)
            finally:  # also of an answer that broke off
                self._account.set(0)
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
        """As :meth:`Followed.step`: one event is read, or one piece applied."""
        try:
            if not self._closed and (self._todo or self._next()):
                if self._todo:
                    self._do(self._todo.popleft())
                return True
        except EventError:
            self._count("undecodable")
            self._malformed(time.monotonic())
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not stop the pump
            self._mistaken("read", error)
            self._malformed(time.monotonic())
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
                if action.cause == "start_time":  # otherwise the numbers told it too
                    self._size = BlockSize()
                self._clear_todo()
                self._restarted(action.generation, time.monotonic())
            elif isinstance(action, Apply):
                self._todo.extend(Apply(action.seq, piece, action.generation) for piece in self._cut(action.batch))
            else:
                self._todo.append(action)

    def _clear_todo(self) -> None:
        self._todo.clear()

    def _do(self, work: Action[Batch]) -> None:
        now_s = time.monotonic()
        if isinstance(work, Apply):
            self._applied(work.batch, work.generation, now_s)
            if not self._several and any(isinstance(one, Stored) and (salt_of(one) or "").startswith(SALT_PREFIX) for one in work.batch.events):
                self._plane.residency.drop(self.target, "unsupported", now_s=now_s)
        elif isinstance(work, Gap):
            self._gap(work, now_s)
        else:
            self._caught_up(now_s)

    def _restarted(self, generation: int, now_s: float) -> None:
        super()._restarted(generation, now_s)
        self._plane.residency.add(self.target, "unsupported", now_s)

    def tick(self, now_s: float) -> None:
        """As :meth:`Followed.tick`."""
        if self._plane.residency.overdue(self.target, now_s) and not self._emptied:
            self._begin_anew(now_s)

    def relearn(self) -> None:
        """As :meth:`Followed.relearn`; nothing can be asked for again."""
        self._count("relearn")
        self._plane.events.use_set_semantics(self.target)
