"""The second step of signing in, enrolment, and a tenant that requires it."""

from __future__ import annotations

import html
import re
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from console import throttle
from console.views import account, sign_in
from tenants.models import PersonSession, Tenant, User
from tenants.scoping import tenant_scope
from tenants.services import accounts, second_factors
from tests.console import rows
from tests.console.rows import Town
from tests.tenants.people import ACTOR, code, with_second_factor

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(db: None) -> tuple[User, str, list[str]]:
    """Somebody with a second factor, its secret and recovery codes."""
    user = rows.person("ada@example.com")
    return user, *with_second_factor(user)


def _password(client: Client, email: str = "ada@example.com", **more: str) -> Any:
    return client.post("/login", {"email": email, "password": rows.PASSWORD, **more})


def test_a_password_alone_opens_nothing(ada: tuple[User, str, list[str]]) -> None:
    """No page, and no answer of the API; the code then opens both, under a new session key, and leads to the page that was asked for."""
    client = Client()
    response = _password(client, next="/account")
    assert (response.status_code, response.headers["Location"]) == (302, "/login/code")
    assert client.get("/tenants").status_code == 302
    assert client.get("/api/v1/me").status_code == 401
    before = client.cookies["sessionid"].value
    response = client.post("/login/code", {"code": code(ada[1])})
    assert (response.status_code, response.headers["Location"]) == (302, "/account")
    assert client.cookies["sessionid"].value != before
    assert client.get("/account").status_code == 200
    assert client.get("/api/v1/me").status_code == 200


def test_a_code_that_was_seen_is_refused(ada: tuple[User, str, list[str]]) -> None:
    """Whoever reads it over a shoulder is too late."""
    seen = code(ada[1])
    first, second = Client(), Client()
    for client in (first, second):
        _password(client)
    assert first.post("/login/code", {"code": seen}).status_code == 302
    response = second.post("/login/code", {"code": seen})
    assert (response.status_code, "was used before" in response.content.decode()) == (400, True)
    assert second.get("/tenants").status_code == 302


def test_a_recovery_code_signs_in_once(ada: tuple[User, str, list[str]]) -> None:
    for status in (302, 400):
        client = Client()
        _password(client)
        assert client.post("/login/code", {"code": ada[2][0]}).status_code == status


def test_guessing_codes_is_throttled_and_neither_header_nor_password_helps(ada: tuple[User, str, list[str]]) -> None:
    """By person, whatever peer, forwarded address or fresh session: a good password in between gives no attempt back."""
    for attempt in range(throttle.CODE_ATTEMPTS):
        client = Client(headers={"X-Forwarded-For": f"10.0.0.{attempt}"}, REMOTE_ADDR=f"192.0.2.{attempt}")
        _password(client)
        assert client.post("/login/code", {"code": "000000"}).status_code == 400
    client = Client(headers={"X-Forwarded-For": "10.9.9.9", "X-Real-IP": "10.9.9.8", "Forwarded": "for=10.9.9.7"}, REMOTE_ADDR="198.51.100.7")
    assert _password(client).status_code == 302
    response = client.post("/login/code", {"code": code(ada[1])})
    assert (response.status_code, 0 < int(response.headers["Retry-After"]) <= 900) == (429, True)
    assert client.get("/tenants").status_code == 302


def test_the_second_step_is_owed_for_a_while_only(ada: tuple[User, str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    _password(client)
    later = time.time() + sign_in.PENDING_S + 1
    monkeypatch.setattr(sign_in, "time", SimpleNamespace(time=lambda: later))
    assert client.post("/login/code", {"code": code(ada[1])}).headers["Location"] == "/login"
    assert client.get("/tenants").status_code == 302


def test_a_new_password_voids_a_step_that_is_owed(ada: tuple[User, str, list[str]]) -> None:
    client = Client()
    _password(client)
    accounts.set_password(user=ada[0], password="another long pass phrase")
    assert client.post("/login/code", {"code": code(ada[1])}).headers["Location"] == "/login"


def test_the_second_step_alone_is_no_way_in() -> None:
    client = Client()
    assert client.get("/login/code").headers["Location"] == "/login"
    assert client.post("/login/code", {"code": "123456"}).headers["Location"] == "/login"


def test_without_a_sign_in_key_the_door_stays_shut(ada: tuple[User, str, list[str]], settings: Settings) -> None:
    client = Client()
    _password(client)
    settings.SIGN_IN_KEYS = ()
    assert client.post("/login/code", {"code": code(ada[1])}).status_code == 503
    assert client.get("/tenants").status_code == 302


def test_enrolling_shows_a_secret_takes_a_code_and_ends_other_sessions() -> None:
    user = rows.person("ada@example.com")
    here, there = Client(), Client()
    here.force_login(user)
    there.force_login(user)
    page = here.get("/account/second-factor").content.decode()
    text = html.unescape(re.findall(r'id="secret" value="([A-Z2-7 ]+)"', page)[0])
    assert 'src="data:image/svg+xml' in page
    assert here.post("/account/second-factor", {"code": "000000"}).status_code == 400
    before = here.cookies["sessionid"].value
    response = here.post("/account/second-factor", {"code": code(text)})
    assert response.status_code == 200
    codes = re.findall(r"\b[a-z2-7]{4}(?:-[a-z2-7]{4}){3}\b", response.content.decode())
    assert len(codes) == 10
    assert here.cookies["sessionid"].value != before
    assert here.get("/account").status_code == 200
    assert there.get("/account").status_code == 302
    assert not [one for one in codes if one in here.get("/account").content.decode()]
    fresh = Client()
    _password(fresh)
    assert fresh.post("/login/code", {"code": codes[3]}).status_code == 302


def _shown(client: Client) -> str:
    page = client.get("/account/second-factor").content.decode()
    found = re.search(r'id="secret" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_what_another_session_was_shown_does_not_become_the_owners() -> None:
    """The secret belongs to the session that was shown it; in the same session a reload keeps it."""
    rows.person("ada@example.com")
    thief, owner = Client(), Client()
    for client in (thief, owner):
        _password(client)
    seen, read = _shown(thief), _shown(owner)
    assert seen != read == _shown(owner)
    assert thief.post("/account/second-factor", {"code": code(seen)}).status_code == 409
    assert owner.post("/account/second-factor", {"code": code(read)}).status_code == 200
    assert not second_factors.check(user=User.objects.get(), code=code(seen), now=timezone.now())


def test_an_old_session_proves_the_password_before_it_sets_one_up() -> None:
    """A thief's second factor would lock the owner out. A session just begun is asked for none: the control is the test of enrolling."""
    rows.person("ada@example.com")
    client = Client()
    _password(client)
    PersonSession.objects.update(created_at=timezone.now() - account.FRESH - timedelta(seconds=1))
    secret = _shown(client)
    for password, expected in (("", 400), ("not the password", 400), (rows.PASSWORD, 200)):
        assert client.post("/account/second-factor", {"code": code(secret), "password": password}).status_code == expected
        assert (User.objects.get().second_factor_at is not None) == (expected == 200)


def test_taking_it_off_asks_for_password_and_code(ada: tuple[User, str, list[str]]) -> None:
    user, text, _ = ada
    client = Client()
    client.force_login(user)
    good = code(text)
    assert client.post("/account/second-factor/off", {"password": "wrong", "code": good}).status_code == 400
    assert client.post("/account/second-factor/off", {"password": rows.PASSWORD, "code": "000000"}).status_code == 400
    assert client.post("/account/second-factor/off", {"password": rows.PASSWORD, "code": good}).status_code == 302
    user.refresh_from_db()
    assert user.second_factor_at is None
    assert client.get("/account").status_code == 200


@pytest.mark.parametrize(("path", "fields"), [("/account/second-factor/off", {"password": rows.PASSWORD}), ("/account/recovery-codes", {})])
def test_a_stolen_session_cannot_guess_the_code(ada: tuple[User, str, list[str]], path: str, fields: dict[str, str]) -> None:
    client = Client()
    client.force_login(ada[0])
    for _ in range(throttle.CODE_ATTEMPTS):
        assert client.post(path, {**fields, "code": "000000"}).status_code == 400
    assert client.post(path, {**fields, "code": code(ada[1])}).status_code == 429


def test_who_has_none_is_led_to_enrol_where_it_is_required(town: Town) -> None:
    """Pages, fragments, changes and the API; strangers still see that there is nothing. The control: after enrolling all of it opens."""
    with tenant_scope(town.acorn.tenant_id):
        Tenant.objects.update(require_second_factor=True)
    enrol = reverse("console:second_factor")
    assert town.viewer.get("/t/acorn/keys").headers["Location"] == f"{enrol}?next=%2Ft%2Facorn%2Fkeys"
    assert town.viewer.get("/t/acorn/applied", headers={"HX-Request": "true"}).headers["HX-Redirect"] == enrol
    assert town.owner.post("/t/acorn/keys/new", {"name": "x"}).headers["Location"] == enrol
    assert town.owner.get("/api/v1/keys").status_code == 403
    assert town.owner.get(enrol).status_code == 200
    assert town.stranger.get("/t/acorn/keys").status_code == 404
    assert town.stranger.get("/t/birch/keys").status_code == 200
    user = User.objects.get(email="owner@example.com")
    with_second_factor(user)
    town.owner.force_login(user)
    assert town.owner.get("/t/acorn/keys").status_code == 200
    assert town.owner.get("/api/v1/keys").status_code == 200


def test_an_operator_needs_one_where_the_installation_says_so(town: Town, settings: Settings) -> None:
    assert town.operator.get("/platform/").status_code == 200
    settings.OPERATORS_SECOND_FACTOR = True
    for path in ("/platform/", "/t/acorn/keys"):
        assert town.operator.get(path).headers["Location"].startswith("/account/second-factor")
    assert town.operator.get("/api/v1/keys", headers={"X-Saltroute-Tenant": "acorn"}).status_code == 403
    assert town.owner.get("/t/acorn/keys").status_code == 200


def test_an_operator_who_owes_one_is_none_to_the_api_either(town: Town, settings: Settings) -> None:
    """A leaked password must not list or make tenants. The control: where it is not asked, or is there, both go."""
    assert town.operator.get("/api/v1/tenants").status_code == 200
    settings.OPERATORS_SECOND_FACTOR = True
    made = town.operator.post("/api/v1/tenants", {"slug": "elm", "name": "Elm"}, content_type="application/json")
    assert made.status_code == 403
    assert not Tenant.objects.filter(slug="elm").exists()
    assert town.operator.get("/api/v1/me").json()["platform"] is False
    assert "acorn" not in town.operator.get("/api/v1/tenants").content.decode()
    assert town.operator.get("/tenants").headers["Location"].startswith("/account/second-factor")
    user = User.objects.get(is_platform_operator=True)
    with_second_factor(user)
    town.operator.force_login(user)
    made = town.operator.post("/api/v1/tenants", {"slug": "elm", "name": "Elm"}, content_type="application/json")
    assert made.status_code == 201


def test_requiring_it_is_for_owners_who_have_one(town: Town) -> None:
    url = "/t/acorn/members/second-factor"
    assert town.viewer.post(url, {"required": "yes"}).status_code == 403
    assert town.owner.post(url, {"required": "yes"}).status_code == 409
    user = User.objects.get(email="owner@example.com")
    with_second_factor(user)
    town.owner.force_login(user)
    assert town.owner.post(url, {"required": "yes"}).status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert Tenant.objects.get().require_second_factor
    second_factors.forget(user=user, actor=ACTOR)
    town.owner.force_login(user)
    assert town.owner.get("/t/acorn").headers["Location"].startswith("/account/second-factor")
