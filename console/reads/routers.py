"""What routers report of replicas, picked out of their reports and summed. Tolerant of routers older or newer than this console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from routing import queries
from tenants.models import Tenant

MAX_REPLICAS = 10_000
HEALTHY = "ok"
_LATE = ("stale", "expired", "starting")


@dataclass(frozen=True, slots=True)
class Load:
    """A replica as the routers see it. ``health`` is HEALTHY only if every router says so; sums are None where no router reports them."""

    health: str = HEALTHY
    in_flight: int | None = None
    queued_tokens: float | None = None
    residency: str = ""
    routers: int = 0

    @property
    def tone(self) -> str:
        """The colour class of the health."""
        if self.health == HEALTHY:
            return "good"
        return "" if self.health == "unknown" else "bad"


@dataclass(frozen=True, slots=True)
class Badge:
    """Who runs the tenant's newest configuration, in one line. ``late`` names routers that say they lack contact or do not serve yet."""

    routers: queries.Routers
    late: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return self.routers.reachable and bool(self.routers.routers) and self.routers.applied == len(self.routers.routers) and not self.late


def status(tenant_id: UUID) -> queries.Routers:
    """Every router's report, inside the tenant scope."""
    version = Tenant.objects.values_list("config_version", flat=True).get(id=tenant_id)
    return queries.routers(tenant_id, version)


def badge(found: queries.Routers) -> Badge:
    """Sum up ``found`` for the frame of every page."""
    states = [(router.router_id, router.report.get("state")) for router in found.routers]
    return Badge(routers=found, late=tuple(f"{router_id} is {state}" for router_id, state in states if state in _LATE))


def loads(found: queries.Routers) -> dict[str, Load]:
    """Loads by the replica's normalised URL, under which routers hold what they know of an engine."""
    sums: dict[str, Load] = {}
    for router in found.routers:
        replicas = router.report.get("replicas")
        if not isinstance(replicas, dict):
            continue
        for url, said in replicas.items():
            if url in sums or len(sums) < MAX_REPLICAS:
                sums[url] = _added(sums.get(url, Load()), said if isinstance(said, dict) else {"condition": said})
    return sums


def _added(before: Load, said: Mapping[str, Any]) -> Load:
    condition = said.get("condition")
    health = condition if isinstance(condition, str) and condition else "unknown"
    residency = said.get("residency")
    return replace(
        before,
        health=health if before.health == HEALTHY else before.health,
        in_flight=_sum(before.in_flight, said.get("in_flight"), int),
        queued_tokens=_sum(before.queued_tokens, said.get("queued_tokens"), float),
        residency=residency if isinstance(residency, str) else before.residency,
        routers=before.routers + 1,
    )


def _sum(before: Any, value: object, kind: type[int] | type[float]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return before
    return (before or 0) + kind(value)
