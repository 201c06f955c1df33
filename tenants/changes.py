"""The one door for changes that routers must learn of: raises the tenant's version, writes the audit log, wakes the publisher on commit.

Publishing lives in an app above this one, so it registers itself here (``subscribe``) when Django starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F

from tenants.actor import Actor
from tenants.core import actions
from tenants.core.errors import Forbidden
from tenants.models import AuditEntry, Tenant

_listeners: list[Callable[[UUID], None]] = []


def subscribe(listener: Callable[[UUID], None]) -> None:
    """Call ``listener(tenant_id)`` after each transaction that recorded a change. It must be quick, bounded and never raise."""
    if listener not in _listeners:
        _listeners.append(listener)


def permit(actor: Actor, action: str) -> None:
    """Ask whether the actor's role allows a change; for services that order work and record nothing themselves.

    Raises:
        Forbidden: it does not (tenants.core.actions).
    """
    if actor.permissions is not None and actions.needed(action) not in actor.permissions:
        raise Forbidden(f"This needs the permission {actions.needed(action).value!r}.")


def record(
    *,
    tenant_id: UUID,
    actor: Actor,
    action: str,
    object_id: UUID | None = None,
    object_label: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
    publishes: bool = True,
) -> None:
    """Record one change, inside its transaction and tenant scope. ``before`` and ``after`` never hold secrets.

    ``publishes`` False is for changes that no router acts on (a member, a control token).

    Raises:
        Forbidden: the actor's role does not allow this change (tenants.core.actions); the transaction takes it back.
    """
    permit(actor, action)
    version: int | None = None
    if publishes:
        # The row lock of this UPDATE orders versions by commit; a sequence would not.
        Tenant.objects.filter(id=tenant_id).update(config_version=F("config_version") + 1)
        version = Tenant.objects.values_list("config_version", flat=True).get(id=tenant_id)
    AuditEntry.objects.create(
        tenant_id=tenant_id,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_label=actor.label,
        peer_address=actor.peer_address,
        action=action,
        object_id=object_id,
        object_label=object_label[:300],
        before=before,
        after=after,
        reason=reason[:500],
        config_version=version,
    )
    if publishes:
        for listener in _listeners:
            transaction.on_commit(partial(listener, tenant_id))
