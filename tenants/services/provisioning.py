"""Tenants themselves: created, renamed, suspended and deleted by the platform. The caller has checked that the actor may."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from uuid import UUID

from django.db import transaction

from tenants import changes, queries
from tenants.actor import Actor, system
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.core.roles import Role
from tenants.core.scopes import ROOT
from tenants.models import PLATFORM_SLUG, Scope, Tenant, User
from tenants.scoping import tenant_scope
from tenants.services import locks, members

# A slug stands in URLs (/t/{slug}/v1/), and a deleted tenant gives its own back.
RESERVED_SLUGS = frozenset({PLATFORM_SLUG, "saltroute", "system", "internal", "api", "admin", "static"})
DELETED_PREFIX = "deleted-"
_listeners: list[Callable[[UUID], None]] = []


def subscribe(listener: Callable[[UUID], None]) -> None:
    """Call ``listener(tenant_id)`` after each transaction that created a tenant. It must be quick, bounded and never raise."""
    if listener not in _listeners:
        _listeners.append(listener)


def create(*, actor: Actor, slug: str, name: str, owner_email: str | None = None) -> Tenant:
    """Create a tenant with its root scope, and its first owner when named. Its key is made by the ``keys`` worker right after.

    Raises:
        Invalid: slug or name is not acceptable, or the slug is reserved.
        Conflict: the slug is in use.
    """
    checked = names.slug(slug, field="slug")
    if checked in RESERVED_SLUGS or checked.startswith(DELETED_PREFIX):
        raise Invalid("This slug is reserved.", field="slug")
    return _create(actor=actor, slug=checked, name=names.label(name, field="name"), owner_email=owner_email)


def ensure_platform() -> Tenant:
    """The platform's tenant, which owns platform pools and platform tokens; created on first use. Safe to repeat, also at once."""
    tenant_id = queries.tenant_id_of(PLATFORM_SLUG)
    if tenant_id is None:
        try:
            with transaction.atomic():
                return _create(actor=system("platform"), slug=PLATFORM_SLUG, name="Platform", owner_email=None)
        except Conflict:
            tenant_id = queries.tenant_id_of(PLATFORM_SLUG)
            if tenant_id is None:
                raise
    with tenant_scope(tenant_id):
        return queries.tenant(tenant_id)


def rename(*, tenant_id: UUID, actor: Actor, name: str) -> Tenant:
    """Change the name that people see. The slug stays: it stands in clients' URLs.

    Raises:
        NotFound: deleted.
        Invalid: not a name.
    """
    checked = names.label(name, field="name")
    tenant = locks.tenant(tenant_id)
    before = tenant.name
    if before == checked:
        return tenant
    tenant.name = checked
    tenant.save(update_fields=["name"])
    _record(tenant, actor, "tenant.rename", before={"name": before}, after={"name": checked}, publishes=False)
    return tenant


def suspend(*, tenant_id: UUID, actor: Actor, suspended: bool, reason: str = "") -> Tenant:
    """Stop or resume a tenant: while suspended routers refuse its requests and its people may read, not change. Safe to repeat.

    Raises:
        NotFound: deleted.
        Conflict: the platform's own tenant.
        Invalid: a reason that cannot be written down.
    """
    names.reason(reason)
    tenant = locks.tenant(tenant_id)
    _not_the_platform(tenant)
    if tenant.suspended == suspended:
        return tenant
    tenant.suspended = suspended
    tenant.save(update_fields=["suspended"])
    _record(tenant, actor, "tenant.suspend" if suspended else "tenant.resume", reason=reason)
    return tenant


def require_second_factor(*, tenant_id: UUID, actor: Actor, required: bool) -> Tenant:
    """Ask every person in this tenant's console for a second factor, or no longer; from the next page on. Control tokens are not people.

    Raises:
        NotFound: deleted.
        Conflict: a person asks for it who has none: the first page after it would shut them out.
    """
    tenant = locks.tenant(tenant_id)
    if tenant.require_second_factor == required:
        return tenant
    if required and actor.kind == "user" and not (actor.id and User.objects.filter(id=actor.id, second_factor_at__isnull=False).exists()):
        raise Conflict("Set up your own second factor first.", field="require_second_factor")
    tenant.require_second_factor = required
    tenant.save(update_fields=["require_second_factor"])
    before, after = {"require_second_factor": not required}, {"require_second_factor": required}
    _record(tenant, actor, "tenant.require_second_factor", before=before, after=after, publishes=False)
    return tenant


def delete(*, tenant_id: UUID, actor: Actor, reason: str = "", now: datetime) -> Tenant:
    """Delete a tenant: routers get a tombstone under which every key is unknown, its people and tokens lose it at once, its slug is free again.

    Rows stay until its key is destroyed.

    Raises:
        NotFound: deleted before.
        Conflict: the platform's own tenant.
        Invalid: a reason that cannot be written down.
    """
    names.reason(reason)
    tenant = locks.tenant(tenant_id)
    _not_the_platform(tenant)
    before = tenant.slug
    tenant.deleted_at = now
    tenant.slug = f"{DELETED_PREFIX}{tenant.id.hex}"
    tenant.save(update_fields=["deleted_at", "slug"])
    _record(tenant, actor, "tenant.delete", before={"slug": before}, reason=reason)
    return tenant


def _create(*, actor: Actor, slug: str, name: str, owner_email: str | None) -> Tenant:
    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        tenant = Tenant(id=tenant_id, slug=slug, name=name)
        with refuse_on(tenant_slug_unique=Conflict("This slug is in use.", field="slug")):
            tenant.save(force_insert=True)
        Scope.objects.create(tenant_id=tenant_id, path=ROOT)
        _record(tenant, actor, "tenant.create", after={"slug": slug, "name": name})
        if owner_email is not None:
            members.add(tenant_id=tenant_id, actor=actor, email=owner_email, role=Role.OWNER.value, ceiling=Role.OWNER)
        for listener in _listeners:
            transaction.on_commit(lambda listener=listener: listener(tenant_id))  # type: ignore[misc]  # mypy cannot type a lambda's default
        return queries.tenant(tenant_id)


def _not_the_platform(tenant: Tenant) -> None:
    if tenant.slug == PLATFORM_SLUG:
        raise Conflict("The platform's own tenant stays as it is.")


def _record(
    tenant: Tenant,
    actor: Actor,
    action: str,
    *,
    before: Mapping[str, str | bool] | None = None,
    after: Mapping[str, str | bool] | None = None,
    reason: str = "",
    publishes: bool = True,
) -> None:
    changes.record(
        tenant_id=tenant.id,
        actor=actor,
        action=action,
        object_id=tenant.id,
        object_label=tenant.slug,
        before=None if before is None else dict(before),
        after=None if after is None else dict(after),
        reason=reason,
        publishes=publishes,
    )
