"""When keys were last used, from the decision records: ingest may only insert, so it cannot note it itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Max

from routing.models import DecisionRow
from tenants.queries import all_tenants
from tenants.scoping import require_scope, tenant_scope
from tenants.services import key_use

WINDOW = timedelta(minutes=10)  # much longer than from one run to the next, for requests that take long and for an ingest that is behind


def note(tenant_id: UUID, now: datetime) -> int:
    """Raise ``last_used_at`` of the tenant's keys to their newest requests; returns how many rose. Repeats do nothing.

    Requests that reached the database later than :data:`WINDOW` after they began are not looked at. Times ahead of ``now`` are a router's
    clock: they count once they have passed.
    """
    require_scope(tenant_id)
    rows = DecisionRow.objects.filter(tenant_id=tenant_id, started_at__gt=now - WINDOW, started_at__lte=now, key_id__isnull=False)
    used = dict(rows.order_by().values_list("key_id").annotate(Max("started_at")))
    return key_use.note_use(tenant_id=tenant_id, used=used)


def note_all(now: datetime) -> int:
    """Do so for every tenant, each in its own short transaction."""
    risen = 0
    for ref in all_tenants():
        with tenant_scope(ref.tenant_id):
            risen += note(ref.tenant_id, now)
    return risen
