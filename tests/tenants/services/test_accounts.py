"""Accounts: made once, known by their address, with a password that is worth one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenants.actor import system
from tenants.core.errors import Conflict, Invalid
from tenants.core.roles import Role
from tenants.models import AuditEntry, User
from tenants.scoping import tenant_scope
from tenants.services import accounts, members, provisioning

ACTOR = system("tests")
pytestmark = pytest.mark.django_db


def test_a_password_is_kept_as_a_hash_and_can_be_replaced(settings: Any) -> None:
    """Sessions opened with the old one end: their hash is of the old password."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    user = accounts.create(email="P@Oak.example", password="correct horse battery")
    assert (user.email, user.check_password("correct horse battery"), "correct" in user.password) == ("p@oak.example", True, False)
    session_hash = user.get_session_auth_hash()
    accounts.set_password(user=user, password="another horse battery")
    user.refresh_from_db()
    assert user.check_password("another horse battery")
    assert user.get_session_auth_hash() != session_hash
    with pytest.raises(Invalid):
        accounts.set_password(user=user, password="short")


@pytest.mark.parametrize("email", ["", "x", "a@", "a b@c.example", "ä@b.example", "a@b.example\0", "a" * 250 + "@b.example", None, 7])
def test_a_malformed_address_is_refused(email: Any) -> None:
    """By its field."""
    with pytest.raises(Invalid) as refusal:
        accounts.ensure(email=email)
    assert refusal.value.field == "email"
    assert User.objects.count() == 0


def test_an_account_is_made_once() -> None:
    """By e-mail without case; ``ensure`` finds it again."""
    user = accounts.create(email="p@oak.example", password=None)
    with pytest.raises(Conflict) as refusal:
        accounts.create(email="P@OAK.example", password=None)
    assert refusal.value.field == "email"
    assert accounts.ensure(email="P@oak.example") == user
    assert User.objects.count() == 1


@pytest.mark.parametrize("password", ["short", "password1234", "x" * 1001])
def test_a_weak_password_is_refused(password: str) -> None:
    """Too short, too common, too long."""
    with pytest.raises(Invalid) as refusal:
        accounts.create(email="p@oak.example", password=password)
    assert refusal.value.field == "password"
    assert User.objects.count() == 0


def test_changes_of_an_account_are_in_the_logs_of_where_it_opens_something() -> None:
    """A member's new password in each of their tenants, an operator's in the platform's; never the password."""
    oak, elm = (provisioning.create(actor=ACTOR, slug=slug, name=slug) for slug in ("oak", "elm"))
    platform = provisioning.ensure_platform()
    person = accounts.create(email="p@oak.example", password=None)
    for tenant in (oak, elm):
        with tenant_scope(tenant.id):
            members.add(tenant_id=tenant.id, actor=ACTOR, email=person.email, role="viewer", ceiling=Role.OWNER)
    accounts.set_password(user=person, password="correct horse battery", actor=ACTOR)
    operator = accounts.create(email="op@salt.example", password=None, platform_operator=True, actor=ACTOR)
    accounts.set_password(user=operator, password="another horse battery", actor=ACTOR)
    assert [_account_changes(tenant.id) for tenant in (oak, elm, platform)] == [
        [("account.set_password", "p@oak.example")],
        [("account.set_password", "p@oak.example")],
        [("account.create", "op@salt.example"), ("account.set_password", "op@salt.example")],
    ]


def _account_changes(tenant_id: UUID) -> list[tuple[str, str]]:
    with tenant_scope(tenant_id):
        found = list(AuditEntry.objects.filter(tenant_id=tenant_id, action__startswith="account.").order_by("created_at"))
    assert "horse" not in str([entry.__dict__ for entry in found])
    return [(entry.action, entry.object_label) for entry in found]
