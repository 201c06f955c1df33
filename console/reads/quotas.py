"""Quotas as the console shows them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from routing.models import Quota
from routing.services import quotas

SHOWN = 200


def listed(tenant_id: UUID, now: datetime) -> list[quotas.Held]:
    """The tenant's quotas, those near a limit first, ``SHOWN`` at most."""
    rows = list(Quota.objects.filter(tenant_id=tenant_id).order_by("of", "name")[:SHOWN])
    return sorted(quotas.standings(tenant_id, rows, now), key=lambda held: not held.near)
