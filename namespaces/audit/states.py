"""The isolation state of a replica, and what changes it. A pure function: who calls it, and who then tells the routers, is routing's affair.

    unverified --clean audit--> isolated --odd probe, 48 h without a clean audit--> suspect --clean audit--> isolated
    any of them --sharing confirmed--> quarantined --fix, then flush or restart, epochs raised, two clean audits 10 minutes apart--> isolated

An audit that merely could not be carried out (no answer, no control) proves nothing either way and changes nothing; time does. A raised alarm is
no event here: it raises an audit, and the audit speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    UNVERIFIED = "unverified"
    ISOLATED = "isolated"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


class Event(StrEnum):
    CLEAN = "clean"  # every expressible case passed
    SHARING = "sharing"  # seen, and seen again in independent probes
    ODD = "odd"  # something an honest engine does not show, not confirmed
    INCOMPLETE = "incomplete"  # no answers, or a control without a hit
    BUILD = "build"  # another build answers at this address
    REPAIRED = "repaired"  # fixed, flushed or restarted, epochs raised
    TICK = "tick"  # time passed


STALE_S = 48 * 3600.0
BETWEEN_CLEAN_S = 600.0


@dataclass(frozen=True, slots=True)
class Held:
    """What is remembered of a replica. Times are unix seconds."""

    state: State = State.UNVERIFIED
    since_s: float = 0.0
    reason: str = ""
    verified_s: float | None = None  # the last clean audit
    repaired_s: float | None = None  # since it was quarantined
    clean_s: float | None = None  # the first clean audit after the repair


def step(held: Held, event: Event, *, now_s: float, reason: str = "") -> Held:
    """The state after ``event``. ``reason`` is kept where the state changes; ``since_s`` is when it last did."""
    if event is Event.SHARING:
        return _enter(replace(held, repaired_s=None, clean_s=None), State.QUARANTINED, now_s, reason)
    if held.state is State.QUARANTINED:
        return _quarantined(held, event, now_s, reason)
    if event is Event.CLEAN:
        return _enter(replace(held, verified_s=now_s), State.ISOLATED, now_s, reason)
    if event is Event.BUILD:
        return _enter(replace(held, verified_s=None), State.UNVERIFIED, now_s, reason)
    if event is Event.ODD and held.state is State.ISOLATED:
        return _enter(held, State.SUSPECT, now_s, reason)
    if event in (Event.TICK, Event.INCOMPLETE) and held.state is State.ISOLATED and now_s - (held.verified_s or held.since_s) > STALE_S:
        return _enter(held, State.SUSPECT, now_s, "no clean audit for 48 hours")
    return held


def _quarantined(held: Held, event: Event, now_s: float, reason: str) -> Held:
    """Nothing but the whole way out leads out, and whatever is not clean starts it again."""
    if event is Event.REPAIRED:
        return replace(held, repaired_s=now_s, clean_s=None)
    if event in (Event.ODD, Event.BUILD):
        return replace(held, clean_s=None)
    if event is not Event.CLEAN or held.repaired_s is None:
        return held
    if held.clean_s is None:
        return replace(held, clean_s=now_s)
    if now_s - held.clean_s < BETWEEN_CLEAN_S:
        return held
    return _enter(replace(held, verified_s=now_s, repaired_s=None, clean_s=None), State.ISOLATED, now_s, reason)


def _enter(held: Held, state: State, now_s: float, reason: str) -> Held:
    return held if held.state is state else replace(held, state=state, since_s=now_s, reason=reason)
