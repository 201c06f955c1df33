"""Refused attempts to change something, in the log of the tenant whose caller tried."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from tenants import changes
from tenants.actor import Actor
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope

MAX_DENIALS_PER_HOUR = 200  # of one tenant; beyond, attempts are refused as before and not written down
ACTION = "request.denied"


def record(*, tenant_id: UUID, actor: Actor, method: str, path: str, code: str) -> None:
    """Write down a refused attempt, in a transaction of its own: the request's has been rolled back. Names what was asked, never what is there."""
    asked = "".join(character if character.isprintable() else "?" for character in f"{method} {path}")
    with tenant_scope(tenant_id):
        since = timezone.now() - timedelta(hours=1)
        if AuditEntry.objects.filter(tenant_id=tenant_id, created_at__gt=since, action=ACTION).count() < MAX_DENIALS_PER_HOUR:
            changes.record(tenant_id=tenant_id, actor=actor, action=ACTION, object_label=asked, reason=code, publishes=False)
