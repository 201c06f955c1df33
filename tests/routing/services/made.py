"""A tenant as tests of this app make it: the row and its root scope, without provisioning, which has tests of its own."""

from __future__ import annotations

import uuid
from dataclasses import dataclass


@dataclass(frozen=True)
class Made:
    """A tenant."""

    id: uuid.UUID
    slug: str


def make(slug: str) -> Made:
    """Make a tenant."""
    from tenants.models import Scope, Tenant
    from tenants.scoping import tenant_scope

    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        Tenant.objects.create(id=tenant_id, slug=slug, name=slug)
        Scope.objects.create(tenant_id=tenant_id, path="")
    return Made(tenant_id, slug)
