"""Idempotency-Keys: of several requests with the same key in one tenant, one acts and the others are given its answer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tenants.core.errors import Conflict
from tenants.models import IdempotencyRecord
from tenants.scoping import require_scope

KEPT_FOR = timedelta(hours=24)


def claim(*, tenant_id: UUID, key: str, request_digest: bytes, now: datetime) -> IdempotencyRecord | None:
    """Take ``key`` for this transaction: None, and the caller acts and calls :func:`complete`; or the record of the request that has acted.

    A second request waits inside PostgreSQL until the first commits or rolls back, so nobody is told "in progress". A rolled-back request leaves
    no record.

    Raises:
        Conflict: the key belongs to another request.
    """
    require_scope(tenant_id)
    rows = IdempotencyRecord.objects.filter(tenant_id=tenant_id)
    rows.filter(created_at__lt=now - KEPT_FOR).delete()
    mine = IdempotencyRecord(tenant_id=tenant_id, key=key, request_digest=request_digest, status=0, body={})
    IdempotencyRecord.objects.bulk_create([mine], ignore_conflicts=True)
    found = rows.get(key=key)
    if found.id == mine.id:
        return None
    if bytes(found.request_digest) != request_digest:
        raise Conflict("This Idempotency-Key was used for another request.", field="Idempotency-Key")
    return found


def complete(*, tenant_id: UUID, key: str, status: int, body: dict[str, Any]) -> None:
    """Keep the answer for repeats. ``body`` holds no secret."""
    require_scope(tenant_id)
    IdempotencyRecord.objects.filter(tenant_id=tenant_id, key=key).update(status=status, body=body)
