"""Auth scopes: the tree inside a tenant along which cached blocks are shared or kept apart."""

from __future__ import annotations

from uuid import UUID

from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.core.scopes import ROOT, ancestors, parse_path
from tenants.models import ApiKey, Scope
from tenants.scoping import require_scope
from tenants.services import locks

MAX_SCOPES_PER_TENANT = 1000
REASON_MAX = 500  # characters


def create(*, tenant_id: UUID, actor: Actor, path: str) -> Scope:
    """Create a scope below an existing one.

    Raises:
        Invalid: not a path, the root, or its parent does not exist.
        Conflict: it exists.
        LimitReached: ``MAX_SCOPES_PER_TENANT``.
    """
    checked = parse_path(path)
    if checked == ROOT:
        raise Invalid("Every tenant has its root scope already.", field="path")
    locks.tenant(tenant_id)
    parent = ancestors(checked)[-2]
    if not Scope.objects.filter(tenant_id=tenant_id, path=parent).exists():
        raise Invalid(f"Create its parent {parent!r} first.", field="path")
    if Scope.objects.filter(tenant_id=tenant_id).count() >= MAX_SCOPES_PER_TENANT:
        raise LimitReached(f"A tenant has at most {MAX_SCOPES_PER_TENANT} scopes (MAX_SCOPES_PER_TENANT).")
    scope = Scope(tenant_id=tenant_id, path=checked)
    with refuse_on(scope_path_per_tenant=Conflict("This scope exists.", field="path")):
        scope.save()
    _record(scope, actor, "scope.create")
    return scope


def raise_version(*, tenant_id: UUID, actor: Actor, scope_id: UUID, reason: str) -> Scope:
    """Make everything cached under this scope and those below it unreachable, for requests from the next snapshot on.

    Each call raises the version once more; requests in flight finish under the one they began with.

    Raises:
        NotFound: no such scope.
        Invalid: no reason given.
    """
    checked = names.label(reason, field="reason", maximum=REASON_MAX)
    scope = _locked(tenant_id, scope_id)
    before = scope.version
    scope.version = before + 1
    scope.save(update_fields=["version"])
    _record(scope, actor, "scope.raise", before={"version": before}, after={"version": scope.version}, reason=checked)
    return scope


def delete(*, tenant_id: UUID, actor: Actor, scope_id: UUID) -> Scope:
    """Delete a scope that nothing uses. One created later under the same path is another scope: it reaches none of the old blocks.

    Raises:
        NotFound: no such scope.
        Conflict: it is the root, has scopes below it, or keys that are not revoked.
    """
    locks.tenant(tenant_id)
    scope = _locked(tenant_id, scope_id)
    if scope.path == ROOT:
        raise Conflict("The root scope stays.")
    if Scope.objects.filter(tenant_id=tenant_id, path__startswith=f"{scope.path}/").exists():
        raise Conflict("There are scopes below this one: delete them first.")
    bound = ApiKey.objects.filter(tenant_id=tenant_id, scope_id=scope.id)
    if bound.filter(revoked_at=None).exists():
        raise Conflict("Keys are bound to this scope: revoke them first.")
    bound.update(scope=None)
    _record(scope, actor, "scope.delete", before={"version": scope.version})
    Scope.objects.filter(tenant_id=tenant_id, id=scope.id).delete()
    return scope


def _locked(tenant_id: UUID, scope_id: UUID) -> Scope:
    require_scope(tenant_id)
    scope = Scope.objects.select_for_update().filter(tenant_id=tenant_id, id=scope_id).first()
    if scope is None:
        raise NotFound
    return scope


def _record(
    scope: Scope, actor: Actor, action: str, *, before: dict[str, int] | None = None, after: dict[str, int] | None = None, reason: str = ""
) -> None:
    changes.record(
        tenant_id=scope.tenant_id,
        actor=actor,
        action=action,
        object_id=scope.id,
        object_label=str(scope),
        before=before,
        after=after,
        reason=reason,
    )
