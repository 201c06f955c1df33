"""What routers report of replicas, picked out of their reports and summed. Tolerant of routers older or newer than this console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from routing import queries
from routing.core.reach import Reach
from routing.core.residency_said import Said
from tenants.models import Tenant

MAX_REPLICAS = 10_000
HEALTHY = "ok"
MAX_CHANGES = 50
_LATE = ("stale", "expired", "starting")


@dataclass(frozen=True, slots=True)
class Load:
    """A replica as the routers see it. ``health`` is HEALTHY only if every router says so; sums are None where no router reports them."""

    health: str = HEALTHY
    in_flight: int | None = None
    queued_tokens: float | None = None
    said: Said = field(default_factory=Said)  # how far the engine's events can be trusted
    routers: int = 0
    reach: Reach = field(default_factory=Reach)

    @property
    def unreachable(self) -> bool:
        """Whether no router that has asked it reaches it."""
        return self.reach.unreachable

    @property
    def away_since(self) -> datetime | None:
        """Since when the router that misses it longest has not reached it."""
        return queries.moment(self.reach.since_s)

    @property
    def residency(self) -> str:
        """How far the engine's events can be trusted: what the least sure router says; empty where none does."""
        return self.said.state

    @property
    def residency_reasons(self) -> list[str]:
        """Why, by the codes of routers' logs."""
        return sorted(self.said.reasons)

    @property
    def residency_since(self) -> datetime | None:
        """Since when, at the router where it has been so for longest."""
        return queries.moment(self.said.since_s)

    @property
    def event_blocks(self) -> int | None:
        """Blocks that its events show, as the router that knows most has them."""
        return self.said.event_blocks

    @property
    def residency_tone(self) -> str:
        """The colour class of the residency."""
        return {"exact": "good", "warming": "warn", "degraded": "warn"}.get(self.residency, "")

    @property
    def tone(self) -> str:
        """The colour class of the health."""
        if self.health == HEALTHY:
            return "good"
        return {"unknown": "", "returning": "warn", "asleep": "warn"}.get(self.health, "bad")


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
        for url, said in router.engines.items():
            if url in sums or len(sums) < MAX_REPLICAS:
                sums[url] = _added(sums.get(url, Load()), said if isinstance(said, dict) else {"condition": said})
    return sums


@dataclass(frozen=True, slots=True)
class Learned:
    """What one router says it learned of a replica. ``learned`` False: nobody has measured its rate, and the figure is assumed."""

    router_id: str
    tokens_per_s: float | None
    learned: bool
    fixed_s: float | None
    kappa: float | None
    verdict: str
    cause: str
    withholds: bool  # it computes the last block anew that it holds of a prompt
    capacity_tokens: float | None


def calibrations(found: queries.Routers, url: str) -> list[Learned]:
    """By router, of those that report the replica."""
    said = []
    for router in found.routers:
        one = router.engines.get(url)
        if isinstance(one, dict):
            rates, trust = (part if isinstance(part := one.get(name), dict) else {} for name in ("calibration", "trust"))
            said.append(
                Learned(
                    router_id=router.router_id,
                    tokens_per_s=_sum(None, rates.get("tokens_per_s"), float),
                    learned=rates.get("learned") is True,
                    fixed_s=_sum(None, rates.get("fixed_s"), float),
                    kappa=_sum(None, trust.get("kappa"), float),
                    verdict=str(trust.get("verdict") or ""),
                    cause=str(trust.get("cause") or ""),
                    withholds=trust.get("withholds") is True,
                    capacity_tokens=_sum(None, one.get("capacity_tokens"), float),
                )
            )
    return said


def _added(before: Load, said: Mapping[str, Any]) -> Load:
    condition = said.get("condition")
    health = condition if isinstance(condition, str) and condition else "unknown"
    return replace(
        before,
        health=health if before.health == HEALTHY else before.health,
        reach=queries.reach_with(before.reach, said),
        in_flight=_sum(before.in_flight, said.get("in_flight"), int),
        queued_tokens=_sum(before.queued_tokens, said.get("queued_tokens"), float),
        said=before.said.plus(said),
        routers=before.routers + 1,
    )


@dataclass(frozen=True, slots=True)
class ResidencyChange:
    """One router's word that it trusts a replica's KV events more or less than before."""

    at: datetime
    router_id: str
    replica: str
    rank: int
    before: str
    after: str
    reason: str


def residency_changes(found: queries.Routers, names: Mapping[str, str]) -> list[ResidencyChange]:
    """The newest changes at the replicas in ``names`` (by normalised URL), newest first."""
    reported = [(router.router_id, router.report.get("residency_changes")) for router in found.routers]
    rows = [(router_id, row) for router_id, said in reported if isinstance(said, list) for row in said[-MAX_CHANGES:] if isinstance(row, dict)]
    changes = [change for router_id, row in rows if (change := _change(router_id, row, names)) is not None]
    return sorted(changes, key=lambda change: change.at, reverse=True)[:MAX_CHANGES]


def _change(router_id: str, row: Mapping[str, Any], names: Mapping[str, str]) -> ResidencyChange | None:
    name, at, rank = names.get(str(row.get("replica"))), row.get("at"), row.get("rank")
    if name is None or not isinstance(at, int | float) or not isinstance(rank, int):
        return None
    moment = queries.moment(at)
    if moment is None:
        return None
    before, after, reason = (str(row.get(field))[:40] for field in ("before", "after", "reason"))
    return ResidencyChange(at=moment, router_id=router_id, replica=name, rank=rank, before=before, after=after, reason=reason)


def _sum(before: Any, value: object, kind: type[int] | type[float]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return before
    return (before or 0) + kind(value)
