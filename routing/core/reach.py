"""Whether an engine can be reached: the words of a router's report for it, and how long it must be away until people are told.

An engine is *away* while a router's health checks of it fail, while its address may not be used, or while its breaker is open because requests fail
there. An engine that answers health checks again after an outage is no longer away, though its next request is still a trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Condition = Literal["unknown", "ok", "asleep", "returning", "failing (active)", "failing (passive)", "blocked: address not allowed"]
CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
AWAY: Final[frozenset[str]] = frozenset({"failing (active)", "failing (passive)", "blocked: address not allowed"})
UNKNOWN: Final[frozenset[str]] = frozenset({"", "unknown"})  # a router that has not asked it yet
UNREACHABLE_AFTER_S: Final = 30.0  # away for so long, a replica in service is a finding and an alert; a restart of its process may take less


@dataclass(frozen=True, slots=True)
class Reach:
    """What several routers say of one engine. ``asked`` routers have asked it; for ``away`` of these it is away, for the first since ``since_s``.

    ``since_s`` is in unix seconds; None where nobody misses it, or no router says since when. ``conditions`` are those of the routers that miss it.
    """

    asked: int = 0
    away: int = 0
    since_s: float | None = None
    conditions: frozenset[str] = frozenset()

    @property
    def unreachable(self) -> bool:
        """Whether no router that has asked it reaches it: what it holds is not known then."""
        return self.away > 0 and self.away == self.asked

    def plus(self, condition: str, since_s: float | None) -> Reach:
        """With one more router's word."""
        if condition not in AWAY:
            return Reach(self.asked + (condition not in UNKNOWN), self.away, self.since_s, self.conditions)
        since = min((one for one in (self.since_s, since_s) if one is not None), default=None)
        return Reach(self.asked + 1, self.away + 1, since, self.conditions | {condition})
