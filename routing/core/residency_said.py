"""What several routers say of one engine's residency, summed to what the least sure of them says.

Each router follows an engine's KV events itself, so one may trust them and another not. Whoever asks how warm a replica is has to expect the least.
Words that this version does not know, such as a newer router's, count as the least sure of all, so that they are seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SURENESS: Final = ("history", "degraded", "warming", "exact")  # from the least sure


@dataclass(frozen=True, slots=True)
class Said:
    """``state`` is empty where no router says one. ``reasons`` and ``since_s`` (unix seconds, the longest) are of the routers that say that state.

    ``since_s`` is None where none of them says since when, as for an engine without events. ``event_blocks`` are what its events show, as the router
    that knows most has them; None: none says. ``routers`` say a state.
    """

    state: str = ""
    reasons: frozenset[str] = frozenset()
    since_s: float | None = None
    event_blocks: int | None = None
    routers: int = 0

    def plus(self, row: Mapping[str, Any]) -> Said:
        """With one more router's row on the engine. What is malformed in it tells nothing."""
        state, reason, since, blocks = (row.get(name) for name in ("residency", "residency_reason", "residency_since", "event_blocks"))
        held = self.event_blocks if isinstance(blocks, bool) or not isinstance(blocks, int) else max(blocks, self.event_blocks or 0)
        if not isinstance(state, str) or not state:
            return Said(self.state, self.reasons, self.since_s, held, self.routers)
        reasons = frozenset({reason} if isinstance(reason, str) and reason else ())
        since_s = None if isinstance(since, bool) or not isinstance(since, int | float) else float(since)
        if not self.state or _sureness(state) < _sureness(self.state):
            return Said(state, reasons, since_s, held, self.routers + 1)
        if state != self.state:
            return Said(self.state, self.reasons, self.since_s, held, self.routers + 1)
        longest = min((one for one in (self.since_s, since_s) if one is not None), default=None)
        return Said(state, self.reasons | reasons, longest, held, self.routers + 1)


def _sureness(state: str) -> int:
    return SURENESS.index(state) if state in SURENESS else -1
