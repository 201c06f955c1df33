"""Accounts: made once, known by their address, with a password that is worth one."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.core.errors import Conflict, Invalid
from tenants.models import User
from tenants.services import accounts

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
