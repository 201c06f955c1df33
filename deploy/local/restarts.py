"""When a child that died is started again, and when to give up. Pure: times are given, nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_DELAY_S = 0.5  # doubles with each recent death
MOST_DELAY_S = 8.0
RECENT_S = 60.0
MOST_DEATHS = 3  # recent deaths of one child after which starting it again is hopeless


@dataclass
class Restarts:
    """Remembers recent deaths by child."""

    _deaths: dict[str, list[float]] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def died(self, name: str, now_s: float) -> float | None:
        """Note a death.

        Returns:
            Seconds until the child is to be started again, or None: it died too often lately, give up.
        """
        recent = [death for death in self._deaths.get(name, []) if now_s - death < RECENT_S] + [now_s]
        self._deaths[name] = recent
        if len(recent) > MOST_DEATHS:
            return None
        delay_s = min(FIRST_DELAY_S * 2.0 ** (len(recent) - 1), MOST_DELAY_S)
        self._due[name] = now_s + delay_s
        return delay_s

    def waiting(self, name: str) -> bool:
        """Whether the child is dead and known to be."""
        return name in self._due

    def due(self, name: str, now_s: float) -> bool:
        """Whether to start the child now; asked once for each restart."""
        if name in self._due and now_s >= self._due[name]:
            del self._due[name]
            return True
        return False
