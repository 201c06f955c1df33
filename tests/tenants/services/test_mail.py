"""Mail: queued alike for known and unknown addresses, sent by a worker, tried again within bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail as outbox
from django.core.mail.backends.locmem import EmailBackend
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.models import OutgoingMail, User
from tenants.services import accounts, mail
from tests.tenants.people import link, mailed

pytestmark = pytest.mark.django_db


class Failing(EmailBackend):
    """A server that is away."""

    def send_messages(self, messages: Any) -> int:
        raise ConnectionRefusedError


def _user(email: str = "ada@oak.example") -> User:
    return accounts.create(email=email, password=None)


def test_a_known_and_an_unknown_address_take_the_same_work() -> None:
    """The same statements in the web, so that time tells nothing; only the worker looks, and writes to the known one alone."""
    _user()
    statements = []
    for address in ("ada@oak.example", "nobody@oak.example"):
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert mail.queue(kind=mail.RESET, address=address)
        statements.append([query["sql"].split("VALUES")[0] for query in seen.captured_queries])
    assert statements[0] == statements[1]
    assert mail.sweep() == 1
    assert [message.to for message in outbox.outbox] == [["ada@oak.example"]]
    assert OutgoingMail.objects.count() == 0


def test_nothing_that_waits_opens_anything() -> None:
    """Neither link nor token is in the queue: the worker makes them."""
    _user()
    mail.queue(kind=mail.RESET, address="ada@oak.example")
    with connection.cursor() as cursor:
        cursor.execute("SELECT m::text FROM tenants_outgoingmail m")
        waiting = str(cursor.fetchall())
    (body,) = mailed("ada@oak.example")
    assert link(body).startswith("/reset?u=")
    assert not [part for part in link(body).replace("&", "=").split("=")[1::2] if part in waiting]


def test_links_lead_to_the_named_console(settings: Any) -> None:
    """Not to whatever host a request claimed."""
    settings.CONSOLE_URL = "https://console.example/"
    _user()
    mail.queue(kind=mail.RESET, address="ada@oak.example")
    assert "https://console.example/reset?" in mailed("ada@oak.example")[0]


def test_a_server_that_is_away_is_asked_again_and_not_for_ever(settings: Any) -> None:
    settings.EMAIL_BACKEND = f"{__name__}.Failing"
    _user()
    mail.queue(kind=mail.RESET, address="ada@oak.example")
    for attempt in range(1, mail.MAX_ATTEMPTS):
        assert mail.sweep() == 0
        row = OutgoingMail.objects.get()
        assert row.attempts == attempt
        assert row.next_at > timezone.now()
        OutgoingMail.objects.update(next_at=timezone.now())
    mail.sweep()
    assert OutgoingMail.objects.count() == 0


def test_it_goes_out_when_the_server_is_back(settings: Any) -> None:
    backend, settings.EMAIL_BACKEND = settings.EMAIL_BACKEND, f"{__name__}.Failing"
    _user()
    mail.queue(kind=mail.RESET, address="ada@oak.example")
    mail.sweep()
    settings.EMAIL_BACKEND = backend
    OutgoingMail.objects.update(next_at=timezone.now() - timedelta(seconds=1))
    assert mail.sweep() == 1


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "MAX_QUEUED", 1)
    assert mail.queue(kind=mail.CHANGED, address="a@oak.example")
    assert not mail.queue(kind=mail.CHANGED, address="b@oak.example")
    assert OutgoingMail.objects.count() == 1


def test_a_changed_password_is_told_to_its_person_and_a_first_one_is_not() -> None:
    user = _user()
    accounts.set_password(user=user, password="correct horse battery")
    assert mailed(user.email) == []
    accounts.set_password(user=user, password="another horse battery")
    (body,) = mailed(user.email)
    assert "was changed" in body
    assert "horse" not in body
