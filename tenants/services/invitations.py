"""Invitations: an e-mail address is offered a role in a tenant, and whoever reads its mail may take it, once.

The link is mailed and shown to nobody else: it proves that its holder reads that address, and an account is known by its address in all tenants.
Platform operators alone are shown it, for installations that send no mail.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction

from tenants import changes, queries
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound, Unavailable
from tenants.core.roles import Role
from tenants.models import PLATFORM_SLUG, Invitation, Membership, Tenant, User
from tenants.scoping import require_scope, tenant_scope
from tenants.services import accounts, api_keys, invitation_tokens, locks, mail
from tenants.services.members import MAX_MEMBERS_PER_TENANT

MAX_OPEN_PER_TENANT = 100
MAX_A_DAY_PER_TENANT = 200  # so that a tenant cannot have us write to strangers without end


@dataclass(frozen=True, slots=True)
class Invited:
    """An invitation just made. ``link`` only for whom it may be shown."""

    invitation: Invitation
    link: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the holder of a link is offered. ``account``: the address has an account that somebody signs in to."""

    invitation: Invitation
    tenant: Tenant
    account: User | None


def invite(*, tenant_id: UUID, actor: Actor, email: str, role: str, ceiling: Role, now: datetime, show_link: bool = False) -> Invited:
    """Offer a role to an address. ``show_link`` is for platform operators: the caller has checked that the actor is one.

    Raises:
        Invalid: not an e-mail address or role, or this is the platform's tenant.
        Forbidden: the role is above ``ceiling``, the caller's own.
        Conflict: they are a member, or were invited already.
        LimitReached: ``MAX_OPEN_PER_TENANT``, ``MAX_A_DAY_PER_TENANT`` or ``MAX_MEMBERS_PER_TENANT``.
        Unavailable: this installation sends no mail, and the link may not be shown.
    """
    granted = api_keys.check_role(role, ceiling)
    address = accounts.normal_email(email)
    if not mail.configured() and not show_link:
        raise Unavailable("This installation sends no mail: ask a platform operator to invite, who is shown the link.")
    if locks.tenant(tenant_id).slug == PLATFORM_SLUG:
        raise Invalid("The platform has operators, not members: see the command operator.")
    if Membership.objects.filter(tenant_id=tenant_id, user__email=address).exists():
        raise Conflict("This person is a member.", field="email")
    _make_room(tenant_id, address, now)
    row = Invitation(id=uuid4(), tenant_id=tenant_id, email=address, role=granted.value, nonce=secrets.token_bytes(32), invited_by=actor.label)
    row.expires_at = now + timedelta(days=settings.INVITATION_DAYS)
    token = invitation_tokens.token_of(row)
    row.digest = invitation_tokens.digest(token)
    row.mail = "queued" if mail.queue(kind=mail.INVITATION, address=address, invitation_digest=row.digest) else "none"
    with refuse_on(invitation_open_once_per_address=Conflict("This person was invited already: revoke that invitation first.", field="email")):
        row.save(force_insert=True)
    _record(row, actor, "invitation.create", after={"role": row.role, "expires_at": row.expires_at.isoformat()})
    return Invited(row, mail.invitation_link(token) if show_link else None)


def revoke(*, tenant_id: UUID, actor: Actor, invitation_id: UUID, ceiling: Role, now: datetime) -> Invitation:
    """Make a link useless. Safe to repeat.

    Raises:
        NotFound: no such invitation.
        Forbidden: the offered role is above ``ceiling``.
        Conflict: it was accepted.
    """
    row = _locked(tenant_id, invitation_id)
    if api_keys.rank(Role(row.role)) > api_keys.rank(ceiling):
        raise Forbidden("This invitation offers a role above your own.")
    if row.accepted_at is not None:
        raise Conflict("This invitation was accepted: remove the member.")
    if row.revoked_at is None:
        row.revoked_at = now
        row.save(update_fields=["revoked_at"])
        _record(row, actor, "invitation.revoke", before={"role": row.role})
    return row


def offer(*, token: str, now: datetime) -> Offer:
    """What a link offers.

    Raises:
        NotFound: unknown, accepted, revoked, expired, or of a tenant that is gone: one answer.
    """
    found = queries.invitation_by_digest(invitation_tokens.digest(token)) if len(token) == invitation_tokens.TOKEN_CHARACTERS else None
    if found is None:
        raise NotFound
    with tenant_scope(found[0]):
        row = queries.invitation(*_named(found))
        if queries.invitation_state(row, now) != "open":
            raise NotFound
        tenant = queries.tenant(found[0])
    user = User.objects.filter(email=row.email).first()
    return Offer(row, tenant, user if user is not None and (user.has_usable_password() or not user.is_active) else None)


@transaction.atomic
def accept(*, token: str, user: User, peer_address: str, now: datetime) -> Membership:
    """Join as the signed-in person, whose address must be the invited one.

    Raises:
        NotFound: as :func:`offer`.
        Forbidden: another person's address.
        LimitReached: ``MAX_MEMBERS_PER_TENANT``.
    """
    return _accept(token, user, peer_address, now)


@transaction.atomic
def accept_new(*, token: str, name: str, password: str, peer_address: str, now: datetime) -> Membership:
    """Join with an account that this makes, or that was waiting for its first password.

    Raises:
        NotFound: as :func:`offer`.
        Invalid: the name or the password is not acceptable.
        Conflict: the address has an account: sign in to it.
        LimitReached: ``MAX_MEMBERS_PER_TENANT``.
    """
    offered = offer(token=token, now=now)
    if offered.account is not None:
        raise Conflict("There is an account with this address: sign in first.")
    user = User.objects.select_for_update().get(id=accounts.ensure(email=offered.invitation.email).id)
    if user.has_usable_password():
        raise Conflict("There is an account with this address: sign in first.")
    membership = _accept(token, user, peer_address, now)
    actor = Actor(kind="user", id=user.id, label=user.email, peer_address=peer_address)
    accounts.rename(user=user, name=name, actor=actor)
    accounts.set_password(user=user, password=password, actor=actor)
    return membership


def _accept(token: str, user: User, peer_address: str, now: datetime) -> Membership:
    offered = offer(token=token, now=now)
    tenant_id = offered.tenant.id
    with tenant_scope(tenant_id):
        locks.tenant(tenant_id)
        row = _locked(tenant_id, offered.invitation.id)
        if queries.invitation_state(row, now) != "open":  # two at once: the second waited for the lock
            raise NotFound
        if user.email != row.email or not user.is_active:
            raise Forbidden("This invitation is for another address.")
        if Membership.objects.filter(tenant_id=tenant_id).count() >= MAX_MEMBERS_PER_TENANT:
            raise LimitReached(f"A tenant has at most {MAX_MEMBERS_PER_TENANT} members (MAX_MEMBERS_PER_TENANT).")
        row.accepted_at = now
        row.save(update_fields=["accepted_at"])
        membership = Membership(tenant=offered.tenant, user=user, role=row.role, entered_at=now)
        with refuse_on(membership_once_per_tenant=Conflict("You are a member of this tenant.")):
            membership.save()
        actor = Actor(kind="user", id=user.id, label=user.email, peer_address=peer_address)
        _record(row, actor, "invitation.accept", after={"role": row.role, "invited_by": row.invited_by})
        return membership


def _make_room(tenant_id: UUID, address: str, now: datetime) -> None:
    rows = Invitation.objects.filter(tenant_id=tenant_id)
    rows.filter(email=address, accepted_at=None, revoked_at=None, expires_at__lte=now).update(revoked_at=now)
    if rows.filter(accepted_at=None, revoked_at=None, expires_at__gt=now).count() >= MAX_OPEN_PER_TENANT:
        raise LimitReached(f"A tenant has at most {MAX_OPEN_PER_TENANT} open invitations (MAX_OPEN_PER_TENANT). Revoke one first.")
    if rows.filter(created_at__gt=now - timedelta(days=1)).count() >= MAX_A_DAY_PER_TENANT:
        raise LimitReached(f"A tenant sends at most {MAX_A_DAY_PER_TENANT} invitations a day (MAX_A_DAY_PER_TENANT).")
    if Membership.objects.filter(tenant_id=tenant_id).count() >= MAX_MEMBERS_PER_TENANT:
        raise LimitReached(f"A tenant has at most {MAX_MEMBERS_PER_TENANT} members (MAX_MEMBERS_PER_TENANT).")


def _locked(tenant_id: UUID, invitation_id: UUID) -> Invitation:
    require_scope(tenant_id)
    row = Invitation.objects.select_for_update().filter(tenant_id=tenant_id, id=invitation_id).first()
    if row is None:
        raise NotFound
    return row


def _named(found: tuple[UUID, UUID]) -> tuple[UUID, str]:
    return found[0], str(found[1])


def _record(row: Invitation, actor: Actor, action: str, *, before: dict[str, str] | None = None, after: dict[str, str] | None = None) -> None:
    changes.record(
        tenant_id=row.tenant_id,
        actor=actor,
        action=action,
        object_id=row.id,
        object_label=row.email,
        before=before,
        after=after,
        publishes=False,
    )
