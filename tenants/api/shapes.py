"""What this part of the API takes and gives. Requests refuse unknown fields; answers hold no digest, and a secret only when it was just made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from tenants.api.bodies import Body, Moment
from tenants.core.roles import Permission, Role
from tenants.models import ApiKey, AuditEntry, Invitation, Membership, Scope, Tenant
from tenants.queries import KeyStatus, Seat, invitation_state, key_status

Reason = Annotated[str, msgspec.Meta(max_length=500, description="Goes to the audit log.")]


class TenantOut(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. ``config_version`` rises with every change that routers must learn of."""

    id: UUID
    slug: str
    name: str
    suspended: bool
    require_second_factor: bool
    config_version: int
    created_at: datetime


class TenantNew(Body):
    """A tenant to create."""

    slug: str
    name: str
    owner_email: str | None = None


class TenantChange(Body):
    """What to change of a tenant; absent fields stay."""

    name: str | UnsetType = UNSET
    suspended: bool | UnsetType = UNSET
    reason: Reason = ""


class SignInRules(Body):
    """How people get into this tenant's console."""

    require_second_factor: bool


class WithReason(Body):
    """Why."""

    reason: Reason = ""


class SeatOut(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that the caller may act in, and as what."""

    tenant_id: UUID
    slug: str
    name: str
    role: Role
    permissions: list[Permission]
    suspended: bool


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, as the API knows it."""

    kind: str
    label: str
    id: UUID | None
    platform: bool
    tenants: list[SeatOut]


class MemberOut(msgspec.Struct, frozen=True, kw_only=True):
    """A person's membership."""

    id: UUID
    email: str
    role: Role
    created_at: datetime


class MemberNew(Body):
    """A person to add, by e-mail."""

    email: str
    role: Role


class MemberChange(Body):
    """A member's new role."""

    role: Role


class InvitationOut(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation. ``state``: open, accepted, revoked or expired; ``mail``: queued, sent, failed, or none where no mail is sent."""

    id: UUID
    email: str
    role: Role
    state: str
    mail: str
    invited_by: str
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime | None
    revoked_at: datetime | None


class InvitationSent(InvitationOut, frozen=True, kw_only=True):
    """An invitation just made. ``link`` is null but for platform operators, who are shown it this once."""

    link: str | None


class KeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """An inference key. ``shown`` is its first characters; ``endpoints`` null opens all; ``scope`` is the path of the scope it is bound to."""

    id: UUID
    name: str
    shown: str
    status: KeyStatus
    scope: str | None
    scope_id: UUID | None
    endpoints: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class KeyIssued(KeyOut, frozen=True, kw_only=True):
    """An inference key just made. ``secret`` is shown this once; null when an answer is repeated."""

    secret: str | None


class KeyNew(Body):
    """An inference key to issue; ``scope`` "" is the root."""

    name: str
    scope: str = ""
    endpoints: list[str] | None = None
    expires_at: Moment | None = None


class KeyChange(Body):
    """What to change of an inference key; absent fields stay."""

    name: str | UnsetType = UNSET
    endpoints: list[str] | UnsetType | None = UNSET
    expires_at: Moment | UnsetType | None = UNSET


class TokenOut(msgspec.Struct, frozen=True, kw_only=True):
    """A control token. ``platform`` marks a platform operator's."""

    id: UUID
    name: str
    shown: str
    status: KeyStatus
    role: Role
    platform: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenIssued(TokenOut, frozen=True, kw_only=True):
    """A control token just made. ``secret`` is shown this once; null when an answer is repeated."""

    secret: str | None


class TokenNew(Body):
    """A control token to issue. In the platform's tenant every token is a platform operator's, and ``role`` must be owner."""

    name: str
    role: Role
    expires_at: Moment | None = None


class TokenChange(Body):
    """What to change of a control token; absent fields stay."""

    name: str | UnsetType = UNSET
    expires_at: Moment | UnsetType | None = UNSET


class ScopeOut(msgspec.Struct, frozen=True, kw_only=True):
    """An auth scope. Raising ``version`` makes everything cached under the old one unreachable."""

    id: UUID
    path: str
    version: int
    created_at: datetime


class ScopeNew(Body):
    """A scope to create: slugs joined by slashes; its parent exists."""

    path: str


class RaiseScope(Body):
    """Why a scope's version is raised."""

    reason: Reason


class AuditOut(msgspec.Struct, frozen=True, kw_only=True):
    """One change: who, what, before and after."""

    id: UUID
    at: datetime
    actor_kind: str
    actor_id: UUID | None
    actor: str
    peer_address: str
    action: str
    object_id: UUID | None
    object: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str
    config_version: int | None


def tenant_out(row: Tenant) -> TenantOut:
    """A tenant's row as answered."""
    return TenantOut(
        id=row.id,
        slug=row.slug,
        name=row.name,
        suspended=row.suspended,
        require_second_factor=row.require_second_factor,
        config_version=row.config_version,
        created_at=row.created_at,
    )


def seat_out(seat: Seat) -> SeatOut:
    """A seat as answered."""
    return SeatOut(
        tenant_id=seat.tenant_id,
        slug=seat.slug,
        name=seat.name,
        role=seat.role,
        permissions=sorted(seat.permissions),
        suspended=seat.suspended,
    )


def member_out(row: Membership) -> MemberOut:
    """A membership as answered. The person's name is left out: it would tell an inviter who had an account before."""
    return MemberOut(id=row.id, email=row.user.email, role=Role(row.role), created_at=row.created_at)


def key_out(row: ApiKey, now: datetime) -> KeyOut:
    """An inference key as answered."""
    return KeyOut(
        id=row.id,
        name=row.name,
        shown=row.shown,
        status=key_status(row, now),
        scope=None if row.scope is None else row.scope.path,
        scope_id=row.scope_id,
        endpoints=row.endpoints,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


def invitation_out(row: Invitation, now: datetime, shape: type[InvitationOut] = InvitationOut, **more: str | None) -> InvitationOut:
    """An invitation as answered."""
    return shape(
        id=row.id,
        email=row.email,
        role=Role(row.role),
        state=invitation_state(row, now),
        mail=row.mail,
        invited_by=row.invited_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        accepted_at=row.accepted_at,
        revoked_at=row.revoked_at,
        **more,
    )


def token_out(row: ApiKey, now: datetime) -> TokenOut:
    """A control token as answered."""
    return TokenOut(
        id=row.id,
        name=row.name,
        shown=row.shown,
        status=key_status(row, now),
        role=Role(row.role),
        platform=row.platform,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )


def scope_out(row: Scope) -> ScopeOut:
    """A scope as answered."""
    return ScopeOut(id=row.id, path=row.path, version=row.version, created_at=row.created_at)


def audit_out(row: AuditEntry) -> AuditOut:
    """An entry of the audit log as answered."""
    return AuditOut(
        id=row.id,
        at=row.created_at,
        actor_kind=row.actor_kind,
        actor_id=row.actor_id,
        actor=row.actor_label,
        peer_address=row.peer_address,
        action=row.action,
        object_id=row.object_id,
        object=row.object_label,
        before=row.before,
        after=row.after,
        reason=row.reason,
        config_version=row.config_version,
    )


def given(change: Body) -> dict[str, Any]:
    """The fields that a change names."""
    return {name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not UNSET}
