"""How long a replica had work, from when requests begin and end there: exact, whatever moment is asked about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WorkClock:
    """``busy_s``: time with at least one request; ``request_s``: time in flight of all requests together. ``now_s`` is monotonic, given by the
    caller, and a moment before the last one counts as that one."""

    count: int = 0
    busy_s: float = 0.0
    request_s: float = 0.0
    at_s: float = 0.0

    def change(self, by: int, now_s: float) -> None:
        """``by`` requests more (fewer, if negative) from now on."""
        self.read(now_s)
        self.count += by

    def read(self, now_s: float) -> tuple[float, float]:
        """Both times until now."""
        passed_s = max(0.0, now_s - self.at_s)
        self.at_s = max(self.at_s, now_s)
        if self.count > 0:
            self.busy_s += passed_s
            self.request_s += passed_s * self.count
        return self.busy_s, self.request_s
