"""Accounts: who signs in, and who must wait."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.core.errors import Conflict, Invalid
from tenants.models import User
from tenants.services import accounts

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
PEER = "192.0.2.1"


@pytest.fixture(autouse=True)
def _quick_hash(settings: Any, valkey_url: str) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.VALKEY_URL = valkey_url


def _try(email: str, password: str, peer: str = PEER) -> User | None:
    return accounts.authenticate(email=email, password=password, peer_address=peer)


def test_the_right_password_signs_in_whatever_the_case_of_the_address() -> None:
    """Nothing else does: wrong, empty, unknown, without a password, inactive."""
    user = accounts.create(email="P@Oak.example", password=PASSWORD)
    accounts.create(email="none@oak.example", password=None)
    gone = accounts.create(email="gone@oak.example", password=PASSWORD)
    gone.is_active = False
    gone.save()
    assert _try(" p@OAK.example ", PASSWORD) == user
    for email, password in [
        ("p@oak.example", "wrong"),
        ("p@oak.example", ""),
        ("p@oak.example", "x" * 5000),
        ("nobody@oak.example", PASSWORD),
        ("none@oak.example", ""),
        ("gone@oak.example", PASSWORD),
        ("\0", PASSWORD),
    ]:
        assert _try(email, password) is None


def test_the_sixth_attempt_waits_even_with_the_right_password() -> None:
    """By account and peer; somebody else's guesses from elsewhere do not lock the person out."""
    accounts.create(email="p@oak.example", password=PASSWORD)
    assert [_try("p@oak.example", f"guess {number}") for number in range(5)] == [None] * 5
    with pytest.raises(accounts.TooManyAttempts) as refusal:
        _try("P@oak.example", PASSWORD)
    assert 1 <= refusal.value.retry_after_s <= accounts.WINDOW_S
    assert _try("p@oak.example", PASSWORD, peer="192.0.2.2") is not None


def test_one_peer_cannot_walk_through_accounts_nor_many_through_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a bound of its own."""
    monkeypatch.setattr(accounts, "ATTEMPTS_PER_PEER", 3)
    assert [_try(f"p{number}@oak.example", "x") for number in range(3)] == [None] * 3
    with pytest.raises(accounts.TooManyAttempts):
        _try("p4@oak.example", "x")
    monkeypatch.setattr(accounts, "ATTEMPTS_PER_PERSON", 2)
    assert [_try("q@oak.example", "x", peer=f"198.51.100.{number}") for number in range(2)] == [None] * 2
    with pytest.raises(accounts.TooManyAttempts):
        _try("q@oak.example", "x", peer="198.51.100.9")


def test_a_success_forgets_the_failures() -> None:
    """Whoever mistyped four times and then signed in starts anew."""
    accounts.create(email="p@oak.example", password=PASSWORD)
    for _ in range(3):
        assert [_try("p@oak.example", "x") for _ in range(4)] == [None] * 4
        assert _try("p@oak.example", PASSWORD) is not None


def test_without_valkey_people_still_sign_in(settings: Any) -> None:
    """Nothing is counted, and nobody is locked out."""
    settings.VALKEY_URL = "redis://127.0.0.1:1/0"
    accounts.create(email="p@oak.example", password=PASSWORD)
    assert [_try("p@oak.example", "x") for _ in range(7)] == [None] * 7
    assert _try("p@oak.example", PASSWORD) is not None


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
