"""What changed during a range, to be marked on its plots: out of the change log, and starts of routers out of the account of their records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from routing.models import RecordAccount
from tenants.models import AuditEntry

MAX_MARKERS = 40  # the newest
Kind = Literal["policy", "epoch", "replica", "router"]
_WORDS: dict[str, tuple[Kind, str]] = {
    "endpoint.promote": ("policy", "candidate policy promoted"),
    "endpoint.rollback": ("policy", "policy rolled back"),
    "endpoint.trial": ("policy", "trial of a policy began"),
    "endpoint.trial_end": ("policy", "trial of a policy ended"),
    "endpoint.update": ("policy", "endpoint changed"),
    "endpoint.create": ("policy", "endpoint added"),
    "routing_policy.version": ("policy", "new version of a routing policy"),
    "slo_policy.version": ("policy", "new version of an SLO policy"),
    "endpoint.rotate_epoch": ("epoch", "epoch rotated"),
    "tenant.rotate_epoch": ("epoch", "epoch of all endpoints rotated"),
    "tenant_key.rotate": ("epoch", "tenant key rotated"),
    "scope.raise": ("epoch", "scope's version raised"),
    "replica.create": ("replica", "replica added"),
    "replica.delete": ("replica", "replica removed"),
    "replica.update": ("replica", "replica changed"),
    "replica.drain": ("replica", "replica drained"),
    "replica.pause": ("replica", "replica paused"),
    "replica.resume": ("replica", "replica resumed"),
    "replica.isolation": ("replica", "isolation of a replica changed"),
    "replica.repaired": ("replica", "replica repaired"),
    "granted_pool.change": ("replica", "a granted pool changed"),
    "granted_pool.isolation": ("replica", "isolation in a granted pool changed"),
}
_OF_ONE_ENDPOINT = frozenset({"endpoint.promote", "endpoint.rollback", "endpoint.trial", "endpoint.trial_end", "endpoint.update", "endpoint.create"})


@dataclass(frozen=True, slots=True)
class Marker:
    """One change. Who did it is for those who may read the audit log."""

    at: datetime
    kind: Kind
    text: str


def markers(tenant_id: UUID, *, since: datetime, until: datetime, endpoint_id: UUID | None = None, replica_id: UUID | None = None) -> list[Marker]:
    """The newest changes of a range, oldest first, in two queries; of one endpoint or one replica what concerns it. In the tenant's scope."""
    entries = AuditEntry.objects.filter(tenant_id=tenant_id, created_at__gte=since, created_at__lte=until, action__in=_WORDS)
    rows = entries.order_by("-created_at").values_list("created_at", "action", "object_id", "object_label", "after")[: 4 * MAX_MARKERS]
    found = []
    for at, action, object_id, label, after in rows:
        kind, words = _WORDS[action]
        if endpoint_id is not None and action in _OF_ONE_ENDPOINT and object_id != endpoint_id:
            continue
        if replica_id is not None and (kind != "replica" or object_id != replica_id):
            continue
        state = after.get("isolation_state") or after.get("state") if isinstance(after, dict) and kind == "replica" else None
        found.append(Marker(at, kind, f"{words}: {label}" + (f" is {state}" if isinstance(state, str) else "")))
    found += _starts(since, until)
    return sorted(sorted(found, key=lambda one: one.at)[-MAX_MARKERS:], key=lambda one: one.at)


def _starts(since: datetime, until: datetime) -> list[Marker]:
    """Routers that began in the range and have recorded a request since. Routers serve every tenant."""
    first, last = (int(moment.timestamp() * 1000) for moment in (since, until))
    rows = RecordAccount.objects.filter(boot_ms__gte=first, boot_ms__lte=last).values_list("router_id", "boot_ms").distinct()
    return [
        Marker(datetime.fromtimestamp(boot_ms / 1000, tz=since.tzinfo), "router", f"router started: {name}") for name, boot_ms in rows[:MAX_MARKERS]
    ]
