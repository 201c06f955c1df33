"""What is read of tenants, people, keys, scopes and the audit log, by API, console and publisher alike. Nothing here changes a row.

Functions that take a ``tenant_id`` run inside its tenant scope; the few that read across tenants go through the named database functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import F, Model, Q, QuerySet

from tenants.core.api_key import Kind
from tenants.core.errors import Forbidden, Invalid, NotFound
from tenants.core.roles import Permission, Role, permissions
from tenants.core.snapshot import KeyEntry, ScopeEntry
from tenants.models import PLATFORM_SLUG, ApiKey, AuditEntry, Invitation, Membership, PersonSession, Scope, Tenant, User

TENANT_HEADER = "X-Saltroute-Tenant"

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Seat:
    """A caller's place in one tenant."""

    tenant_id: UUID
    slug: str
    name: str
    role: Role
    platform: bool = False
    suspended: bool = False
    second_factor_required: bool = False  # of people in the console

    @property
    def permissions(self) -> frozenset[Permission]:
        """What may be done from this seat."""
        return permissions(self.role, platform_operator=self.platform)


@dataclass(frozen=True, slots=True)
class TenantRef:
    """A tenant as the platform sees it from outside."""

    tenant_id: UUID
    slug: str
    config_version: int
    deleted: bool


PASSING = timedelta(hours=1)  # a key that lives no longer, as the playground's, ends as planned: no alert, no quota, no declaration speaks of it


class KeyStatus(StrEnum):
    """Whether a key opens anything."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


def key_status(key: ApiKey, now: datetime) -> KeyStatus:
    """The one rule by which a key of either kind counts as usable."""
    if key.revoked_at is not None:
        return KeyStatus.REVOKED
    if key.expires_at is not None and key.expires_at <= now:
        return KeyStatus.EXPIRED
    return KeyStatus.ACTIVE


# ---- across tenants, by named functions ------------------------------------------------------------------------------------------------------


def tenants_of_user(user: User) -> list[Seat]:
    """The tenants in which a person has a seat, by slug; for a platform operator all of them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id, slug, name, role, suspended, require_second_factor FROM saltroute_memberships(%s)", [user.id])
        rows = cursor.fetchall()
    platform = user.is_platform_operator and user.is_active
    # An operator who is also a member comes twice; the operator's row says owner.
    ranked = sorted(rows, key=lambda row: list(Role).index(Role(row[3])))
    seats = {row[0]: Seat(row[0], row[1], row[2], Role(row[3]), platform=platform, suspended=row[4], second_factor_required=row[5]) for row in ranked}
    return sorted(seats.values(), key=lambda seat: seat.slug)


def seat_of_user(user: User, slug: str | None) -> Seat:
    """The seat a person acts from: the named tenant, the only one they have, or for a platform operator the platform.

    Raises:
        NotFound: no such tenant, or not theirs.
        Invalid: none named and they have several.
        Forbidden: they have none.
    """
    seats = tenants_of_user(user)
    if slug is None and user.is_platform_operator:
        slug = PLATFORM_SLUG
    if slug is not None:
        seat = next((seat for seat in seats if seat.slug == slug), None)
        if seat is None:
            raise NotFound
        return seat
    if not seats:
        raise Forbidden("You are a member of no tenant.")
    if len(seats) > 1:
        raise Invalid(f"You are a member of several tenants: name one in {TENANT_HEADER}.", field=TENANT_HEADER)
    return seats[0]


def sessions_of(user: User) -> QuerySet[PersonSession]:
    """A person's sessions that may still be good, newest use first; tenants.sessions holds their bounds."""
    return PersonSession.objects.filter(user=user).order_by("-last_seen_at", "id")


def invitation_by_digest(digest: bytes) -> tuple[UUID, UUID] | None:
    """The tenant and id of the invitation whose token has this digest, in whatever state; None for any other."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id, invitation_id FROM saltroute_invitation(%s)", [digest])
        row = cursor.fetchone()
    return (row[0], row[1]) if row else None


def all_tenants(*, deleted: bool = False) -> list[TenantRef]:
    """Every tenant, by slug; for the platform, sweeps and commands. ``deleted`` adds the tombstones."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id, slug, config_version, deleted FROM saltroute_tenants()")
        found = [TenantRef(*row) for row in cursor.fetchall()]
    return sorted((ref for ref in found if deleted or not ref.deleted), key=lambda ref: ref.slug)


def tenant_id_of(slug: str) -> UUID | None:
    """The living tenant with this slug. For the platform and commands; a tenant's own caller comes by its seat."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenant_id FROM saltroute_tenants() WHERE slug = %s AND NOT deleted", [slug])
        row = cursor.fetchone()
    return row[0] if row else None


# ---- inside a tenant scope -------------------------------------------------------------------------------------------------------------------


def tenant(tenant_id: UUID) -> Tenant:
    """The tenant's own row.

    Raises:
        NotFound: absent, deleted, or not in scope.
    """
    row = Tenant.objects.filter(id=tenant_id, deleted_at=None).first()
    if row is None:
        raise NotFound
    return row


def members(tenant_id: UUID) -> QuerySet[Membership]:
    """Memberships with their people."""
    return Membership.objects.filter(tenant_id=tenant_id).select_related("user")


def member(tenant_id: UUID, reference: str) -> Membership:
    """A membership by its id or the person's e-mail address.

    Raises:
        NotFound: none.
    """
    return _one(members(tenant_id), reference, Q(user__email=reference.strip().lower()))


def invitations(tenant_id: UUID) -> QuerySet[Invitation]:
    """Every invitation, accepted and revoked ones included; the state is :func:`invitation_state`."""
    return Invitation.objects.filter(tenant_id=tenant_id)


def invitation(tenant_id: UUID, reference: str) -> Invitation:
    """An invitation by its id, or an open one by its address.

    Raises:
        NotFound: none.
    """
    return _one(invitations(tenant_id), reference, Q(email=reference.strip().lower(), accepted_at=None, revoked_at=None))


def invitation_state(row: Invitation, now: datetime) -> str:
    """``open``, ``accepted``, ``revoked`` or ``expired``: the one rule by which a link is good."""
    if row.accepted_at is not None:
        return "accepted"
    if row.revoked_at is not None:
        return "revoked"
    return "open" if row.expires_at > now else "expired"


def keys(tenant_id: UUID, kind: Kind) -> QuerySet[ApiKey]:
    """Keys of one kind, revoked ones included; the status is :func:`key_status`."""
    return ApiKey.objects.filter(tenant_id=tenant_id, kind=kind.value).select_related("scope")


def lasting() -> Q:
    """Keys that were issued for longer than ``PASSING``, or have no end: those that somebody plans with."""
    return Q(expires_at=None) | Q(expires_at__gt=F("created_at") + PASSING)


def passes(key: ApiKey) -> bool:
    """Whether a key was issued to end within ``PASSING``; the opposite of :func:`lasting`."""
    return key.expires_at is not None and key.expires_at <= key.created_at + PASSING


def with_status(rows: QuerySet[ApiKey], status: str | None) -> QuerySet[ApiKey]:
    """Keys that are ``current`` (not revoked) or ``revoked``; None is all.

    Raises:
        Invalid: another word.
    """
    if status not in (None, "current", "revoked"):
        raise Invalid("Use current or revoked.", field="status")
    return rows if status is None else rows.filter(revoked_at__isnull=status == "current")


def key(tenant_id: UUID, kind: Kind, reference: str) -> ApiKey:
    """A key by its id, or by the name of one that is not revoked.

    Raises:
        NotFound: none of this kind.
    """
    return _one(keys(tenant_id, kind), reference, Q(name=reference, revoked_at=None))


def scopes(tenant_id: UUID) -> QuerySet[Scope]:
    """All auth scopes, the root included."""
    return Scope.objects.filter(tenant_id=tenant_id)


def scope(tenant_id: UUID, reference: str) -> Scope:
    """A scope by its id or path; the empty path is the root.

    Raises:
        NotFound: none.
    """
    return _one(scopes(tenant_id), reference, Q(path=reference))


def audit_log(tenant_id: UUID, *, action: str | None = None, object_id: UUID | None = None) -> QuerySet[AuditEntry]:
    """What was changed, by whom; ``action`` is a whole action such as api_key.revoke, or its noun."""
    rows = AuditEntry.objects.filter(tenant_id=tenant_id)
    if action is not None:
        rows = rows.filter(Q(action=action) | Q(action__startswith=f"{action}."))
    return rows if object_id is None else rows.filter(object_id=object_id)


def snapshot_keys(tenant_id: UUID, now: datetime) -> tuple[KeyEntry, ...]:
    """The inference keys that routers must know: a control token never opens the data plane. Routers check the expiry themselves again."""
    rows = ApiKey.objects.filter(tenant_id=tenant_id, kind=Kind.INFERENCE.value, revoked_at=None, scope__isnull=False)
    rows = rows.filter(Q(expires_at=None) | Q(expires_at__gt=now)).order_by("id")
    return tuple(
        KeyEntry(
            id=row.id,
            name=row.name,
            digest=bytes(row.digest),
            scope_id=row.scope_id,
            expires_at=None if row.expires_at is None else row.expires_at.timestamp(),
            endpoints=None if row.endpoints is None else tuple(row.endpoints),
        )
        for row in rows
        if row.scope_id is not None
    )


def snapshot_scopes(tenant_id: UUID) -> tuple[ScopeEntry, ...]:
    """The auth scopes that routers must know."""
    return tuple(ScopeEntry(id=row.id, path=row.path, version=row.version) for row in scopes(tenant_id).order_by("path"))


def parse_uuid(reference: str) -> UUID | None:
    """A reference read as an id; None when it is a name."""
    try:
        return UUID(reference) if len(reference) == 36 else None
    except ValueError:
        return None


def _one(rows: QuerySet[M], reference: str, by_name: Q) -> M:
    row_id = parse_uuid(reference)
    # A name may look like an id: the id wins, so that a name cannot hide another object.
    row = rows.filter(id=row_id).first() if row_id is not None else None
    if row is None and "\0" not in reference:
        row = rows.filter(by_name).first()
    if row is None:
        raise NotFound
    return row
