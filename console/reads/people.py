"""What the pages about people show: a person's own sessions and control tokens, and the members and invitations of a tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenants import queries, sessions
from tenants.core.api_key import Kind
from tenants.core.roles import Role
from tenants.models import ApiKey, Invitation, Membership, PersonSession, User
from tenants.queries import Seat
from tenants.scoping import tenant_scope
from tenants.services.api_keys import rank

MAX_SESSIONS = 100
MAX_TENANTS = 50  # whose control tokens are looked through
MAX_TOKENS = 200
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"), ("curl/", "curl"))
_SYSTEMS = (("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS X", "macOS"), ("Linux", "Linux"))


@dataclass(frozen=True, slots=True)
class OwnSession:
    """A session as its person sees it."""

    row: PersonSession
    current: bool
    browser: str


@dataclass(frozen=True, slots=True)
class OwnToken:
    """A control token that the person issued, and the tenant it opens."""

    slug: str
    row: ApiKey


@dataclass(frozen=True, slots=True)
class Member:
    """A member; ``reach`` says whether the reader's role allows to change or remove them."""

    row: Membership
    reach: bool
    own: bool


def own_sessions(user: User, current_key: str | None) -> list[OwnSession]:
    """Sessions that are in force, this one first, then newest use first."""
    rows = sessions.in_force().filter(user=user).order_by("-last_seen_at", "id")[:MAX_SESSIONS]
    here = sessions.stored(current_key) if current_key else ""
    found = [OwnSession(row=row, current=row.session_key == here, browser=browser(row.browser)) for row in rows]
    return sorted(found, key=lambda one: not one.current)


def browser(agent: str) -> str:
    """A browser's name for itself in two words; what it claims, no more."""
    name = next((word for mark, word in _BROWSERS if mark in agent), "")
    system = next((word for mark, word in _SYSTEMS if mark in agent), "")
    return " on ".join(word for word in (name, system) if word) or "unknown"


def own_tokens(user: User, seats: list[Seat]) -> list[OwnToken]:
    """Control tokens that this person issued and that open something still, in the first tenants they have a seat in."""
    found: list[OwnToken] = []
    for seat in seats[:MAX_TENANTS]:
        with tenant_scope(seat.tenant_id):
            rows = queries.keys(seat.tenant_id, Kind.CONTROL).filter(created_by=user.email, revoked_at=None).order_by("name")
            found += [OwnToken(seat.slug, row) for row in rows[:MAX_TOKENS]]
    return found[:MAX_TOKENS]


def members(tenant_id: UUID, seat: Seat, reader: User) -> list[Member]:
    """Everybody with a role, owners first, inside the tenant scope."""
    rows = sorted(queries.members(tenant_id), key=lambda row: (-rank(Role(row.role)), row.user.email))
    return [Member(row=row, reach=rank(Role(row.role)) <= rank(seat.role), own=row.user_id == reader.id) for row in rows]


def invitations(tenant_id: UUID, now: datetime) -> list[tuple[Invitation, str]]:
    """Invitations with their states, newest first; accepted ones are members by now."""
    rows = queries.invitations(tenant_id).filter(accepted_at=None).order_by("-created_at")[:MAX_SESSIONS]
    return [(row, queries.invitation_state(row, now)) for row in rows]
