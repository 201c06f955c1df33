"""API keys as lists show them: never the key, never its digest."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, Q, QuerySet

from tenants import queries
from tenants.core.api_key import Kind
from tenants.models import ApiKey

MAX_ROWS = 1000
EXPIRES_SOON = timedelta(days=14)


def in_force(tenant_id: UUID, now: datetime) -> QuerySet[ApiKey]:
    """Those of :func:`listed` that are neither revoked nor expired."""
    return _newest(tenant_id).exclude(ended(now))[:MAX_ROWS]


def ended(now: datetime) -> Q:
    """The keys that open nothing any more."""
    return Q(revoked_at__isnull=False) | Q(expires_at__isnull=False, expires_at__lte=now)


def listed(tenant_id: UUID) -> QuerySet[ApiKey]:
    """Inference keys with their scopes, those not revoked first, newest first, inside the tenant scope."""
    return _newest(tenant_id)[:MAX_ROWS]


def count_ended(tenant_id: UUID, now: datetime) -> int:
    """How many inference keys have ended."""
    return queries.keys(tenant_id, Kind.INFERENCE).filter(ended(now)).count()


def _newest(tenant_id: UUID) -> QuerySet[ApiKey]:
    return queries.keys(tenant_id, Kind.INFERENCE).defer("digest").order_by(F("revoked_at").desc(nulls_first=True), "-created_at", "id")


def state(key: ApiKey, now: datetime) -> str:
    """The key's status, with ``expiring`` for one that has less than :data:`EXPIRES_SOON` left, unless it was issued to end so soon."""
    status = queries.key_status(key, now)
    if status is queries.KeyStatus.ACTIVE and key.expires_at is not None and key.expires_at - now < EXPIRES_SOON and not queries.passes(key):
        return "expiring"
    return status.value


def names(tenant_id: UUID, ids: Collection[UUID]) -> dict[UUID, str]:
    """Names of these inference keys by id; those that were deleted have none."""
    return dict(queries.keys(tenant_id, Kind.INFERENCE).filter(id__in=ids).values_list("id", "name"))


def name(tenant_id: UUID, key_id: UUID | None) -> str | None:
    """The name of an inference key, or None."""
    return queries.keys(tenant_id, Kind.INFERENCE).filter(id=key_id).values_list("name", flat=True).first() if key_id else None
