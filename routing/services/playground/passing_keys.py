"""A key for the playground: issued to the person, in force for a quarter of an hour, one at a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from tenants.actor import Actor
from tenants.core.api_key import Kind
from tenants.core.roles import Role
from tenants.models import ApiKey
from tenants.services import api_keys, locks

KEY_LIFE = timedelta(minutes=15)


def issue(*, tenant_id: UUID, actor: Actor, now: datetime) -> api_keys.Issued:
    """Issue the person's key at the root scope and revoke the one before, in force or not, so that they do not pile up.

    Whoever may issue keys may have one (``tenants.core.actions``); it ends by itself after ``KEY_LIFE``, in the routers too.

    Raises:
        Forbidden: the actor's role issues no keys.
        LimitReached: ``MAX_KEYS_PER_TENANT``.
    """
    locks.tenant(tenant_id)
    name = f"playground, {actor.label[:60]} {str(actor.id)[:8]}"
    before = ApiKey.objects.filter(tenant_id=tenant_id, kind=Kind.INFERENCE.value, name=name, revoked_at=None).first()
    if before is not None:
        api_keys.revoke(
            tenant_id=tenant_id, actor=actor, kind=Kind.INFERENCE, key_id=before.id, ceiling=Role.VIEWER, reason="another for the playground", now=now
        )
    return api_keys.issue_inference(tenant_id=tenant_id, actor=actor, name=name, expires_at=now + KEY_LIFE, now=now)
