"""Namespaces that replicas are kept for: who used them last, and whether they can come again.

The control plane cannot derive a namespace (it holds no key), so it asks the decisions: the newest one under the namespace names endpoint, scope and
key, and what happened to those since is in the audit log. That look is costly, so it is taken every ``LOOK_S`` and remembered in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from django.db import OperationalError, connection

from routing.core.reconcile_facts import Assignment
from routing.models import Endpoint, Replica
from routing.services import identity_events, isolation, pools
from routing.services.reconciliation.facts import Noted, bounded, ran_out
from tenants.models import ApiKey, AuditEntry, Scope
from tenants.scoping import tenant_scope

LOOK_S = 900.0
IDLE = timedelta(days=7)
MAX_LOOKED_UP = 500  # replicas in one look
MAX_USERS = 1000  # tenants whose decisions are looked into

_NEWEST = """
SELECT DISTINCT ON (record->>'namespace') record->>'namespace', started_at, endpoint_id, scope_id, key_id
  FROM routing_decisionrow
 WHERE tenant_id = %s AND started_at >= %s AND record->>'namespace' = ANY (%s)
 ORDER BY record->>'namespace', started_at DESC
"""


@dataclass(frozen=True, slots=True)
class _Use:
    """The newest request of a namespace, and why there can be no other."""

    at: datetime
    dead: str


def look(tenant_id: UUID, rows: list[Replica], noted: Noted, now: datetime) -> Noted:
    """Look again if it is time to, in the owner's scope. Where the decisions take too long, nothing is known of them until the next time."""
    kept = [row for row in rows if row.dedicated_namespace is not None and isolation.serves_one(row)][:MAX_LOOKED_UP]
    fresh = 0 <= now.timestamp() - noted.assignments_at_s < LOOK_S  # a look in the future was one by a clock that was wrong
    if fresh and all(noted.assignments.get(str(row.id), ("",))[0] == row.dedicated_namespace for row in kept):
        return noted
    found: dict[str, tuple[str, Assignment]] = {}
    if kept:
        wanted = sorted({str(row.dedicated_namespace) for row in kept})
        users = {tenant_id}.union(*(pools.grantees(row.pool) for row in {row.pool_id: row for row in kept}.values()))
        uses = _uses(sorted(users)[:MAX_USERS], wanted, now)
        assigned = _assigned_long_ago(tenant_id, kept, now)
        for row in kept:
            name = str(row.dedicated_namespace)
            use = None if uses is None else uses.get(name)
            idle = uses is not None and use is None and row.id in assigned
            found[str(row.id)] = name, Assignment(dead=use.dead if use else "", idle_days=IDLE.days if idle else None)
    return replace(noted, assignments=found, assignments_at_s=now.timestamp())


def _uses(users: Iterable[UUID], wanted: list[str], now: datetime) -> dict[str, _Use] | None:
    """The newest use of each namespace; None where one of the looks took too long."""
    uses: dict[str, _Use] = {}
    for user in users:
        with tenant_scope(user):
            try:
                with bounded(), connection.cursor() as cursor:
                    cursor.execute(_NEWEST, [user, now - IDLE, wanted])
                    rows = cursor.fetchall()
            except OperationalError as error:
                if not ran_out(error):
                    raise
                return None
            for name, at, endpoint_id, scope_id, key_id in rows:
                if name not in uses or uses[name].at < at:
                    uses[name] = _Use(at, _dead(user, at, endpoint_id, scope_id, key_id))
    return uses


def _dead(user: UUID, at: datetime, endpoint_id: UUID | None, scope_id: UUID | None, key_id: UUID | None) -> str:
    """Why no request can have the same namespace again; empty if one can. Names nobody: the owner of the pool may be another."""
    endpoint = None if endpoint_id is None else Endpoint.objects.filter(tenant_id=user, id=endpoint_id).first()
    if endpoint is None:
        return "its endpoint was deleted"
    if endpoint.sharing == "none":
        return "each of its requests has a namespace of its own"
    if endpoint.sharing in ("scope", "key") and scope_id is not None and not Scope.objects.filter(tenant_id=user, id=scope_id).exists():
        return "its scope was deleted"
    if endpoint.sharing == "key" and key_id is not None:
        key = ApiKey.objects.filter(tenant_id=user, id=key_id).values_list("revoked_at", flat=True).first()
        if key is not None:
            return "its key was revoked"
    event = identity_events.first_since(user, at, endpoint_id=endpoint.id, scope_id=scope_id)
    return "" if event is None else f"its identity changed ({event.action})"


def _assigned_long_ago(tenant_id: UUID, rows: list[Replica], now: datetime) -> set[UUID]:
    """Replicas whose namespace was assigned before the time that is looked back over."""
    ids = [row.id for row in rows]
    recent = AuditEntry.objects.filter(tenant_id=tenant_id, action="replica.assign", object_id__in=ids, created_at__gte=now - IDLE)
    return set(ids) - set(recent.values_list("object_id", flat=True))
