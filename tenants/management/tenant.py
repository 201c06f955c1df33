"""Which tenant a command speaks of."""

from __future__ import annotations

from uuid import UUID

from django.core.management.base import CommandError

from tenants import queries
from tenants.models import PLATFORM_SLUG


def named(slug: str | None) -> UUID:
    """The tenant of a slug; without one the only customer.

    Raises:
        CommandError: no such tenant, or it must be named.
    """
    refs = {ref.slug: ref.tenant_id for ref in queries.all_tenants()}
    if slug is None:
        customers = [one for one in refs if one != PLATFORM_SLUG]
        if len(customers) != 1:
            raise CommandError("there are several tenants, or none: name one with --tenant")
        slug = customers[0]
    if slug not in refs:
        raise CommandError(f"there is no tenant {slug!r}")
    return refs[slug]
