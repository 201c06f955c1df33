"""Keys in use: whose a control token is, and when keys were used last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.db.models import Q

from tenants import queries
from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.models import PLATFORM_SLUG, ApiKey
from tenants.scoping import require_scope, tenant_scope

LAST_USED_EVERY = timedelta(minutes=1)


def authenticate_control(presented: str, *, now: datetime) -> ApiKey | None:
    """The control token whose text this is, or None: unknown, another kind, revoked, expired, or of a deleted tenant.

    Notes the use at most once a minute. A platform token counts as one only in the platform's own tenant.
    """
    if not api_key.MIN_CHARACTERS <= len(presented) <= api_key.MAX_CHARACTERS:
        return None
    digest = api_key.digest(presented)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id FROM saltroute_key_owner(%s)", [digest])
        owner = cursor.fetchone()
    if owner is None:
        return None
    with tenant_scope(owner[0]):
        token = ApiKey.objects.select_related("tenant").filter(tenant_id=owner[0], digest=digest, kind=Kind.CONTROL.value).first()
        if token is None or queries.key_status(token, now) is not queries.KeyStatus.ACTIVE or token.tenant.deleted_at is not None:
            return None
        if token.platform and token.tenant.slug != PLATFORM_SLUG:
            return None
        due = now - LAST_USED_EVERY
        if token.last_used_at is None or token.last_used_at <= due:
            # Conditional again in SQL: of many calls at once one writes.
            ApiKey.objects.filter(Q(last_used_at=None) | Q(last_used_at__lte=due), tenant_id=owner[0], id=token.id).update(last_used_at=now)
    return token


def note_use(*, tenant_id: UUID, used: Mapping[UUID, datetime]) -> int:
    """Raise ``last_used_at`` of inference keys, by id, where it is older; returns how many rose. No change of configuration: nothing is recorded."""
    require_scope(tenant_id)
    if not used:
        return 0
    table = ApiKey._meta.db_table
    with connection.cursor() as cursor:  # one statement for a thousand keys, which the ORM would make a thousand of
        cursor.execute(
            f"UPDATE {table} SET last_used_at = used.at FROM unnest(%s::uuid[], %s::timestamptz[]) AS used (id, at)"  # noqa: S608 - the model's own table
            f" WHERE {table}.id = used.id AND tenant_id = %s AND kind = %s AND (last_used_at IS NULL OR last_used_at < used.at)",
            [list(used), list(used.values()), tenant_id, Kind.INFERENCE.value],
        )
        return int(cursor.rowcount)
