"""Members, invitations and roles in the console."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from tenants.actor import Actor
from tenants.core.roles import Role
from tenants.models import ApiKey, AuditEntry, Invitation, Membership, User
from tenants.scoping import tenant_scope
from tenants.services import api_keys
from tests.console import rows
from tests.console.rows import Town
from tests.tenants.people import link, mailed, with_second_factor

pytestmark = pytest.mark.django_db
NEW = {"name": "New", "password": "another long pass phrase", "again": "another long pass phrase"}


def _invite(client: Client, email: str = "new@example.com", role: str = "viewer") -> Any:
    return client.post("/t/acorn/members/invite", {"email": email, "role": role})


def _member(town: Town, email: str) -> Membership:
    with tenant_scope(town.acorn.tenant_id):
        return Membership.objects.select_related("user").get(user__email=email)


def _admin(town: Town) -> Client:
    user = rows.person("admin@example.com")
    rows.member(town.acorn.tenant_id, user, "admin")
    client = Client()
    client.force_login(user)
    return client


def test_somebody_new_is_invited_by_mail_and_joins(town: Town) -> None:
    """The inviter is not shown the link; the account begins with a session of its own, in the tenant."""
    response = _invite(town.owner, role="operator")
    assert response.status_code == 302
    path = link(mailed("new@example.com")[-1])
    assert path.partition("t=")[2] not in town.owner.get("/t/acorn/members").content.decode()
    client = Client()
    assert client.get(path).headers["Location"] == "/invitation/accept"
    page = client.get("/invitation/accept").content.decode()
    for text in ("acorn", "operator", "new@example.com", "owner@example.com"):
        assert text in page
    assert client.post("/invitation/accept", {**NEW, "again": "x"}).status_code == 400
    assert client.post("/invitation/accept", NEW).headers["Location"] == "/t/acorn"
    assert client.get("/t/acorn/keys").status_code == 200
    assert _member(town, "new@example.com").role == "operator"
    assert Client().get(path).status_code == 404
    assert client.get("/t/birch").status_code == 404


def test_somebody_with_an_account_signs_in_and_joins(town: Town) -> None:
    """Nobody else does with that link, and the key of the session changes."""
    _invite(town.owner, email="stranger@example.com")
    path = link(mailed("stranger@example.com")[-1])
    nobody = Client()
    nobody.get(path)
    assert "Sign in to join" in nobody.get("/invitation/accept").content.decode()
    assert nobody.post("/invitation/accept", NEW).status_code == 409
    town.viewer.get(path)
    assert town.viewer.post("/invitation/accept").status_code == 403
    town.stranger.get(path)
    before = town.stranger.cookies["sessionid"].value
    assert town.stranger.post("/invitation/accept").headers["Location"] == "/t/acorn"
    assert town.stranger.cookies["sessionid"].value != before
    assert town.stranger.get("/t/acorn/keys").status_code == 200
    stranger = User.objects.get(email="stranger@example.com")
    assert stranger.check_password(rows.PASSWORD)


def test_an_operator_is_shown_the_link_and_an_owner_is_not(town: Town, settings: Settings) -> None:
    """Also where no mail is sent, where owners are told to ask one."""
    page = _invite(town.operator, "a@example.com").content.decode()
    assert re.search(r'id="secret" value="http[^"]+/invitation\?t=[A-Za-z0-9_-]{43}"', page)
    settings.MAIL_IS_SET = False
    response = _invite(town.owner, "b@example.com")
    assert (response.status_code, "sends no mail" in response.content.decode()) == (503, True)
    assert "/invitation?t=" in _invite(town.operator, "b@example.com").content.decode()


def test_a_revoked_invitation_opens_nothing(town: Town) -> None:
    _invite(town.owner)
    path = link(mailed("new@example.com")[-1])
    with tenant_scope(town.acorn.tenant_id):
        row = Invitation.objects.get(email="new@example.com")
    client = Client()
    assert client.get(path).status_code == 302
    assert town.owner.post(f"/t/acorn/members/invitations/{row.id}/revoke").status_code == 302
    assert client.post("/invitation/accept", NEW).status_code == 404
    assert Client().get(path).status_code == 404
    assert not User.objects.filter(email="new@example.com").exists()


def test_an_admin_reaches_admins_and_no_owner(town: Town) -> None:
    """Neither gives, changes nor removes the role above; the control is the role below."""
    admin, owner = _admin(town), _member(town, "owner@example.com")
    assert _invite(admin, role="owner").status_code == 403
    assert _invite(admin, role="admin").status_code == 302
    assert admin.post(f"/t/acorn/members/{owner.id}/role", {"role": "viewer"}).status_code == 403
    assert admin.post(f"/t/acorn/members/{owner.id}/remove").status_code == 403
    viewer = _member(town, "viewer@example.com")
    assert admin.post(f"/t/acorn/members/{viewer.id}/role", {"role": "owner"}).status_code == 403
    assert admin.post(f"/t/acorn/members/{viewer.id}/role", {"role": "operator"}).status_code == 302
    assert _member(town, "viewer@example.com").role == "operator"
    assert _member(town, "owner@example.com").role == "owner"


def test_the_last_owner_stays(town: Town) -> None:
    owner = _member(town, "owner@example.com")
    assert town.owner.post(f"/t/acorn/members/{owner.id}/role", {"role": "admin"}).status_code == 409
    assert town.owner.post(f"/t/acorn/members/{owner.id}/remove").status_code == 409
    other = _member(town, "viewer@example.com")
    assert town.owner.post(f"/t/acorn/members/{other.id}/role", {"role": "owner"}).status_code == 302
    response = town.owner.post(f"/t/acorn/members/{owner.id}/remove")
    assert (response.status_code, response.headers["Location"]) == (302, "/")
    assert town.owner.get("/t/acorn/keys").status_code == 404


def test_a_removed_members_tokens_go_when_asked(town: Town) -> None:
    """Those that they issued, and no others; a role is in the log with before and after."""
    with tenant_scope(town.acorn.tenant_id):
        for email in ("viewer@example.com", "owner@example.com"):
            api_keys.issue_control(
                tenant_id=town.acorn.tenant_id,
                actor=Actor(kind="user", label=email),
                name=email,
                role="viewer",
                ceiling=Role.OWNER,
                now=timezone.now(),
            )
    viewer = _member(town, "viewer@example.com")
    assert "Revoke 1 token too" in town.owner.get(f"/t/acorn/members/{viewer.id}/remove").content.decode()
    assert town.owner.post(f"/t/acorn/members/{viewer.id}/role", {"role": "operator"}).status_code == 302
    assert town.owner.post(f"/t/acorn/members/{viewer.id}/remove", {"tokens": "revoke"}).status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert set(ApiKey.objects.exclude(revoked_at=None).values_list("name", flat=True)) == {"viewer@example.com"}
        changed = AuditEntry.objects.get(action="member.change_role")
        removed = AuditEntry.objects.get(action="member.remove")
    assert (changed.before, changed.after, changed.actor_label) == ({"role": "viewer"}, {"role": "operator"}, "owner@example.com")
    assert removed.before == {"role": "operator"}
    assert town.viewer.get("/t/acorn/keys").status_code == 404


@pytest.mark.parametrize(("email", "role", "status"), [("x", "viewer", 400), ("a@example.com", "king", 400), ("viewer@example.com", "viewer", 409)])
def test_a_bad_invitation_is_refused_with_what_was_typed(town: Town, email: str, role: str, status: int) -> None:
    response = _invite(town.owner, email, role)
    assert response.status_code == status
    assert f'value="{email}"' in response.content.decode()


def test_nothing_is_told_of_a_person_who_has_not_been_here(town: Town) -> None:
    """Anybody's address can be added: with or without an account, a name or a second factor it looks the same, until the person opens a page here."""
    stranger = User.objects.get(email="stranger@example.com")
    User.objects.filter(id=stranger.id).update(name="Sam Stranger")
    with_second_factor(stranger)
    rows.member(town.acorn.tenant_id, stranger, "viewer")

    def row(email: str) -> str:
        page = town.owner.get("/t/acorn/members").content.decode()
        found = next(part for part in page.split("<tr>") if f">{email}" in part)
        return re.sub(r"/members/[0-9a-f-]{36}|<time.*?</time>", "", found.replace(email, ""), flags=re.DOTALL)

    assert row("stranger@example.com") == row("quiet@acorn.example")
    before = town.owner.get("/t/acorn/members/second-factor").content.decode()
    assert "stranger@example.com" not in before
    assert "quiet@acorn.example" not in before
    client = Client()
    client.force_login(User.objects.get(id=stranger.id))
    assert client.get("/t/acorn/keys").status_code == 200
    assert "Sam Stranger" in row("stranger@example.com")
