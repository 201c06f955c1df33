"""The circuit breaker of one replica: which failures close the door, and who may knock.

    closed    --`failures` failures in a row-->  open
    open      --after `open_s`-->                half open: one request is let through
    half open --success-->                       closed
    half open --failure-->                       open again

Only real answers close it. An engine that was away and is back (it restarted, or its health returned) is asked at once, not after ``open_s``: see
``came_back``. An engine whose /health is fine while every completion fails stays out, and a 4xx of a client's own making is a success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "half_open"]


@dataclass(slots=True)
class Breaker:
    """Mutable state; ``now_s`` is monotonic and given by the caller."""

    failures: int = 3
    open_s: float = 30.0
    in_a_row: int = 0
    opened_at_s: float | None = None
    probing: bool = False
    opened_total: int = 0

    def state(self, now_s: float) -> State:
        if self.opened_at_s is None:
            return "closed"
        return "half_open" if now_s - self.opened_at_s >= self.open_s else "open"

    def allows(self, now_s: float) -> bool:
        """Whether a request may go there now; while half open, one at a time."""
        state = self.state(now_s)
        return state == "closed" or (state == "half_open" and not self.probing)

    def begin(self, now_s: float) -> bool:
        """Count a dispatch; True if it is the half-open probe. Its outcome must be told by one of the three methods below."""
        if self.state(now_s) == "half_open" and not self.probing:
            self.probing = True
            return True
        return False

    def succeeded(self, *, probe: bool) -> None:
        """The replica answered as a replica should."""
        if probe:
            self.probing = False
        if self.opened_at_s is None or probe:
            self.in_a_row = 0
            self.opened_at_s = None

    def failed(self, now_s: float, *, probe: bool) -> None:
        """The replica did not answer, or answered that it is broken."""
        self.in_a_row += 1
        if probe:
            self.probing = False
            self.opened_at_s = now_s
        elif self.opened_at_s is None and self.in_a_row >= self.failures:
            self.opened_at_s = now_s
            self.opened_total += 1

    def came_back(self, now_s: float) -> None:
        """The replica is another process than before, or reachable again: let one request through now. Nothing is closed by this."""
        if self.opened_at_s is not None:
            self.opened_at_s = min(self.opened_at_s, now_s - self.open_s)

    def pardon(self) -> None:
        """Take the last failure back: it turned out to be the request's. A door that it opened closes again."""
        if self.in_a_row == 0:
            return
        self.in_a_row -= 1
        if self.opened_at_s is not None and self.in_a_row < self.failures and not self.probing:
            self.opened_at_s = None
            self.opened_total -= 1

    def undecided(self, *, probe: bool) -> None:
        """The client left, or the replica was merely busy: nothing was learned."""
        if probe:
            self.probing = False
