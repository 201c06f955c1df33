"""Sessions of the console in PostgreSQL: known to their person, bounded in life and idle time, their keys stored as digests alone.

Django's own database store, with another table: ``SESSION_ENGINE`` names this module. A session that is too old or was idle for too long is not
found any more, so nothing else needs to ask.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants.models import PersonSession, User

TOUCH_EVERY = timedelta(minutes=1)
PURGED_AT_ONCE = 100  # rows
PEER, BROWSER = "peer_address", "browser"  # kept in the session's data by whoever signs a person in
BROWSER_MAX = 200  # characters


def stored(session_key: str | None) -> str:
    """What is stored of a session's key: its SHA-256, 64 hexadecimal digits."""
    return hashlib.sha256((session_key or "").encode()).hexdigest()


def in_force() -> QuerySet[PersonSession]:
    """Sessions that are neither too old nor were idle for too long."""
    now = timezone.now()
    return PersonSession.objects.filter(
        expire_date__gt=now,
        created_at__gt=now - timedelta(seconds=settings.SESSION_COOKIE_AGE),
        last_seen_at__gt=now - timedelta(seconds=settings.SESSION_IDLE_S),
    )


class SessionStore(DatabaseStore):
    """A session whose row says whose it is, since when, and from where."""

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(session_key)
        self.row: PersonSession | None = None

    @classmethod
    def get_model_class(cls) -> Any:
        """The table."""
        return PersonSession

    def _get_session_from_db(self) -> PersonSession | None:
        self.row = in_force().filter(session_key=stored(self.session_key)).first()
        if self.row is None:
            self._session_key = None
        return self.row

    def exists(self, session_key: str) -> bool:
        """Whether there is such a session."""
        return PersonSession.objects.filter(session_key=stored(session_key)).exists()

    def delete(self, session_key: str | None = None) -> None:
        """End a session; this one when none is named."""
        PersonSession.objects.filter(session_key=stored(session_key or self.session_key)).delete()

    def create_model_instance(self, data: dict[str, Any]) -> Any:  # Any: the stubs want Django's own base of the table
        """The row to write. A session that goes on keeps its age; one under a new key begins anew."""
        key = stored(self._get_or_create_session_key())  # type: ignore[attr-defined]  # missing in the stubs
        before = self.row if self.row is not None and self.row.session_key == key else None
        user_id = data.get(SESSION_KEY)
        self.row = PersonSession(
            session_key=key,
            session_data=self.encode(data),
            expire_date=self.get_expiry_date(),
            id=before.id if before else uuid4(),
            user_id=UUID(user_id) if user_id else None,
            peer_address=str(data.get(PEER, ""))[:64],
            browser=str(data.get(BROWSER, ""))[:BROWSER_MAX],
        )
        if before:
            self.row.created_at, self.row.last_seen_at = before.created_at, before.last_seen_at
        return self.row

    def touch(self) -> None:
        """Note that the session is used, once a minute at most."""
        now = timezone.now()
        if self.row is not None and self.row.last_seen_at <= now - TOUCH_EVERY:
            PersonSession.objects.filter(session_key=self.row.session_key, last_seen_at__lt=now).update(last_seen_at=now)
            self.row.last_seen_at = now

    @classmethod
    def clear_expired(cls) -> None:
        """Remove every session that is not in force; asked for by ``manage.py clearsessions``."""
        PersonSession.objects.exclude(session_key__in=in_force().values("session_key")).delete()


def purge() -> None:
    """Remove some sessions that are over: called at each sign-in, so that the table is bounded without another task."""
    now = timezone.now()
    over = Q(expire_date__lte=now) | Q(last_seen_at__lte=now - timedelta(seconds=settings.SESSION_IDLE_S))
    rows = PersonSession.objects.filter(over).values_list("session_key", flat=True)[:PURGED_AT_ONCE]
    PersonSession.objects.filter(session_key__in=list(rows)).delete()


def end(*, user: User, session_id: UUID) -> bool:
    """End one of a person's own sessions; False when they have no such."""
    return bool(PersonSession.objects.filter(user=user, id=session_id).delete()[0])


def end_all(*, user: User, but: str | None = None) -> int:
    """End every session of a person, but for the one with the key ``but``. Returns how many ended."""
    return PersonSession.objects.filter(user=user).exclude(session_key=stored(but) if but else "").delete()[0]
