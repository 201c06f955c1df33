"""Tenant keys: made and rotated where the root key is, in the ``keys`` worker alone. Elsewhere they are only known as wrapped."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from uuid import UUID

from namespaces.core import keyring
from namespaces.core.snapshot import KeyMaterial
from namespaces.models import TenantKeyVersion
from tenants import changes, queries
from tenants.actor import Actor
from tenants.core.errors import Conflict, NotFound
from tenants.models import Tenant
from tenants.scoping import require_scope, tenant_scope
from tenants.services import locks

KEPT_FOR = timedelta(days=7)  # the wrapped keys of a deleted tenant, and versions that a rotation has retired


def material(tenant_id: UUID) -> KeyMaterial | None:
    """The tenant's key in force, wrapped; None until it is made, and routers then refuse the tenant's requests."""
    row = _in_force(tenant_id)
    return None if row is None else KeyMaterial(version=row.version, wrapped=bytes(row.wrapped))


def versions(tenant_id: UUID) -> list[TenantKeyVersion]:
    """Every version that is kept, newest first."""
    require_scope(tenant_id)
    return list(TenantKeyVersion.objects.filter(tenant_id=tenant_id).defer("wrapped").order_by("-version"))


def provision(*, tenant_id: UUID, actor: Actor, root: bytes) -> bool:
    """Make the tenant's first key, wrapped under ``root`` (32 bytes), and publish the tenant. Safe to repeat: True only when it was made now.

    Raises:
        NotFound: the tenant is deleted.
        KeyringError: ``root`` is not 32 bytes.
    """
    locks.tenant(tenant_id)  # of two workers at once, the second finds the key of the first
    if _in_force(tenant_id) is not None:
        return False
    newest = TenantKeyVersion.objects.filter(tenant_id=tenant_id).order_by("-version").first()
    _add(tenant_id=tenant_id, actor=actor, root=root, version=1 if newest is None else newest.version + 1, action="tenant_key.provision", reason="")
    return True


def rotate(*, tenant_id: UUID, actor: Actor, root: bytes, from_version: int, reason: str, now: datetime) -> int:
    """Put a new key in force: every namespace of the tenant gets a new name, so everything it has cached becomes unreachable.

    ``from_version`` is the version the caller saw in force; a repeat of the same call finds a newer one and changes nothing. Requests in flight
    finish under the key they began with. Returns the version now in force.

    Raises:
        NotFound: the tenant is deleted.
        Conflict: ``from_version`` was never in force.
    """
    locks.tenant(tenant_id)
    row = _in_force(tenant_id)
    if row is None or row.version < from_version:
        raise Conflict("This key version is not in force.")
    if row.version > from_version:
        return row.version
    TenantKeyVersion.objects.filter(tenant_id=tenant_id, retired_at=None).update(retired_at=now)
    return _add(tenant_id=tenant_id, actor=actor, root=root, version=row.version + 1, action="tenant_key.rotate", reason=reason)


def provision_missing(*, actor: Actor, root: bytes) -> list[str]:
    """Make the first key of every living tenant that has none; returns their slugs. One transaction each: what was done stays done."""
    made = []
    for ref in queries.all_tenants():
        try:
            with tenant_scope(ref.tenant_id):
                if _in_force(ref.tenant_id) is None and provision(tenant_id=ref.tenant_id, actor=actor, root=root):
                    made.append(ref.slug)
        except NotFound:
            continue  # deleted since the list was read
    return made


def destroy_expired(*, actor: Actor, now: datetime) -> list[UUID]:
    """Delete the wrapped keys of tenants deleted ``KEPT_FOR`` ago, and those that a rotation retired as long ago. Returns the deleted tenants.

    Needs no root key. What it does not reach (backups, routers' state files, the append-only file of Valkey) is in docs/keys.md.
    """
    gone = []
    for ref in queries.all_tenants(deleted=True):
        with tenant_scope(ref.tenant_id):
            if _destroy(ref.tenant_id, actor=actor, now=now) and ref.deleted:
                gone.append(ref.tenant_id)
    return gone


def _destroy(tenant_id: UUID, *, actor: Actor, now: datetime) -> bool:
    tenant = Tenant.objects.get(id=tenant_id)
    rows = TenantKeyVersion.objects.filter(tenant_id=tenant_id)
    over = tenant.deleted_at is not None and tenant.deleted_at <= now - KEPT_FOR
    doomed = rows if over else rows.filter(retired_at__lte=now - KEPT_FOR)
    versions = sorted(doomed.values_list("version", flat=True))
    if not versions:
        return False
    doomed.delete()
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="tenant_key.destroy",
        object_id=tenant_id,
        object_label=tenant.slug,
        before={"versions": versions},
        publishes=False,
    )
    return True


def _in_force(tenant_id: UUID) -> TenantKeyVersion | None:
    require_scope(tenant_id)
    return TenantKeyVersion.objects.filter(tenant_id=tenant_id, retired_at=None).order_by("-version").first()


def _add(*, tenant_id: UUID, actor: Actor, root: bytes, version: int, action: str, reason: str) -> int:
    key = keyring.TenantKey(tenant_id=tenant_id, version=version, secret=secrets.token_bytes(keyring.KEY_BYTES))
    wrapped = keyring.wrap_tenant_key(root, key, secrets.token_bytes(keyring.NONCE_BYTES))
    row = TenantKeyVersion.objects.create(tenant_id=tenant_id, version=version, wrapped=wrapped)
    slug = Tenant.objects.values_list("slug", flat=True).get(id=tenant_id)
    changes.record(tenant_id=tenant_id, actor=actor, action=action, object_id=row.id, object_label=slug, after={"version": version}, reason=reason)
    return version
