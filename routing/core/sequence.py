"""Numbered batches of one event source, put in order: what to apply, what to ask for again, what is lost.

The publisher numbers its messages from 0 and drops some without a word when a reader is slow; a second socket replays what its buffer still holds. A
tracker takes what arrives on both and answers with actions, in order. It keeps live batches while a replay is under way, so that whoever applies them
sees every number once and in order. It does no I/O and knows no time but the ``now_s`` (monotonic) it is given.

A number says nothing of the process that gave it. So every replay is asked for from the last batch that was applied: where another one, or none,
comes under that number, another process answers. Without a replay socket only a start time read since the connection, or an absence too short for
any engine to start in, says that the numbers are still the same process's; otherwise what was applied before is given up as after a gap.

Traps it knows: a subscriber that joins late; a replay that begins later than asked, because the buffer was shorter; one that lost messages or its end
marker to a high-water mark; live messages that overlap a replay; a restart that begins again at 0, or that no number shows; messages of a process
that is gone.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

REPLAY_DEADLINE_S = 5.0  # without progress
MAX_ATTEMPTS = 3  # replays in a row before a gap counts as lost
MAX_HELD = 20_000  # live batches kept while a replay is under way
MAX_HELD_BYTES = 64 * 1024 * 1024
REST_S = 60.0  # without another replay, after one that was more than may be
MAX_CUTS = 16  # times that one replay is gone on with after it was cut off
SAME_RESTART_S = 60.0  # a new start time this soon after numbers went backwards tells of the same restart
START_TOLERANCE_S = 1.0
BLIP_S = 5.0  # away for less than that, nobody has started anew: an engine loads its model first

GapCause = Literal["truncated", "replay_lost", "no_replay", "overflow"]
RestartCause = Literal["sequence", "start_time", "replay"]


@dataclass(frozen=True, slots=True)
class Apply(Generic[T]):
    """Apply this batch now."""

    seq: int
    batch: T
    generation: int


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask for everything from ``first`` on, under the name ``request``. What earlier requests still bring is ignored.

    ``first`` is the last batch that was applied, if there is one: who has another under that number is another process.
    """

    first: int
    request: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The batches ``first`` to ``last`` (inclusive; None: nobody knows how many, if any) will never come.

    From number 0 on, what is known of the source is incomplete; later, removals may be missing too, so what is known may be wrong.
    """

    first: int
    last: int | None
    cause: GapCause


@dataclass(frozen=True, slots=True)
class Restarted:
    """Another process publishes now: forget everything of the source. Later batches belong to ``generation``."""

    generation: int
    cause: RestartCause


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything up to ``seq`` (-1: the source never sent anything) was applied or reported lost, and no replay is under way."""

    seq: int


Action = Apply[T] | AskReplay | Gap | Restarted | CaughtUp


class Tracker(Generic[T]):
    """One source. ``generation`` begins where the caller says and grows by one with each restart; ``next_seq`` is the first number not applied yet.

    ``can_replay``: whether the source has a replay socket; without one every gap is lost at once. Not thread-safe.
    """

    def __init__(self, *, generation: int = 0, can_replay: bool = True, deadline_s: float = REPLAY_DEADLINE_S) -> None:
        self.generation = generation
        self.next_seq = 0
        self.duplicates = 0  # batches that came twice: a replay overlaps live ones
        self.strays = 0  # batches of a request that is over
        self._can_replay = can_replay
        self._deadline_s = deadline_s
        self._started_s: float | None = None
        self._restarted_s: float | None = None  # when numbers or a replay showed a restart, on this connection
        self._away_since_s: float | None = None
        self._vouched = False  # the start time was read on this connection, and is the one of before
        self._proved = True  # whoever is asked or listened to is known to have sent what was applied
        self._mark = 0  # of the batch before ``next_seq``
        self._last_live = -1
        self._behind = True
        self._held: deque[tuple[int, T, int]] = deque()
        self._held_bytes = 0
        self._requests = 0
        self._replaying = False
        self._brought = False  # the request under way has brought a batch
        self._attempts = 0
        self._cuts = 0
        self._asked_from = 0
        self._rests_until_s = -math.inf
        self._progress_s = 0.0

    @property
    def replaying(self) -> bool:
        return self._replaying

    @property
    def behind(self) -> bool:
        """Something may have been sent that was neither applied nor reported lost; a :class:`CaughtUp` will say when that is over."""
        return self._behind

    @property
    def held(self) -> int:
        """Live batches that wait for a replay."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """What keeping them costs."""
        return self._held_bytes

    def subscribed(self, now_s: float) -> list[Action[T]]:
        """The live socket is connected, and :meth:`started` was told what could be read since. A source may be silent for long, so what it sent
        before is asked for at once."""
        away_since_s, self._away_since_s = self._away_since_s, None
        if self._replaying or not self._behind:
            return []
        actions: list[Action[T]] = []
        if self._may_ask(now_s):
            actions.append(self._ask(now_s))
        elif self._can_replay:
            self._give_up(actions, now_s, "replay_lost")
        elif self._vouched or away_since_s is None or now_s < away_since_s + BLIP_S:
            self._proved = True  # whether something was missed, the next number shows
        elif not self._proved:
            self._give_up(actions, now_s, "no_replay")
        return actions

    def disconnected(self, now_s: float) -> None:
        """The live socket's connection ended: what is sent until the next :meth:`subscribed` is missed. A replay under way is over, and what waits
        for it is brought by the next one. Safe to repeat."""
        self._replaying = False
        self._requests += 1
        self._attempts = 0
        self._behind = True
        self._clear_held()
        self._proved = self.next_seq == 0
        self._vouched = False
        self._restarted_s = None  # a start time that changes from now on may be another restart's
        if self._away_since_s is None:
            self._away_since_s = now_s

    def anew(self) -> None:
        """What was applied counts no longer: the next generation, of whichever process, begins with whatever the source has."""
        self.generation += 1
        self.next_seq = 0
        self._last_live = -1
        self._clear_held()
        self._replaying = False
        self._requests += 1
        self._attempts = 0
        self._behind = self._proved = True

    def live(self, seq: int, batch: T, now_s: float, *, cost_bytes: int = 0) -> list[Action[T]]:
        """A batch arrived on the live socket. ``cost_bytes`` is what keeping it costs."""
        actions: list[Action[T]] = []
        if seq <= self._last_live:
            actions.append(self._restart("sequence"))
            self._restarted_s = now_s
        self._last_live = seq
        self._held.append((seq, batch, cost_bytes))
        self._held_bytes += cost_bytes
        if not self._replaying:
            self._drain(actions, now_s)
        elif len(self._held) > MAX_HELD or self._held_bytes > MAX_HELD_BYTES:
            self._give_up(actions, now_s, "overflow")
        return actions

    def relearn(self, now_s: float) -> list[Action[T]]:
        """What was learned is in doubt: ask for all that the source still buffers. Whoever applies it gets numbers again that it had before."""
        if self._replaying or self._behind or not self._may_ask(now_s):
            return []
        self.next_seq = 0
        self._proved = True
        return [self._ask(now_s)]

    def replayed(self, request: int, seq: int, batch: T, now_s: float) -> list[Action[T]]:
        """A batch arrived in answer to ``request``."""
        if not self._replaying or request != self._requests:
            self.strays += 1
            return []
        self._progress_s = now_s
        first, self._brought = not self._brought, True
        if not self._proved and self.next_seq - 1 <= seq <= self.next_seq:
            if seq == self.next_seq or hash(batch) != self._mark:
                return self._another_process(now_s)
            self._proved = True
        if seq < self.next_seq:
            self.duplicates += 1
            return []
        actions: list[Action[T]] = []
        if seq > self.next_seq:
            # The buffer no longer has what the beginning lacks; a hole further on was lost on the way, and may come another time.
            if not first and self._attempts < MAX_ATTEMPTS:
                return [self._ask(now_s)]
            actions.append(self._lose(seq - 1, "truncated" if first else "replay_lost"))
        actions.append(self._apply(seq, batch))
        return actions

    def replay_end(self, request: int, now_s: float) -> list[Action[T]]:
        """The end marker of ``request`` arrived."""
        if not self._replaying or request != self._requests:
            return []
        if not self._proved:
            return self._another_process(now_s)
        self._replaying = False
        actions: list[Action[T]] = []
        self._drain(actions, now_s)
        return actions

    def replay_failed(self, request: int, now_s: float) -> list[Action[T]]:
        """``request`` could not be sent, or its connection broke."""
        if not self._replaying or request != self._requests:
            return []
        return self._again(now_s)

    def replay_cut(self, request: int, now_s: float) -> list[Action[T]]:
        """The answer to ``request`` was cut off here, since more must not wait; what came before was given. If that brought us on, the rest is asked
        for, a bounded number of times."""
        if not self._replaying or request != self._requests:
            return []
        if self.next_seq == self._asked_from or self._cuts >= MAX_CUTS:
            return self.too_much(now_s)
        self._cuts += 1
        self._attempts = 0
        return [self._ask(now_s)]

    def too_much(self, now_s: float) -> list[Action[T]]:
        """The replay under way is more than may be, in all or at once: it is given up, and none is asked for during ``REST_S``."""
        if not self._replaying:
            return []
        self._rests_until_s = now_s + REST_S
        actions: list[Action[T]] = []
        self._give_up(actions, now_s, "overflow")
        return actions

    def busy(self, now_s: float) -> None:
        """What a replay brought is still being applied: it is not the source that makes no progress."""
        self._progress_s = max(self._progress_s, now_s)

    def tick(self, now_s: float) -> list[Action[T]]:
        """Time passed. A replay that stopped without its end is asked for again, a few times; then what it owes is lost."""
        if not self._replaying or now_s < self._progress_s + self._deadline_s:
            return []
        return self._again(now_s)

    def started(self, start_s: float, now_s: float) -> list[Action[T]]:
        """The process's start time (unix seconds) as its metrics tell it now. A changed one is a restart, whatever the numbers say."""
        before, self._started_s = self._started_s, start_s
        self._vouched = before is not None and abs(start_s - before) <= START_TOLERANCE_S
        if before is None or self._vouched:
            return []
        noticed_s, self._restarted_s = self._restarted_s, None
        if noticed_s is not None and now_s < noticed_s + SAME_RESTART_S:
            return []
        actions: list[Action[T]] = [self._restart("start_time")]
        if self._may_ask(now_s):
            actions.append(self._ask(now_s))
        return actions

    def _apply(self, seq: int, batch: T) -> Apply[T]:
        self.next_seq = seq + 1
        if self._can_replay:
            self._mark = hash(batch)
        return Apply(seq, batch, self.generation)

    def _lose(self, last: int | None, cause: GapCause) -> Gap:
        gap = Gap(self.next_seq, last, cause)
        if last is not None:
            self.next_seq = last + 1
        self._proved = True  # nothing counts any longer that another process may have sent
        return gap

    def _another_process(self, now_s: float) -> list[Action[T]]:
        """Who answers has not sent what was applied last."""
        self._restarted_s = now_s
        return [self._restart("replay"), self._ask(now_s)]

    def _may_ask(self, now_s: float) -> bool:
        return self._can_replay and now_s >= self._rests_until_s

    def _ask(self, now_s: float) -> AskReplay:
        self._requests += 1
        self._attempts += 1
        self._replaying = self._behind = True
        self._brought = False
        self._asked_from = self.next_seq
        self._proved = self.next_seq == 0
        self._progress_s = now_s
        return AskReplay(max(0, self.next_seq - 1), self._requests)

    def _again(self, now_s: float) -> list[Action[T]]:
        if self._attempts < MAX_ATTEMPTS:
            return [self._ask(now_s)]
        actions: list[Action[T]] = []
        self._give_up(actions, now_s, "replay_lost")
        return actions

    def _give_up(self, actions: list[Action[T]], now_s: float, cause: GapCause) -> None:
        """The replay under way failed for good. Live batches that wait show how much is lost; without one nobody knows."""
        self._replaying = False
        self._requests += 1
        self._attempts = MAX_ATTEMPTS
        if not self._held:
            actions.append(self._lose(None, cause))
        self._drain(actions, now_s, cause)

    def _drain(self, actions: list[Action[T]], now_s: float, cause: GapCause = "replay_lost") -> None:
        """Apply what waits, up to the next hole that a replay may fill."""
        while self._held:
            seq, batch, cost_bytes = self._held[0]
            if seq > self.next_seq or not self._proved:
                if self._may_ask(now_s) and self._attempts < MAX_ATTEMPTS:
                    actions.append(self._ask(now_s))
                    return
                actions.append(self._lose(seq - 1 if seq > self.next_seq else None, cause if self._can_replay else "no_replay"))
            self._held.popleft()
            self._held_bytes -= cost_bytes
            if seq < self.next_seq:
                self.duplicates += 1
            else:
                actions.append(self._apply(seq, batch))
        self._attempts = self._cuts = 0
        if self._behind:
            self._behind = False
            actions.append(CaughtUp(self.next_seq - 1))

    def _restart(self, cause: RestartCause) -> Restarted:
        self.anew()
        return Restarted(self.generation, cause)

    def _clear_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0
