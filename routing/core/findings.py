"""What reconciliation may find, and what becomes of a finding from run to run. Pure: time is an argument, rows are the caller's.

A finding is *watched* before it is *open*, for as long as its kind is patient: routers report every second and engines are asked which build they
are once a minute, so much of what differs for a moment is only late. It is *resolved* when it is not seen any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from routing.core.reach import UNREACHABLE_AFTER_S

Severity = Literal["info", "warning", "critical"]
Word = Literal["routers", "valkey", "database"]
Repair = Literal["publish", "republish", "release", "observe", "audit"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
MAX_REPAIRS = 3  # of one finding for one reason; then it is left to people
REPAIR_AGAIN_S = 300.0  # after the first; each later one waits twice as long


class State(StrEnum):
    WATCHING = "watching"
    OPEN = "open"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of contradiction. ``patience_s``: how long it is watched before it is open. ``linger_s`` is for events: how long one stays open after
    it was last seen."""

    title: str
    severity: Severity
    patience_s: float = 0.0
    linger_s: float = 0.0
    repair: Repair | None = None
    rests_on: Word = "routers"  # whose word: where it could not be read, the finding's absence says nothing


KINDS: Mapping[str, Kind] = {
    # snapshots and versions
    "snapshot_unpublished": Kind("Configuration is not published", "warning", patience_s=15.0, repair="publish", rests_on="valkey"),
    "snapshot_ahead": Kind("Routers were given a newer configuration than the database has", "critical", rests_on="valkey"),
    "snapshot_refused": Kind("A router refuses the configuration", "critical", patience_s=5.0, repair="republish"),
    "router_behind": Kind("A router runs an older configuration", "warning", patience_s=15.0),
    "artifact_missing": Kind("A router lacks a tokenizer or template", "warning", patience_s=30.0),
    # engines
    "replica_unseen": Kind("No router knows this replica", "warning", patience_s=30.0),
    "replica_unreachable": Kind("A replica cannot be reached", "critical", patience_s=UNREACHABLE_AFTER_S),
    "replica_reach_disputed": Kind("Some routers reach a replica, and others do not", "warning", patience_s=60.0),
    "model_not_served": Kind("The engine does not serve the endpoint's model", "critical", patience_s=20.0),
    "build_unnoticed": Kind("The engine is another build than was noted", "warning", patience_s=10.0, repair="observe"),
    "build_unaudited": Kind("Another build that no audit has tried", "warning", patience_s=60.0, repair="audit", rests_on="database"),
    "build_disputed": Kind("Routers see different builds at one address", "warning", patience_s=150.0),
    "block_size_changed": Kind("The block size changed", "warning", linger_s=3600.0),
    "block_size_disputed": Kind("Block sizes that should be the same are not", "warning", patience_s=150.0),
    "block_size_mixed": Kind("Replicas of one pool have different block sizes", "info", patience_s=60.0),
    "capacity_changed": Kind("The cache has another size", "info", linger_s=3600.0),
    "capacity_mixed": Kind("Replicas of one pool have caches of different sizes", "info", patience_s=60.0),
    # residency
    "residency_degraded": Kind("What a replica holds is not known exactly", "warning", patience_s=60.0),
    "parity_broken": Kind("Tokens are counted differently here and at the engine", "warning", patience_s=30.0),
    "parity_inexact": Kind("Prompts of a kind have tokens at the engine and none here", "warning", patience_s=30.0),
    "reuse_contradicted": Kind("Engines reuse less, or more, than was predicted", "warning", patience_s=60.0),
    # isolation
    "assignment_void": Kind("A namespace is assigned where everybody is served", "info", repair="release", rests_on="database"),
    "assignment_dead": Kind("A replica is kept for a namespace that cannot come again", "warning", rests_on="database"),
    "assignment_idle": Kind("A replica is kept for a namespace that nobody uses", "info", rests_on="database"),
    "alarm_unaudited": Kind("An alarm that no audit has answered", "warning", repair="audit", linger_s=600.0, rests_on="database"),
    "alarm_contradicted": Kind("Audits pass, and alarms go on", "critical", linger_s=3600.0, rests_on="database"),
    # the fleet: the platform's
    "no_router": Kind("No router reports", "critical", patience_s=15.0, rests_on="valkey"),
    "router_silent": Kind("A router has fallen silent", "warning", patience_s=10.0, rests_on="valkey"),
    "router_out_of_contact": Kind("A router serves an old configuration", "critical", patience_s=10.0),
    "ghost_engine": Kind("Routers know an engine that is registered nowhere", "warning", patience_s=60.0),
    "ghost_tenant": Kind("Routers know a tenant that does not exist", "critical", patience_s=60.0),
    "deleted_tenant_served": Kind("A router serves a tenant that was deleted", "critical", patience_s=15.0, repair="publish"),
}

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One contradiction. ``aspect`` tells apart several of one kind about one subject. ``mark`` is what stays the same while nothing moves: where it
    changes, watching begins anew, and what was tried to repair the old one does not count. Not ``repairable``: the kind's repair would not help, or
    not be safe, here. ``lasted_s``: for how long it has been the case, where those who see it know; its kind's patience is held against that then,
    and not against when a run saw it first."""

    kind: str
    subject_kind: str
    subject_id: str
    aspect: str = ""
    subject: str = ""
    explanation: str = ""
    mark: str = ""
    repairable: bool = True
    lasted_s: float | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        return self.kind, self.subject_kind, self.subject_id, self.aspect


@dataclass(frozen=True, slots=True)
class Held:
    """A finding as it is kept, unless it is resolved. Times are unix seconds."""

    state: State
    first_seen_s: float
    last_seen_s: float
    mark: str = ""
    repairs: int = 0  # tried for ``mark``
    repaired_s: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one finding. ``finding`` None: it was not seen this time; ``after`` None: it was only watched, and is forgotten."""

    key: Key
    finding: Finding | None
    after: Held | None
    repair: Repair | None = None


def settle(
    held: Mapping[Key, Held], found: Iterable[Finding], now_s: float, *, unread: Collection[Word] = (), repairs: int = 1000
) -> tuple[Step, ...]:
    """Hold what was found against what is kept, in order of keys. What rests on a word that was ``unread`` this time is left as it is.
    At most ``repairs`` are asked for; the rest comes up again.

    The same again, at the same time, changes nothing and repairs nothing. A run whose clock was ahead left times that are yet to come: they count as
    now, so that patience, lingering and waits between repairs are never longer than they are meant to be.
    """
    held = {key: _until(now_s, before) for key, before in held.items()}
    seen: dict[Key, Finding] = {}
    for finding in sorted(found):
        seen.setdefault(finding.key, finding)
    steps = []
    for key, finding in seen.items():
        step = _seen(finding, held.get(key), now_s, may_repair=repairs > 0)
        repairs -= step.repair is not None
        steps.append(step)
    for key, before in held.items():
        if key not in seen and _rests_on(key) not in unread:
            steps.append(_unseen(key, before, now_s))
    return tuple(sorted(steps, key=lambda step: step.key))


def _until(now_s: float, held: Held) -> Held:
    """As it is kept, without a time after now."""
    repaired_s = None if held.repaired_s is None else min(held.repaired_s, now_s)
    return replace(held, first_seen_s=min(held.first_seen_s, now_s), last_seen_s=min(held.last_seen_s, now_s), repaired_s=repaired_s)


def _rests_on(key: Key) -> Word | None:
    kind = KINDS.get(key[0])
    return None if kind is None else kind.rests_on


def _seen(finding: Finding, before: Held | None, now_s: float, *, may_repair: bool) -> Step:
    kind = KINDS[finding.kind]
    same = before is not None and before.mark == finding.mark
    was_open = before is not None and before.state is State.OPEN
    first_s = before.first_seen_s if before is not None and (same or was_open) else now_s
    lasted_s = now_s - first_s if finding.lasted_s is None else finding.lasted_s
    state = State.OPEN if was_open or lasted_s >= kind.patience_s else State.WATCHING
    after = Held(
        state=state,
        first_seen_s=first_s,
        last_seen_s=now_s,
        mark=finding.mark,
        repairs=before.repairs if before is not None and same else 0,
        repaired_s=before.repaired_s if before is not None and same else None,
    )
    wanted = kind.repair if may_repair and state is State.OPEN and finding.repairable and _may_repair(after, now_s) else None
    if wanted is not None:
        after = Held(after.state, first_s, now_s, after.mark, after.repairs + 1, now_s)
    return Step(key=finding.key, finding=finding, after=after, repair=wanted)


def _may_repair(held: Held, now_s: float) -> bool:
    if held.repairs >= MAX_REPAIRS:
        return False
    return held.repaired_s is None or now_s - held.repaired_s >= REPAIR_AGAIN_S * 2 ** (held.repairs - 1)


def _unseen(key: Key, before: Held, now_s: float) -> Step:
    if before.state is State.WATCHING:
        return Step(key=key, finding=None, after=None)
    kind = KINDS.get(key[0])
    if kind is not None and now_s - before.last_seen_s < kind.linger_s:
        return Step(key=key, finding=None, after=before)
    after = Held(State.RESOLVED, before.first_seen_s, before.last_seen_s, before.mark, before.repairs, before.repaired_s)
    return Step(key=key, finding=None, after=after)
