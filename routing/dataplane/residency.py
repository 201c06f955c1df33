"""The book of residency: how far events may be trusted for each target (one data-parallel rank of one engine), and every change of that, told.

Where no prompt comes to an engine whose tokens are known, its events decide nothing, and it is told as ``history`` for that reason
(:meth:`Book.set_lacking`). What is believed of a prompt whose tokens are known all the same, such as one given as token ids, rests on the events
alone.

A change of state is a log line, a count, and an entry of a bounded list in the router's report, which the control plane shows.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from routing.core import residency_state
from routing.core.residency_state import ABOUT_TOKENS, Reason, Residency, State, TokenReason, Transition

MAX_CHANGES = 100  # kept for the report, the newest
TOLD = 10  # changes of one target that are told in TOLD_S; more are counted alone: an engine could restart in every message
TOLD_S = 60.0
# From least to most useful: an engine of several ranks is as good as its worst, where its own balancer picks the rank.
_WORST_FIRST: tuple[State, ...] = ("history", "degraded", "warming", "exact")
_LOSSES: frozenset[Reason] = frozenset({"relearning", "gap", "malformed"})
Target = tuple[str, int]
log = logging.getLogger("saltroute.residency")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a target's state; ``at`` is unix seconds."""

    target: Target
    before: State
    after: State
    reason: Reason
    at: float


@dataclass(frozen=True, slots=True)
class Shown:
    """What is said of one engine. ``since_s`` is monotonic; ``targets`` are its ranks whose events are read."""

    state: State
    reason: Reason
    since_s: float | None
    targets: tuple[Target, ...] = ()


NO_EVENTS = Shown(state="history", reason="no_events", since_s=None)


@dataclass(slots=True)
class Book:
    """States by engine and rank. ``now_s`` is monotonic throughout."""

    ranks: dict[str, dict[int, Residency]] = field(default_factory=dict)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    counts: Counter[tuple[State, State]] = field(default_factory=Counter)  # of changes, by the states before and after
    since: dict[Target, float] = field(default_factory=dict)  # when each target's state began, in unix seconds: for people, and for who compares
    losses: Counter[str] = field(default_factory=Counter)  # times that messages of an engine were lost or unreadable, by its URL
    untold: int = 0  # changes that are counted alone
    lacking: dict[str, TokenReason] = field(default_factory=dict)  # engines, by URL, of whose prompts no tokens are known here, and why
    _told: dict[Target, tuple[float, int]] = field(default_factory=dict)  # since when, unix seconds, and how many
    # What :meth:`of` and :meth:`told` found, until the next change: each decision asks for every engine.
    _shown: dict[str, Shown] = field(default_factory=dict)
    _all_told: dict[str, Shown] = field(default_factory=dict)

    def begin(self, target: Target, now_s: float) -> None:
        """Events of this target are read from now on."""
        begun = residency_state.begin(now_s)
        if (lack := self.lacking.get(target[0])) is not None:
            begun, _ = residency_state.add(begun, lack, now_s)
        self.ranks.setdefault(target[0], {})[target[1]] = begun
        self.since[target] = time.time()
        self._forget_shown(target[0])
        self._tell(target, Transition("history", begun.state, begun.reason, now_s))

    def end(self, target: Target) -> None:
        """Its events are read no longer."""
        held = self.ranks.get(target[0], {})
        held.pop(target[1], None)
        self.since.pop(target, None)
        self._told.pop(target, None)
        self._forget_shown(target[0])
        if not held:
            self.ranks.pop(target[0], None)
            self.losses.pop(target[0], None)

    def add(self, target: Target, reason: Reason, now_s: float) -> None:
        """A condition arose; nothing changes for a target that is not read."""
        if reason in _LOSSES and not self.has(target, reason):
            self.losses[target[0]] += 1
        self._put(target, residency_state.add(known, reason, now_s) if (known := self._of(target)) else None)

    def drop(self, target: Target, *reasons: Reason, now_s: float) -> None:
        """Conditions passed."""
        self._put(target, residency_state.drop(known, *reasons, at_s=now_s) if (known := self._of(target)) else None)

    def restarted(self, target: Target, now_s: float) -> None:
        """Another process runs there."""
        self._put(target, residency_state.restarted(known, now_s) if (known := self._of(target)) else None)

    def set_lacking(self, lacking: Mapping[str, TokenReason], now_s: float) -> None:
        """To which engines no prompt comes whose tokens are known here, and why. Of all others that is over."""
        before, self.lacking = self.lacking, dict(lacking)
        for url in [url for url in before.keys() | lacking.keys() if before.get(url) != lacking.get(url)]:
            reason = lacking.get(url)
            for rank in self.ranks.get(url, {}):
                if reason is not None:
                    self.add((url, rank), reason, now_s)
                self.drop((url, rank), *[other for other in ABOUT_TOKENS if other != reason], now_s=now_s)

    def overdue(self, target: Target, now_s: float) -> bool:
        """Whether what was known of the target must be forgotten."""
        known = self._of(target)
        return known is not None and residency_state.overdue(known, now_s)

    def has(self, target: Target, reason: Reason) -> bool:
        known = self._of(target)
        return known is not None and known.has(reason)

    def of(self, url: str, rank: int | None = None) -> Shown:
        """The state of the engine's events, for prompts whose tokens are known: that of its worst rank, or of one, where requests name it."""
        return self._read(url, rank, self._shown, events_alone=True) if url in self.ranks else NO_EVENTS

    def told(self, url: str, rank: int | None = None) -> Shown:
        """As :meth:`of`, of events and tokens together: what people are told, and what holds for prompts whose tokens are not known."""
        return self._read(url, rank, self._all_told, events_alone=False) if url in self.ranks else NO_EVENTS

    def _read(self, url: str, rank: int | None, kept: dict[str, Shown], *, events_alone: bool) -> Shown:
        known = kept.get(url) if rank is None else None
        if known is not None:
            return known
        held = {number: one.of_events if events_alone else one for number, one in self.ranks.get(url, {}).items() if rank in (None, number)}
        if not held:
            return NO_EVENTS
        worst = held[_worst(held)]
        shown = Shown(worst.state, worst.reason, worst.since_s, tuple((url, number) for number in held))
        if rank is None:
            kept[url] = shown
        return shown

    def since_at(self, url: str) -> float | None:
        """When the state that is told of the engine, its worst rank's, began, in unix seconds; None without events."""
        held = self.ranks.get(url)
        return self.since.get((url, _worst(held))) if held else None

    def report(self) -> list[dict[str, object]]:
        """The newest changes, oldest first."""
        return [
            {"replica": one.target[0], "rank": one.target[1], "before": one.before, "after": one.after, "reason": one.reason, "at": one.at}
            for one in self.changes
        ]

    def _forget_shown(self, url: str) -> None:
        self._shown.pop(url, None)
        self._all_told.pop(url, None)

    def _of(self, target: Target) -> Residency | None:
        return self.ranks.get(target[0], {}).get(target[1])

    def _put(self, target: Target, after: tuple[Residency, Transition | None] | None) -> None:
        if after is None:
            return
        self.ranks[target[0]][target[1]] = after[0]
        self._forget_shown(target[0])
        if after[1] is not None:
            self._tell(target, after[1])

    def _tell(self, target: Target, change: Transition) -> None:
        if change.before == change.after:
            return  # another reason for the same state
        self.counts[change.before, change.after] += 1
        self.since[target] = now = time.time()
        if not self._may_tell(target, now):
            self.untold += 1
            return
        self.changes.append(Change(target=target, before=change.before, after=change.after, reason=change.reason, at=now))
        log.info("residency of %s rank %d: %s, was %s; reason: %s", target[0], target[1], change.after, change.before, change.reason)

    def _may_tell(self, target: Target, now: float) -> bool:
        since, told = self._told.get(target, (now, 0))
        if now - since > TOLD_S:
            since, told = now, 0
        self._told[target] = (since, told + 1)
        if told == TOLD:
            log.warning("residency of %s rank %d changes more than %d times in %.0f s; further changes are counted alone", *target, TOLD, TOLD_S)
        return told < TOLD


def _worst(held: Mapping[int, Residency]) -> int:
    """The rank whose events can be trusted least, the first of them."""
    return min(held, key=lambda rank: _WORST_FIRST.index(held[rank].state))
