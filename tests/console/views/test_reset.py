"""A new password by mail: one answer for every address, one use of a link, and nobody's second factor goes with it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as live
from django.contrib.auth.tokens import default_token_generator
from django.core import mail as outbox
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from console import throttle
from tenants.models import User
from tenants.services import mail
from tests.console import rows
from tests.tenants.people import link, mailed, with_second_factor

pytestmark = pytest.mark.django_db
NEW = {"password": "another long pass phrase", "again": "another long pass phrase"}


def _asked(email: str, client: Client | None = None) -> Any:
    return (client or Client()).post("/reset/ask", {"email": email})


def _link(email: str = "ada@example.com") -> str:
    _asked(email)
    return link(mailed(email)[-1])


def test_a_link_sets_a_password_once_and_ends_every_session() -> None:
    user = rows.person("ada@example.com")
    stolen = Client()
    stolen.force_login(user)
    path, client = _link(), Client()
    response = client.get(path)
    assert (response.status_code, response.headers["Location"]) == (302, "/reset/new")  # what is secret is in no address that stays open
    assert "ada@example.com" in client.get("/reset/new").content.decode()
    assert client.post("/reset/new", {**NEW, "again": "x"}).status_code == 400
    assert client.post("/reset/new", {"password": "password1234", "again": "password1234"}).status_code == 400
    assert client.post("/reset/new", NEW).headers["Location"] == "/login"
    assert stolen.get("/account").status_code == 302
    user.refresh_from_db()
    assert user.check_password(NEW["password"])
    assert Client().get(path).status_code == 404
    assert client.post("/reset/new", NEW).status_code == 404
    assert client.get("/account").status_code == 302  # it signs nobody in


@pytest.mark.parametrize("kind", ["unknown", "switched off"])
def test_an_address_without_an_account_gets_the_same_answer_and_no_mail(kind: str) -> None:
    """The same bytes but for the address and the token of the form, the same headers, the same statements."""
    rows.person("ada@example.com")
    if kind == "switched off":
        off = rows.person("off@example.com")
        User.objects.filter(id=off.id).update(is_active=False)
    other = "off@example.com"
    said = []
    for address in ("ada@example.com", other):
        with CaptureQueriesContext(connection) as seen:
            response = _asked(address)
        statements = [re.sub(r"'[^']*'|\d+", "?", query["sql"]) for query in seen.captured_queries]
        page = re.sub(r'value="[^"]*"', "", response.content.decode()).replace(address, "<address>")
        said.append((response.status_code, page, sorted(response.headers), len(statements), [one[:40] for one in statements]))
    assert said[0] == said[1]
    mail.sweep()
    assert [message.to for message in outbox.outbox] == [["ada@example.com"]]


def test_a_second_factor_is_still_asked_for() -> None:
    user = rows.person("ada@example.com")
    with_second_factor(user)
    client, path = Client(), _link()
    client.get(path)
    client.post("/reset/new", NEW)
    assert client.post("/login", {"email": "ada@example.com", "password": NEW["password"]}).headers["Location"] == "/login/code"


def test_a_link_is_void_after_a_sign_in_a_change_or_its_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    user = rows.person("ada@example.com")
    first = _link()
    assert Client().get(first).status_code == 302  # the control
    assert Client().post("/login", {"email": "ada@example.com", "password": rows.PASSWORD}).status_code == 302
    assert Client().get(first).status_code == 404
    second = _link()
    later = (timezone.now() + timedelta(seconds=live.PASSWORD_RESET_TIMEOUT + 2)).replace(tzinfo=None)
    monkeypatch.setattr(default_token_generator, "_now", lambda: later, raising=True)
    assert Client().get(second).status_code == 404
    assert user.is_active


@pytest.mark.parametrize(
    "path", ["/reset", "/reset?u=&t=", "/reset?u=!!&t=a-b", "/reset?u=MTIz&t=a-b", "/reset?t=a", "/reset/new", "/invitation", "/invitation?t=x"]
)
def test_what_is_no_link_makes_no_session(path: str) -> None:
    """So that nobody fills the table of sessions with nonsense."""
    response = Client().get(path)
    assert response.status_code == 404
    assert "sessionid" not in response.cookies


def test_asking_is_throttled_for_known_and_unknown_alike() -> None:
    rows.person("ada@example.com")
    for address in ("ada@example.com", "nobody@example.com"):
        for attempt in range(throttle.RESET_ATTEMPTS):
            client = Client(headers={"X-Forwarded-For": f"10.0.0.{attempt}"}, REMOTE_ADDR=f"192.0.2.{attempt}")
            assert _asked(address, client).status_code == 200
        assert _asked(address, Client(REMOTE_ADDR="198.51.100.1")).status_code == 429


def test_links_do_not_follow_the_host_header(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    rows.person("ada@example.com")
    Client().post("/reset/ask", {"email": "ada@example.com"}, headers={"Host": "evil.example"})
    (body,) = mailed("ada@example.com")
    assert "evil" not in body
    assert live.CONSOLE_URL in body


def test_without_mail_the_console_says_so(settings: Settings) -> None:
    settings.MAIL_IS_SET = False
    assert "Forgotten" not in Client().get("/login").content.decode()
    assert "sends no mail" in _asked("ada@example.com").content.decode()


@pytest.mark.parametrize("email", ["", "x", "a" * 300, "a\0@b.example"])
def test_what_is_no_address_is_refused(email: str) -> None:
    assert _asked(email).status_code == 400
