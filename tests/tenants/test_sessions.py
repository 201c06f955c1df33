"""Sessions in the database: bounded in life and idle time, known to their person, their keys not readable from the table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as live
from django.test import Client
from django.utils import timezone

from tenants import sessions
from tenants.models import PersonSession, User
from tenants.services import accounts

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(db: None, settings: Any) -> User:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    return accounts.create(email="ada@oak.example", password=PASSWORD)


def _signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def _aged(**columns: Any) -> None:
    assert PersonSession.objects.update(**columns) == 1


def test_the_key_in_the_cookie_is_not_in_the_table(ada: User) -> None:
    """The control: its digest is, and finds the session."""
    key = _signed_in(ada).cookies[live.SESSION_COOKIE_NAME].value
    row = PersonSession.objects.get(user=ada)
    assert key not in (row.session_key, row.session_data, str(row.id))
    assert row.session_key == sessions.stored(key)
    assert not sessions.SessionStore(row.session_key).get("_auth_user_id")  # what is stored opens nothing
    assert sessions.SessionStore(key).get("_auth_user_id") == str(ada.id)


def test_a_session_ends_when_it_is_idle(ada: User) -> None:
    client = _signed_in(ada)
    _aged(last_seen_at=timezone.now() - timedelta(seconds=live.SESSION_IDLE_S - 60))
    assert client.get("/tenants").status_code == 200
    assert PersonSession.objects.get().last_seen_at > timezone.now() - timedelta(minutes=1)  # that page was a use
    _aged(last_seen_at=timezone.now() - timedelta(seconds=live.SESSION_IDLE_S + 1))
    assert client.get("/tenants").status_code == 302


def test_a_page_that_refreshes_itself_is_no_use(ada: User) -> None:
    """A forgotten tab asks every few seconds for its badge: it becomes idle all the same."""
    client, seen = _signed_in(ada), timezone.now() - timedelta(minutes=10)
    _aged(last_seen_at=seen)
    assert client.get("/tenants", headers={"HX-Request": "true"}).status_code == 200
    assert PersonSession.objects.get().last_seen_at == seen
    client.get("/tenants")
    assert PersonSession.objects.get().last_seen_at > seen


def test_a_session_ends_at_the_end_of_its_life_however_busy(ada: User) -> None:
    """Also when it is written to again and again, which moves Django's own date of expiry."""
    client = _signed_in(ada)
    for hours_before in (2, 1):
        _aged(created_at=timezone.now() - timedelta(seconds=live.SESSION_COOKIE_AGE) + timedelta(hours=hours_before))
        session = client.session
        session["written"] = hours_before
        session.save()
        assert client.get("/tenants").status_code == 200
    _aged(created_at=timezone.now() - timedelta(seconds=live.SESSION_COOKIE_AGE + 1))
    assert client.get("/tenants").status_code == 302


def test_a_new_password_ends_every_session_and_one_may_be_kept(ada: User) -> None:
    here, there = _signed_in(ada), _signed_in(ada)
    bob = _signed_in(accounts.create(email="bob@oak.example", password=PASSWORD))
    key = here.cookies[live.SESSION_COOKIE_NAME].value
    assert sessions.end_all(user=ada, but=key) == 1
    assert [client.get("/tenants").status_code for client in (here, there, bob)] == [200, 302, 200]
    accounts.set_password(user=ada, password="another horse battery")
    assert [client.get("/tenants").status_code for client in (here, bob)] == [302, 200]


def test_nobody_ends_anothers_session(ada: User) -> None:
    bob = accounts.create(email="bob@oak.example", password=PASSWORD)
    client = _signed_in(ada)
    row = PersonSession.objects.get(user=ada)
    assert not sessions.end(user=bob, session_id=row.id)
    assert client.get("/tenants").status_code == 200
    assert sessions.end(user=ada, session_id=row.id)
    assert client.get("/tenants").status_code == 302


def test_what_is_over_is_removed(ada: User) -> None:
    """By the purge at each sign-in, and by Django's own command; what is in force stays."""
    _signed_in(ada)
    _aged(last_seen_at=timezone.now() - timedelta(days=2))
    _signed_in(ada)
    sessions.purge()
    assert PersonSession.objects.count() == 1
    _aged(created_at=timezone.now() - timedelta(days=2))
    sessions.SessionStore.clear_expired()
    assert PersonSession.objects.count() == 0
