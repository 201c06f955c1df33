"""What is done with the events of one rank of one engine, however they come: applied a piece at a time, forgotten where they may be wrong.

Policy: nothing of an event, and no address of a source, is logged or reported: events hold token ids and salts in clear. A gap that nothing fills
empties the target, since removals may be among what was lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from routing.core import kv_pieces
from routing.core.byte_budget import Account
from routing.core.event_index import Sizes
from routing.core.event_tables import Unusable
from routing.core.kv_events import Batch
from routing.core.residency_state import Reason
from routing.core.sequence import Action, Gap, Tracker
from routing.dataplane.engine import Engine
from routing.dataplane.feeds.kv_sources import Source
from routing.dataplane.ranks import Rank
from routing.dataplane.state import Plane

if TYPE_CHECKING:
    from routing.dataplane.feeds.kv import KvFeed

PIECE_BLOCKS = 128  # applied in one go: about a millisecond
KNOWN_SHARE = 0.95  # of a cache: so much seen since a late start, and what lay there before is gone
UNUSABLE: dict[Unusable, Reason] = {
    "unknown_spec_kind": "unknown_spec_kind",
    "block_size": "block_size",
    "hash_conflict": "unsupported",
    "too_many_groups": "unsupported",
}
INCOMPLETE: tuple[Reason, ...] = ("late_join", "relearning", "gap")  # over once all that the engine holds is known
log = logging.getLogger("saltroute.events")
Held = TypeVar("Held")


class Followed(ABC, Generic[Held]):
    """One rank of one engine. A subclass gets the events and puts them in order; ``tracker`` holds what it got until that is done."""

    _task: asyncio.Task[None]  # gets the events, for ever

    def __init__(self, plane: Plane, feed: KvFeed, engine: Engine, source: Source, account: Account, *, tracker: Tracker[Held]) -> None:
        self._plane = plane
        self._feed = feed
        self._account = account
        self.engine = engine
        self.source = source
        self.target = (engine.url, source.rank)
        self.tracker = tracker
        self._emptied = False  # since the last batch
        self._lost = False  # something of this generation is lost for good
        self._started_at: float | None = None
        self._closed = False
        now_s = time.monotonic()
        plane.events.set_generation(self.target, tracker.generation, now_s)
        plane.residency.begin(self.target, now_s)

    @abstractmethod
    def step(self) -> bool:
        """Do one piece of work, or take one message; True if there may be more. Called by the pump."""

    @abstractmethod
    def tick(self, now_s: float) -> None:
        """Time passed: what stood against the events for too long empties the target."""

    @abstractmethod
    def relearn(self) -> None:
        """Answers contradict what the events promise."""

    @abstractmethod
    def _act(self, actions: list[Action[Held]]) -> None:
        """Do what the tracker says."""

    @abstractmethod
    def _clear_todo(self) -> None:
        """Let go of what is not applied yet."""

    def look(self, sizes: Sizes, *, over_budget: bool, now_s: float) -> None:
        """Set or drop the conditions that depend on how much is held, and on what answers taught."""
        book, capacity_tokens = self._plane.residency, self.engine.capacity_tokens
        held = sizes.credited + sizes.parked + sizes.orphans + sizes.ignored
        block_tokens = max(self._plane.events.block_sizes(self.target), default=0)
        if capacity_tokens and block_tokens and held * block_tokens >= KNOWN_SHARE * capacity_tokens:
            book.drop(self.target, *INCOMPLETE, now_s=now_s)
        if over_budget and sizes.credited:
            book.add(self.target, "budget", now_s)
        else:
            book.drop(self.target, "budget", now_s=now_s)
        if self._plane.trust.verdict(self._judged_at().target) in ("demote", "flag"):
            book.add(self.target, "kappa", now_s)
        else:
            book.drop(self.target, "kappa", now_s=now_s)

    def check_start(self, now_s: float) -> None:
        """Tell the tracker which process publishes, each time that its metrics said so."""
        started_at = self._started_at = self.engine.started_at
        if started_at is not None:
            self._act(self.tracker.started(started_at, now_s))

    def close(self) -> asyncio.Task[None]:
        """The engine left the configuration, or its sources changed: from now on nothing of it is applied, whatever is still queued. Returns the task
        that closes what is open."""
        self._closed = True
        self._clear_todo()
        self._feed.pump.drop(self)
        self._task.cancel()
        self._account.close()
        return self._task

    # -- what the tracker says -----------------------------------------------------------------------------------------------------

    def _applied(self, piece: Batch, generation: int, now_s: float) -> None:
        """Apply a piece of a batch."""
        self._emptied = False
        applied = self._plane.events.apply(self.target, piece, now_s, generation=generation)
        if (engine := self._plane.engines.get(self.target[0])) is not None:
            engine.evicted_blocks += applied.removed
        if applied.cleared:  # the cache is empty, and that is all there is to know
            self._lost = False
            self._plane.residency.drop(self.target, *INCOMPLETE, now_s=now_s)
        if applied.unusable is not None:
            self._plane.residency.add(self.target, UNUSABLE[applied.unusable], now_s)

    def _gap(self, gap: Gap, now_s: float) -> None:
        """Something is lost for good."""
        self._count("gap")
        self._lost = True
        if gap.first == 0:
            self._plane.residency.add(self.target, "late_join", now_s)
        else:
            self._begin_anew(now_s, "gap")

    def _caught_up(self, now_s: float) -> None:
        """All that was sent is applied."""
        whole: tuple[Reason, ...] = () if self._lost else INCOMPLETE
        self._plane.residency.drop(self.target, "subscribing", "restart", "replay", "stale", *whole, now_s=now_s)

    def _restarted(self, generation: int, now_s: float) -> None:
        """Another process: what the last one held is gone with it."""
        self._count("restart")
        self._lost = False
        self._plane.events.set_generation(self.target, generation, now_s)
        self._plane.index.forget(self._judged_at().key)  # a scrape may not have seen it yet
        self._plane.residency.restarted(self.target, now_s)

    def _begin_anew(self, now_s: float, reason: Reason = "relearning") -> None:
        """What was known may be wrong: forget it and learn from what comes."""
        self._count("forgotten")
        self._plane.events.clear(self.target)
        self._emptied = self._lost = True
        self._plane.residency.add(self.target, reason, now_s)
        self._plane.residency.drop(self.target, "malformed", now_s=now_s)

    # -- small things --------------------------------------------------------------------------------------------------------------

    def _cut(self, batch: Batch) -> list[Batch]:
        """Pieces of a batch that are quick to apply."""
        return kv_pieces.cut(batch, PIECE_BLOCKS)

    def _judged_at(self) -> Engine | Rank:
        """Where answers that hit what is followed here are counted: at that rank, where requests name it."""
        return next((rank for rank in self.engine.ranks if rank.target == self.target), self.engine)

    def _malformed(self, now_s: float) -> None:
        self._plane.residency.add(self.target, "malformed", now_s)

    def _mistaken(self, what: str, error: Exception) -> None:
        """A mistake of ours must end neither what is followed nor the pump. The type alone is named: a text may quote an event."""
        log.error("an engine's events could not be %s: %s", what, type(error).__name__)
        self._count("mistake")

    def _count(self, kind: str) -> None:
        self._plane.metrics.kv_messages.labels(kind=kind).inc()
