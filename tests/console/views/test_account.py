"""A person's own page: password, sessions, tokens."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.utils import timezone

from console import throttle
from tenants.actor import Actor
from tenants.core.api_key import Kind
from tenants.core.roles import Role
from tenants.models import ApiKey, PersonSession, User
from tenants.scoping import tenant_scope
from tenants.services import api_keys
from tests.console import rows
from tests.console.rows import Town

pytestmark = pytest.mark.django_db
NEW = "another long pass phrase"


def _sign_in(email: str, *, peer: str, agent: str) -> Client:
    client = Client(REMOTE_ADDR=peer, headers={"User-Agent": agent})
    assert client.post("/login", {"email": email, "password": rows.PASSWORD}).status_code == 302
    return client


def _change(client: Client, current: str = rows.PASSWORD, password: str = NEW, again: str = NEW) -> int:
    return client.post("/account/password", {"current": current, "password": password, "again": again}).status_code


def test_changing_the_password_ends_the_other_sessions_and_keeps_this_one() -> None:
    user = rows.person("ada@example.com")
    here, there = Client(), Client()
    for client in (here, there):
        client.force_login(user)
    before = here.cookies["sessionid"].value
    assert _change(here) == 302
    assert here.cookies["sessionid"].value != before
    assert [client.get("/account").status_code for client in (here, there)] == [200, 302]
    user.refresh_from_db()
    assert user.check_password(NEW)


@pytest.mark.parametrize(
    ("current", "password", "again", "said"),
    [
        ("wrong", NEW, NEW, "The current password is not right."),
        (rows.PASSWORD, NEW, NEW + "x", "The two passwords differ."),
        (rows.PASSWORD, "short", "short", "too short"),
        (rows.PASSWORD, "password12345", "password12345", "too common"),
        (rows.PASSWORD, "ada@example.com", "ada@example.com", "too similar"),
        (rows.PASSWORD, "x" * 1001, "x" * 1001, "at most 1000"),
    ],
)
def test_a_bad_change_is_refused_in_words(current: str, password: str, again: str, said: str) -> None:
    user = rows.person("ada@example.com")
    client = Client()
    client.force_login(user)
    response = client.post("/account/password", {"current": current, "password": password, "again": again})
    assert (response.status_code, said in response.content.decode()) == (400, True)
    user.refresh_from_db()
    assert user.check_password(rows.PASSWORD)
    assert client.get("/account").status_code == 200


def test_a_stolen_session_cannot_guess_the_password() -> None:
    user = rows.person("ada@example.com")
    client = Client()
    client.force_login(user)
    for _ in range(throttle.ACCOUNT_ATTEMPTS):
        assert _change(client, current="guess") == 400
    assert _change(client) == 429


def test_sessions_are_listed_and_ended() -> None:
    """With where from and what with; one's own marked; another's cannot be ended."""
    rows.person("ada@example.com")
    rows.person("bob@example.com")
    here = _sign_in("ada@example.com", peer="192.0.2.1", agent="Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0")
    there = _sign_in("ada@example.com", peer="198.51.100.9", agent="Mozilla/5.0 (iPhone) Version/18 Safari/604.1")
    bob = _sign_in("bob@example.com", peer="203.0.113.5", agent="curl/8")
    page = here.get("/account").content.decode()
    for text in ("Firefox on Linux", "192.0.2.1", "Safari on iPhone", "198.51.100.9"):
        assert text in page
    assert "203.0.113.5" not in page
    assert page.count("this one") == 1
    other = PersonSession.objects.get(peer_address="198.51.100.9")
    assert bob.post(f"/account/sessions/{other.id}/end").status_code == 404
    assert there.get("/account").status_code == 200
    assert here.post(f"/account/sessions/{other.id}/end").status_code == 302
    assert there.get("/account").status_code == 302
    third = _sign_in("ada@example.com", peer="192.0.2.3", agent="x")
    assert here.post("/account/sessions/end-others").status_code == 302
    assert [client.get("/account").status_code for client in (here, third, bob)] == [200, 302, 200]


def test_every_way_to_change_an_account_needs_a_session_and_the_csrf_token() -> None:
    user = rows.person("ada@example.com")
    paths = ["/account", "/account/password", "/account/second-factor", "/account/second-factor/off", "/account/recovery-codes"]
    paths += ["/account/sessions/end-others", f"/account/sessions/{user.id}/end"]
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(user)
    for path in paths:
        assert Client().post(path).headers["Location"] == "/login"
        assert strict.post(path).status_code == 403


def test_own_tokens_are_listed_and_revoked_by_their_issuer_alone(town: Town) -> None:
    """Also by one who has become a viewer since; another's token is absent."""
    issued = {}
    with tenant_scope(town.acorn.tenant_id):
        for email in ("viewer@example.com", "owner@example.com"):
            actor = Actor(kind="user", label=email)
            issued[email] = api_keys.issue_control(
                tenant_id=town.acorn.tenant_id, actor=actor, name=f"of-{email}", role="admin", ceiling=Role.OWNER, now=timezone.now()
            ).key
    page = town.viewer.get("/account").content.decode()
    assert "Revoke of-viewer@example.com" in page
    assert "of-owner@example.com" not in page
    for email, status in [("owner@example.com", 404), ("viewer@example.com", 302)]:
        assert town.viewer.post(f"/account/tokens/acorn/{issued[email].id}/revoke").status_code == status
    assert town.stranger.post(f"/account/tokens/acorn/{issued['owner@example.com'].id}/revoke").status_code == 404
    with tenant_scope(town.acorn.tenant_id):
        revoked = set(ApiKey.objects.filter(kind=Kind.CONTROL.value).exclude(revoked_at=None).values_list("name", flat=True))
    assert revoked == {"of-viewer@example.com"}
    assert "Revoke of-viewer" not in town.viewer.get("/account").content.decode()


def test_a_name_is_changed_and_shown_to_members(town: Town) -> None:
    assert town.viewer.get("/t/acorn/").status_code == 200  # nothing is told of who has not been here
    assert town.viewer.post("/account", {"name": "Vera"}).status_code == 302
    assert "Vera" in town.owner.get("/t/acorn/members").content.decode()
    assert town.viewer.post("/account", {"name": "a\x00b"}).status_code == 400
    assert User.objects.get(email="viewer@example.com").name == "Vera"


def test_the_switcher_remembers_the_last_tenant_and_finds_among_many(town: Town) -> None:
    """With more tenants than it shows, it has a search and holds the one that is open."""
    user = User.objects.get(email="owner@example.com")
    for number in range(14):
        rows.member(rows.tenant(f"a{number:02}").tenant_id, user, "viewer")
    assert town.owner.get("/").headers["Location"] == "/tenants"
    page = town.owner.get("/t/acorn").content.decode()
    assert 'aria-label="Find a tenant"' in page
    assert re.search(r'<a href="/t/acorn" aria-current="true">', page)
    assert town.owner.get("/").headers["Location"] == "/t/acorn"
    assert town.owner.get("/t/a03/keys").status_code == 200
    assert town.owner.get("/").headers["Location"] == "/t/a03"
