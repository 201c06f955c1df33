"""What routers report of replicas, picked out of their reports and summed. Tolerant of routers older or newer than this console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from routing import queries
from tenants.models import Tenant

MAX_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """A replica as the routers see it: in-flight requests and queued tokens summed over routers, health as the worst of their words."""

    in_flight: int
    queued_tokens: float
    health: str
    residency: str
    routers: int


def status(tenant_id: UUID) -> queries.Routers:
    """Who runs the tenant's newest configuration, inside the tenant scope."""
    version = Tenant.objects.values_list("config_version", flat=True).get(id=tenant_id)
    return queries.routers(tenant_id, version)


def loads(found: queries.Routers) -> dict[str, Load]:
    """Loads by replica id."""
    sums: dict[str, Load] = {}
    for router in found.routers:
        replicas = router.report.get("replicas")
        for replica_id, said in _items(replicas):
            if len(sums) >= MAX_REPLICAS and replica_id not in sums:
                continue
            sums[replica_id] = _added(sums.get(replica_id), said)
    return sums


def _items(replicas: object) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(replicas, dict):
        return [(str(name), said) for name, said in replicas.items() if isinstance(said, dict)]
    if isinstance(replicas, list):
        return [(str(said["id"]), said) for said in replicas if isinstance(said, dict) and "id" in said]
    return []


def _added(before: Load | None, said: Mapping[str, Any]) -> Load:
    health = str(said.get("health", "")) or "unknown"
    return Load(
        in_flight=(before.in_flight if before else 0) + int(_number(said.get("in_flight"))),
        queued_tokens=(before.queued_tokens if before else 0.0) + _number(said.get("queued_tokens")),
        health=health if before is None or before.health == "ok" else before.health,
        residency=str(said.get("residency", "")) or (before.residency if before else ""),
        routers=(before.routers if before else 0) + 1,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
