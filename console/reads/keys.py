"""API keys as lists show them: never the key, never its digest."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, QuerySet

from tenants import queries
from tenants.core.api_key import Kind
from tenants.models import ApiKey

MAX_ROWS = 1000
EXPIRES_SOON = timedelta(days=14)


def listed(tenant_id: UUID) -> QuerySet[ApiKey]:
    """Inference keys with their scopes, those not revoked first, newest first, inside the tenant scope."""
    newest = queries.keys(tenant_id, Kind.INFERENCE).defer("digest").order_by(F("revoked_at").desc(nulls_first=True), "-created_at", "id")
    return newest[:MAX_ROWS]


def state(key: ApiKey, now: datetime) -> str:
    """The key's status, with ``expiring`` for one that has less than :data:`EXPIRES_SOON` left."""
    status = queries.key_status(key, now)
    if status is queries.KeyStatus.ACTIVE and key.expires_at is not None and key.expires_at - now < EXPIRES_SOON:
        return "expiring"
    return status.value


def name(tenant_id: UUID, key_id: UUID | None) -> str | None:
    """The name of an inference key, or None."""
    return queries.keys(tenant_id, Kind.INFERENCE).filter(id=key_id).values_list("name", flat=True).first() if key_id else None
