"""Whether an engine can be reached: the words of a router's report for it, and how long it must be away until people are told.

An engine is *away* while a router's health checks of it fail, while its address may not be used, or while its breaker is open because requests fail
there. An engine that answers health checks again after an outage is no longer away, though its next request is still a trial.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Condition = Literal["unknown", "ok", "asleep", "returning", "failing (active)", "failing (passive)", "blocked: address not allowed"]
CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
AWAY: Final[frozenset[str]] = frozenset({"failing (active)", "failing (passive)", "blocked: address not allowed"})
UNKNOWN: Final[frozenset[str]] = frozenset({"", "unknown"})  # a router that has not asked it yet
UNREACHABLE_AFTER_S: Final = 30.0  # away for so long, a replica in service is a finding and an alert; a restart of its process may take less
