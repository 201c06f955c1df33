"""Signing in and out: what an answer may and may not tell."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.test import Client
from pytest_django import Settings

from console import throttle
from tests.console import rows

pytestmark = pytest.mark.django_db


def _post(client: Client, email: str, password: str, **extra: str) -> Any:
    return client.post("/login", {"email": email, "password": password, **extra})


def _said(response: Any, email: str) -> tuple[int, str]:
    """Status and page without what differs by request: the CSRF token and the address that was typed."""
    page = re.sub(r'name="csrfmiddlewaretoken" value="[^"]+"', "", response.content.decode())
    return response.status_code, page.replace(email, "")


def test_a_person_signs_in_and_out() -> None:
    rows.person("ada@example.com")
    client = Client()
    response = _post(client, " Ada@Example.com ", rows.PASSWORD, next="/tenants")
    assert (response.status_code, response.headers["Location"]) == (302, "/tenants")
    cookie = response.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert client.get("/tenants").status_code == 200
    assert client.get("/login").headers["Location"] == "/"
    assert client.get("/logout").status_code == 405
    assert client.post("/logout").headers["Location"] == "/login"
    assert client.get("/tenants").status_code == 302


def test_unknown_wrong_and_switched_off_are_one_answer() -> None:
    rows.person("ada@example.com")
    off = rows.person("off@example.com")
    off.is_active = False
    off.save()
    answers = {
        _said(_post(Client(), email, password), email)
        for email, password in [("nobody@example.com", "x" * 14), ("ada@example.com", "x" * 14), ("off@example.com", rows.PASSWORD)]
    }
    assert len(answers) == 1
    assert answers.pop()[0] == 400


class CountingHasher(MD5PasswordHasher):
    """Counts how often a password is hashed."""

    hashed = 0

    def encode(self, password: str, salt: str) -> str:
        CountingHasher.hashed += 1
        return super().encode(password, salt)


def test_an_unknown_address_costs_the_same_hashing(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = [f"{__name__}.CountingHasher"]
    rows.person("ada@example.com")
    counts = []
    for email in ("ada@example.com", "nobody@example.com"):
        CountingHasher.hashed = 0
        _post(Client(), email, "not the password")
        counts.append(CountingHasher.hashed)
    assert counts == [1, 1]


@pytest.mark.parametrize("email", ["ada@example.com", "nobody@example.com"])
def test_guessing_is_throttled_and_no_header_helps(email: str) -> None:
    """Known and unknown accounts alike; the right password does not open a shut account."""
    rows.person("ada@example.com")
    for attempt in range(throttle.ACCOUNT_ATTEMPTS):
        assert _post(Client(headers={"X-Forwarded-For": f"10.0.0.{attempt}"}), email, "guess").status_code == 400
    response = _post(Client(headers={"X-Forwarded-For": "10.9.9.9", "X-Real-IP": "10.9.9.8", "Forwarded": "for=10.9.9.7"}), email, rows.PASSWORD)
    assert response.status_code == 429
    assert 0 < int(response.headers["Retry-After"]) <= 900
    assert "Too many attempts" in response.content.decode()


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "tenants"])
def test_the_way_back_stays_on_this_site(wanted: str) -> None:
    rows.person("ada@example.com")
    assert _post(Client(), "ada@example.com", rows.PASSWORD, next=wanted).headers["Location"] == "/"


@pytest.mark.parametrize(("email", "password"), [("", ""), ("a\0b@example.com", "x"), ("a" * 300, "x"), ("ada@example.com", "x" * 2000)])
def test_malformed_input_is_the_ordinary_refusal(email: str, password: str) -> None:
    response = _post(Client(), email, password)
    assert response.status_code == 400
    assert "E-mail or password is not right." in response.content.decode()


def test_what_was_typed_comes_back_as_text() -> None:
    page = _post(Client(), '"><img src=x onerror=alert(1)>', "x").content.decode()
    assert "<img" not in page


def test_only_get_and_post(client: Client) -> None:
    assert client.put("/login").status_code == 405
