"""The order of changes inside one tenant."""

from __future__ import annotations

from uuid import UUID

from tenants.core.errors import NotFound
from tenants.models import Tenant
from tenants.scoping import require_scope


def tenant(tenant_id: UUID) -> Tenant:
    """Lock the tenant's row until the transaction ends, so that a limit is counted and used by one change at a time.

    Raises:
        NotFound: the tenant is deleted.
    """
    require_scope(tenant_id)
    row = Tenant.objects.select_for_update().filter(id=tenant_id, deleted_at=None).first()
    if row is None:
        raise NotFound
    return row
