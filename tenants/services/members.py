"""Members of a tenant and their roles. Nobody gives away, changes or removes a role above their own, and one owner always stays."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.db.models import QuerySet

from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound
from tenants.core.roles import Role
from tenants.models import PLATFORM_SLUG, ApiKey, Membership, User
from tenants.services import accounts, api_keys, locks

MAX_MEMBERS_PER_TENANT = 500


def add(*, tenant_id: UUID, actor: Actor, email: str, role: str, ceiling: Role) -> Membership:
    """Make the person with this e-mail a member. The answer is the same whether or not they had an account before.

    Raises:
        Invalid: not an e-mail address or role, or this is the platform's tenant.
        Forbidden: the role is above ``ceiling``, the caller's own.
        Conflict: they are a member.
        LimitReached: ``MAX_MEMBERS_PER_TENANT``.
    """
    granted = api_keys.check_role(role, ceiling)
    address = accounts.normal_email(email)
    if locks.tenant(tenant_id).slug == PLATFORM_SLUG:
        raise Invalid("The platform has operators, not members: see the command operator.")
    if Membership.objects.filter(tenant_id=tenant_id).count() >= MAX_MEMBERS_PER_TENANT:
        raise LimitReached(f"A tenant has at most {MAX_MEMBERS_PER_TENANT} members (MAX_MEMBERS_PER_TENANT).")
    membership = Membership(tenant_id=tenant_id, user=accounts.ensure(email=address), role=granted.value)
    with refuse_on(membership_once_per_tenant=Conflict("This person is a member.", field="email")):
        membership.save()
    _record(membership, actor, "member.add", after={"role": granted.value})
    return membership


def change_role(*, tenant_id: UUID, actor: Actor, membership_id: UUID, role: str, ceiling: Role) -> Membership:
    """Give a member another role. Safe to repeat.

    Raises:
        NotFound: no such member.
        Invalid: no such role.
        Forbidden: the old or the new role is above ``ceiling``.
        Conflict: they are the last owner who can sign in.
    """
    granted = api_keys.check_role(role, ceiling)
    membership = _locked(tenant_id, membership_id, ceiling)
    before = membership.role
    if before == granted.value:
        return membership
    _keep_an_owner(membership)
    membership.role = granted.value
    membership.save(update_fields=["role"])
    _record(membership, actor, "member.change_role", before={"role": before}, after={"role": granted.value})
    return membership


def remove(*, tenant_id: UUID, actor: Actor, membership_id: UUID, ceiling: Role) -> Membership:
    """End a membership; the person's account stays. Returns it as it was.

    Raises:
        NotFound: no such member.
        Forbidden: their role is above ``ceiling``.
        Conflict: they are the last owner who can sign in.
    """
    membership = _locked(tenant_id, membership_id, ceiling)
    _keep_an_owner(membership)
    _record(membership, actor, "member.remove", before={"role": membership.role})
    Membership.objects.filter(tenant_id=tenant_id, id=membership_id).delete()
    return membership


def note_entry(*, tenant_id: UUID, user: User, now: datetime) -> None:
    """Note that a member is here themselves, the first time; inside the tenant's scope. No change of configuration: nothing is recorded."""
    Membership.objects.filter(tenant_id=tenant_id, user=user, entered_at=None).update(entered_at=now)


def tokens_of(membership: Membership) -> QuerySet[ApiKey]:
    """Control tokens of the tenant that this member issued and that are not revoked, inside its scope. They go on when the member goes."""
    return ApiKey.objects.filter(tenant_id=membership.tenant_id, kind=Kind.CONTROL.value, created_by=membership.user.email, revoked_at=None).order_by(
        "name"
    )


def _locked(tenant_id: UUID, membership_id: UUID, ceiling: Role) -> Membership:
    locks.tenant(tenant_id)  # so that of two owners who leave at once one stays
    membership = Membership.objects.select_related("user").filter(tenant_id=tenant_id, id=membership_id).first()
    if membership is None:
        raise NotFound
    if api_keys.rank(Role(membership.role)) > api_keys.rank(ceiling):
        raise Forbidden("This member has a role above your own.")
    return membership


def _keep_an_owner(membership: Membership) -> None:
    if membership.role != Role.OWNER.value:
        return
    others = Membership.objects.filter(tenant_id=membership.tenant_id, role=Role.OWNER.value).exclude(id=membership.id)
    # An account that was switched off, or whose address never chose a password, opens nothing.
    if not others.filter(user__is_active=True).exclude(user__password__startswith=UNUSABLE_PASSWORD_PREFIX).exists():
        raise Conflict("A tenant keeps at least one owner who can sign in: name another first.")


def _record(membership: Membership, actor: Actor, action: str, *, before: dict[str, str] | None = None, after: dict[str, str] | None = None) -> None:
    changes.record(
        tenant_id=membership.tenant_id,
        actor=actor,
        action=action,
        object_id=membership.id,
        object_label=membership.user.email,
        before=before,
        after=after,
        publishes=False,
    )
