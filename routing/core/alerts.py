"""What becomes of alerts from one look to the next: they fire at once, and are over when their cause has been away for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Key = tuple[str, str, str, str]  # kind, kind of subject, subject's id, aspect


@dataclass(frozen=True, slots=True)
class Kind:
    """``calm_s``: how long the cause must be away before the alert is over."""

    title: str
    calm_s: float


KINDS = {
    "slo_burn": Kind("An objective is missed too often", 300.0),
    "replica_unreachable": Kind("A replica cannot be reached", 0.0),
    "replica_quarantined": Kind("A replica is quarantined", 0.0),
    "reconciliation": Kind("Reconciliation found a critical contradiction", 120.0),
    "key_expiring": Kind("A key expires soon", 0.0),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that is the case now."""

    key: Key
    severity: str
    subject: str
    explanation: str


@dataclass(frozen=True, slots=True)
class Held:
    """An alert that fires. ``calm_since_s`` (unix): its cause has been away since then."""

    calm_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one alert: it begins, goes on, is calm for now, or is over."""

    key: Key
    what: Literal["fire", "keep", "calm", "resolve"]
    cause: Cause | None = None


def settle(held: Mapping[Key, Held], causes: Mapping[Key, Cause], now_s: float) -> tuple[Change, ...]:
    """Hold what fires against what is the case; every alert and cause gives one change, in order of key."""
    changes = []
    for key in sorted({*held, *causes}):
        cause, alert = causes.get(key), held.get(key)
        if cause is not None:
            changes.append(Change(key, "fire" if alert is None else "keep", cause))
        elif alert is not None:
            since_s = now_s if alert.calm_since_s is None else alert.calm_since_s
            calm_s = KINDS[key[0]].calm_s if key[0] in KINDS else 0.0
            changes.append(Change(key, "resolve" if now_s - since_s >= calm_s else "calm"))
    return tuple(changes)
