"""Asking for whole records: for some minutes, every decision of an endpoint keeps all its candidates. It ends by itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from routing.models import Endpoint
from routing.services import support
from tenants import changes
from tenants.actor import Actor
from tenants.core.errors import Invalid
from tenants.services import locks

MAX_MINUTES = 60


def ask(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, minutes: int, now: datetime) -> Endpoint:
    """Keep candidates from now on for ``minutes``; 0 ends it. Routers bound how many such records they make.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid: more than ``MAX_MINUTES``.
    """
    if not 0 <= minutes <= MAX_MINUTES:
        raise Invalid(f"Use 0 to {MAX_MINUTES} minutes.", field="minutes")
    locks.tenant(tenant_id)
    endpoint = support.locked(Endpoint, tenant_id=tenant_id, row_id=endpoint_id)
    before = endpoint.explain_until
    endpoint.explain_until = now + timedelta(minutes=minutes) if minutes else None
    if endpoint.explain_until == before:
        return endpoint
    endpoint.save(update_fields=["explain_until"])
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="endpoint.explain",
        object_id=endpoint.id,
        object_label=endpoint.name,
        before={"explain_until": before and before.isoformat()},
        after={"explain_until": endpoint.explain_until and endpoint.explain_until.isoformat()},
    )
    return endpoint
