"""Invitations: a link that its address alone gets, good once and not for long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.utils import timezone

from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound, Refusal, Unavailable
from tenants.core.roles import Role
from tenants.models import Invitation, Membership, Tenant, User
from tenants.scoping import tenant_scope
from tenants.services import accounts, invitations, members, provisioning
from tests.tenants.people import ACTOR, link, mailed

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def oak(db: None) -> Tenant:
    return provisioning.create(actor=ACTOR, slug="oak", name="Oak")


def _invite(tenant: Tenant, email: str = "ada@oak.example", role: str = "viewer", **more: Any) -> invitations.Invited:
    with tenant_scope(tenant.id):
        usual = {"ceiling": Role.OWNER, "now": timezone.now(), "show_link": True}
        return invitations.invite(tenant_id=tenant.id, actor=ACTOR, email=email, role=role, **{**usual, **more})


def _token(made: invitations.Invited) -> str:
    return parse_qs(urlsplit(made.link or "").query)["t"][0]


def _roles(tenant: Tenant) -> dict[str, str]:
    with tenant_scope(tenant.id):
        return dict(Membership.objects.filter(tenant_id=tenant.id).values_list("user__email", "role"))


def _accept_new(token: str) -> Membership:
    return invitations.accept_new(token=token, name="Ada", password=PASSWORD, peer_address="192.0.2.1", now=timezone.now())


def test_the_mailed_link_makes_an_account_and_a_member_once(oak: Tenant) -> None:
    """What is stored of the link is its digest: neither the table nor the waiting mail holds the token."""
    made = _invite(oak, role="admin")
    with connection.cursor() as cursor:
        cursor.execute("SELECT m::text FROM tenants_outgoingmail m")
        waiting = cursor.fetchall()
    (body,) = mailed("ada@oak.example")
    token = parse_qs(urlsplit(link(body)).query)["t"][0]
    assert token == _token(made)
    with tenant_scope(oak.id):
        row = Invitation.objects.get()
    assert token.encode() not in b"".join(bytes(value) for value in (row.nonce, row.digest))
    assert waiting
    assert token not in str(waiting)
    assert row.mail == "sent"
    _accept_new(token)
    assert _roles(oak) == {"ada@oak.example": "admin"}
    user = User.objects.get(email="ada@oak.example")
    assert (user.name, user.check_password(PASSWORD)) == ("Ada", True)
    with pytest.raises(NotFound):
        _accept_new(token)


def test_only_who_may_see_it_is_given_the_link(oak: Tenant, settings: Any) -> None:
    """An owner gets none: with it they could make an account of anybody's address. Without mail that leaves platform operators."""
    assert _invite(oak, show_link=False).link is None
    settings.MAIL_IS_SET = False
    with pytest.raises(Unavailable):
        _invite(oak, "bob@oak.example", show_link=False)
    assert _invite(oak, "bob@oak.example").link


def test_an_account_joins_with_its_own_address_alone(oak: Tenant) -> None:
    """A signed-in stranger with the link gets nothing, and nobody sets a password of an account that has one."""
    ada = accounts.create(email="ada@oak.example", password=PASSWORD)
    bob = accounts.create(email="bob@oak.example", password=PASSWORD)
    token = _token(_invite(oak))
    with pytest.raises(Forbidden):
        invitations.accept(token=token, user=bob, peer_address="", now=timezone.now())
    with pytest.raises(Conflict):
        invitations.accept_new(token=token, name="", password="another horse battery", peer_address="", now=timezone.now())
    ada.refresh_from_db()
    assert ada.check_password(PASSWORD)
    assert _roles(oak) == {}
    invitations.accept(token=token, user=ada, peer_address="", now=timezone.now())
    assert _roles(oak) == {"ada@oak.example": "viewer"}


def test_revoked_expired_and_of_a_deleted_tenant_are_one_answer(oak: Tenant) -> None:
    elm = provisioning.create(actor=ACTOR, slug="elm", name="Elm")
    revoked, old, gone = _invite(oak, "a@oak.example"), _invite(oak, "b@oak.example"), _invite(elm)
    good = _token(_invite(oak, "c@oak.example"))
    now = timezone.now()
    with tenant_scope(oak.id):
        for _ in range(2):  # safe to repeat
            invitations.revoke(tenant_id=oak.id, actor=ACTOR, invitation_id=revoked.invitation.id, ceiling=Role.ADMIN, now=now)
        Invitation.objects.filter(id=old.invitation.id).update(expires_at=now)
    with tenant_scope(elm.id):
        provisioning.delete(tenant_id=elm.id, actor=ACTOR, now=now)
    for token in (_token(revoked), _token(old), _token(gone), "x" * 43, "", "\0" * 43):
        with pytest.raises(NotFound):
            invitations.offer(token=token, now=now)
        with pytest.raises(NotFound):
            _accept_new(token)
    assert invitations.offer(token=good, now=now).tenant.slug == "oak"


def test_nobody_offers_or_takes_back_a_role_above_their_own(oak: Tenant) -> None:
    with pytest.raises(Forbidden):
        _invite(oak, role="owner", ceiling=Role.ADMIN)
    owner = _invite(oak, role="owner")
    with tenant_scope(oak.id), pytest.raises(Forbidden):
        invitations.revoke(tenant_id=oak.id, actor=ACTOR, invitation_id=owner.invitation.id, ceiling=Role.ADMIN, now=timezone.now())


def test_an_address_is_invited_once_at_a_time(oak: Tenant) -> None:
    first = _invite(oak)
    with pytest.raises(Conflict) as refusal:
        _invite(oak, "ADA@oak.example")
    assert refusal.value.field == "email"
    with tenant_scope(oak.id):
        Invitation.objects.update(expires_at=timezone.now())
    second = _invite(oak)  # the old one is over
    assert _token(first) != _token(second)
    _accept_new(_token(second))
    with pytest.raises(Conflict):
        _invite(oak)


def test_the_limits_have_numbers(oak: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "MAX_OPEN_PER_TENANT", 1)
    _invite(oak, "a@oak.example")
    with pytest.raises(LimitReached, match="MAX_OPEN_PER_TENANT"):
        _invite(oak, "b@oak.example")
    with tenant_scope(oak.id):
        Invitation.objects.update(revoked_at=timezone.now())
    monkeypatch.setattr(invitations, "MAX_A_DAY_PER_TENANT", 1)
    with pytest.raises(LimitReached, match="MAX_A_DAY_PER_TENANT"):
        _invite(oak, "b@oak.example")
    with tenant_scope(oak.id):
        Invitation.objects.update(created_at=timezone.now() - timedelta(days=1))
    assert _invite(oak, "b@oak.example")


@pytest.mark.parametrize(("email", "role"), [("nobody", "viewer"), ("a@b.example", "king"), ("a@b.example", "")])
def test_bad_input_names_its_field(oak: Tenant, email: str, role: str) -> None:
    with pytest.raises(Invalid) as refusal:
        _invite(oak, email, role)
    assert refusal.value.field == ("email" if email == "nobody" else "role")


def test_the_platform_invites_nobody() -> None:
    with pytest.raises(Invalid):
        _invite(provisioning.ensure_platform())


def test_a_weak_password_takes_nothing(oak: Tenant) -> None:
    """The link is still good afterwards."""
    token = _token(_invite(oak))
    with pytest.raises(Invalid):
        invitations.accept_new(token=token, name="", password="password1234", peer_address="", now=timezone.now())
    assert _roles(oak) == {}
    _accept_new(token)


def test_every_step_is_in_the_audit_log(oak: Tenant) -> None:
    from tenants.models import AuditEntry

    made = _invite(oak, role="operator")
    _accept_new(_token(made))
    with tenant_scope(oak.id):
        rows = {row.action: row for row in AuditEntry.objects.filter(object_id=made.invitation.id)}
        member = Membership.objects.get()
        members.change_role(tenant_id=oak.id, actor=ACTOR, membership_id=member.id, role="viewer", ceiling=Role.OWNER)
        changed = AuditEntry.objects.get(action="member.change_role")
    assert set(rows) == {"invitation.create", "invitation.accept"}
    assert (rows["invitation.accept"].actor_label, rows["invitation.accept"].peer_address) == ("ada@oak.example", "192.0.2.1")
    assert (changed.before, changed.after) == ({"role": "operator"}, {"role": "viewer"})


@pytest.mark.django_db(transaction=True)
def test_of_two_who_accept_at_once_one_does(settings: Any) -> None:
    oak = provisioning.create(actor=ACTOR, slug="oak", name="Oak")
    ada, token = accounts.create(email="ada@oak.example", password=PASSWORD), _token(_invite(oak))

    def attempt(_: int) -> bool:
        try:
            invitations.accept(token=token, user=ada, peer_address="", now=timezone.now())
        except Refusal:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(attempt, range(4))) == [False, False, False, True]
    assert _roles(oak) == {"ada@oak.example": "viewer"}
