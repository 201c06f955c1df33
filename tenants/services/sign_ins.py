"""Signing in and what belongs to it, in the audit log of every tenant that it concerns; what is tried at unknown addresses, in the platform's.

Everything is counted first, by person, kind and quarter of an hour: one row whatever is tried and whether or not the address has an account, so that
no answer's time tells who has one, and no flood of attempts fills a log. What somebody does who has proven their password is written at once, the
first ``MAX_AT_ONCE`` times in a window. All else is written when its window is over, as one entry with its number, by the worker ``bulk``.

A tenant hears of a person from when they have been there themselves: anybody's address can be added to a tenant, and would be watched otherwise.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection, transaction

from tenants import changes, queries
from tenants.actor import Actor, system
from tenants.models import PLATFORM_SLUG, Membership, SignInCount, User
from tenants.scoping import tenant_scope

WINDOW = timedelta(minutes=15)
MAX_AT_ONCE = 20  # entries of one person and kind in a window; further ones are counted
MAX_TENANTS = 100  # that one event is written in, by slug
SWEEP_S = 20.0
NOBODY = UUID(int=0)  # all addresses without an account together
_NOBODY = "addresses without an account"
About = tuple[UUID | None, str]  # a person's id and address, as the entry shows them
_log = logging.getLogger(__name__)


class Kind(StrEnum):
    """What happened, as the audit log's action."""

    SUCCESS = "sign_in.success"
    FAILED = "sign_in.failed"
    CODE_REFUSED = "sign_in.code_refused"
    RESET_ASKED = "password_reset.asked"
    RESET_USED = "password_reset.used"
    SESSION_ENDED = "session.ended"


_AT_ONCE = frozenset({Kind.SUCCESS, Kind.CODE_REFUSED, Kind.RESET_USED, Kind.SESSION_ENDED})
_COUNT = """
INSERT INTO tenants_signincount AS held (id, subject, kind, window_started_at, attempts, peer_address, first_at, last_at)
VALUES (gen_random_uuid(), %(subject)s, %(kind)s, %(window)s, 1, %(peer)s, %(now)s, %(now)s)
ON CONFLICT (subject, kind, window_started_at) DO UPDATE
  SET attempts = held.attempts + 1, peer_address = excluded.peer_address, last_at = excluded.last_at
RETURNING attempts
"""


def tried(kind: Kind, *, email: str, peer_address: str, now: datetime) -> None:
    """Somebody who has proven nothing tried something at an address. The same work whether or not it has an account."""
    subject = User.objects.filter(email=email.strip().lower()).values_list("id", flat=True).first()
    _counted(subject or NOBODY, kind, peer_address, now)


@transaction.atomic
def done(kind: Kind, *, user: User, actor: Actor, now: datetime, after: dict[str, Any] | None = None) -> None:
    """A person did something, or had something refused, who has proven at least their password. ``after`` holds no secret."""
    if _counted(user.id, kind, actor.peer_address, now) <= MAX_AT_ONCE:
        _write(user, kind, actor, after)


def _counted(subject: UUID, kind: Kind, peer_address: str, now: datetime) -> int:
    """How often in this window, this time included."""
    seconds = int(WINDOW.total_seconds())
    window = datetime.fromtimestamp(int(now.timestamp()) // seconds * seconds, tz=UTC)
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, {"subject": subject, "kind": kind.value, "window": window, "peer": peer_address[:64], "now": now})
        row = cursor.fetchone()
    return int(row[0])


def _write(user: User, kind: Kind, actor: Actor, after: dict[str, Any] | None) -> None:
    if user.is_platform_operator:
        _write_for_platform(kind, actor, (user.id, user.email), after)
        return
    seats = queries.tenants_of_user(user)
    if len(seats) > MAX_TENANTS:
        _log.warning("a person has seats in %d tenants; %s is written in %d of them (MAX_TENANTS)", len(seats), kind, MAX_TENANTS)
    for seat in seats[:MAX_TENANTS]:
        with tenant_scope(seat.tenant_id):
            if Membership.objects.filter(tenant_id=seat.tenant_id, user=user, entered_at__isnull=False).exists():
                _entry(seat.tenant_id, kind, actor, (user.id, user.email), after)


def _write_for_platform(kind: Kind, actor: Actor, about: About, after: dict[str, Any] | None) -> None:
    platform = queries.tenant_id_of(PLATFORM_SLUG)
    if platform is not None:
        with tenant_scope(platform):
            _entry(platform, kind, actor, about, after)


def _entry(tenant_id: UUID, kind: Kind, actor: Actor, about: About, after: dict[str, Any] | None) -> None:
    object_id, label = about
    changes.record(tenant_id=tenant_id, actor=actor, action=kind.value, object_id=object_id, object_label=label, after=after, publishes=False)


# ---- the worker ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What a sweep did: windows that were over, and entries of them."""

    windows: int
    entries: int


def sweep(now: datetime, *, within_s: float = SWEEP_S) -> Told:
    """Write what was only counted in windows that are over, and forget those. Killed at any point, a window is told or still there."""
    began_s, windows, entries = time.monotonic(), 0, 0
    while time.monotonic() - began_s < within_s:
        with transaction.atomic():
            rows = SignInCount.objects.select_for_update(skip_locked=True).filter(window_started_at__lte=now - WINDOW)
            row = rows.order_by("window_started_at", "id").first()
            if row is None:
                break
            entries += _told(row)
            row.delete()
        windows += 1
    return Told(windows, entries)


def _told(row: SignInCount) -> bool:
    """Write one entry for what was counted and not written; a row that cannot be told is given up, with a line in the log."""
    try:
        kind = Kind(row.kind)
    except ValueError:  # counted by another version of this program
        _log.warning("%d times %s could not be written (no such kind here)", row.attempts, row.kind)
        return False
    rest = row.attempts - (min(row.attempts, MAX_AT_ONCE) if kind in _AT_ONCE else 0)
    if not rest:
        return False
    actor = system("sign-in", peer_address=row.peer_address)
    after = {"times": rest, "first": row.first_at.isoformat(timespec="seconds"), "last": row.last_at.isoformat(timespec="seconds")}
    try:
        with transaction.atomic():
            if row.subject == NOBODY:
                _write_for_platform(kind, actor, (None, _NOBODY), after)
            elif (user := User.objects.filter(id=row.subject).first()) is not None:
                _write(user, kind, actor, after)
    except DatabaseError as error:
        _log.warning("%d times %s could not be written (%s)", rest, kind, type(error).__name__)
        return False
    return True
