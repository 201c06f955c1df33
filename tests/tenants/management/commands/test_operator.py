"""``manage.py operator``: makes the first operator, again and again if need be, and nobody else one."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command

from tenants.models import User
from tenants.services import accounts
from tests.tenants.people import with_second_factor

EMAIL = "ada@example.org"
pytestmark = pytest.mark.django_db


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("quartz-lantern-41\n")
    return path


def _operator(file: Path, email: str = EMAIL) -> str:
    out = StringIO()
    call_command("operator", "--email", email, "--password-file", str(file), stdout=out)
    return out.getvalue().strip()


def test_an_operator_is_made_who_can_sign_in(file: Path) -> None:
    assert _operator(file, "Ada@Example.org") == f"{EMAIL} is a new platform operator"
    user = authenticate(username=EMAIL, password="quartz-lantern-41")
    assert isinstance(user, User)
    assert user.is_platform_operator


def test_repeating_changes_nothing_so_that_sessions_last(file: Path) -> None:
    _operator(file)
    before = User.objects.get(email=EMAIL).password
    assert _operator(file) == f"{EMAIL} is unchanged"
    assert User.objects.get(email=EMAIL).password == before


def test_another_password_in_the_file_replaces_the_old_one(file: Path) -> None:
    _operator(file)
    file.write_text("basalt-harbour-77\n")
    assert _operator(file) == f"{EMAIL} has a new password"
    assert User.objects.get(email=EMAIL).check_password("basalt-harbour-77")


def test_a_members_account_does_not_become_an_operators(file: Path) -> None:
    accounts.create(email=EMAIL, password="a-members-own-password")
    with pytest.raises(CommandError, match="no platform operator"):
        _operator(file)
    user = User.objects.get(email=EMAIL)
    assert not user.is_platform_operator
    assert user.check_password("a-members-own-password")


def test_a_weak_password_is_refused(file: Path) -> None:
    file.write_text("short\n")
    with pytest.raises(CommandError, match="at least 12"):
        _operator(file)
    assert not User.objects.exists()


def test_an_address_that_is_none_is_refused(file: Path) -> None:
    with pytest.raises(CommandError):
        _operator(file, "nobody")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="absent"):
        _operator(tmp_path / "absent")


def test_a_lost_second_factor_is_forgotten_by_hand() -> None:
    """Of anybody, in the log of where they are a member; safe to repeat, and an unknown address is named."""
    user = accounts.create(email="bob@example.org", password="quartz-lantern-41")
    with_second_factor(user)

    def forget(email: str) -> str:
        out = StringIO()
        call_command("operator", "--email", email, "--forget-second-factor", stdout=out)
        return out.getvalue().strip()

    assert forget("Bob@Example.org").endswith("has no second factor any more; all their sessions have ended")
    user.refresh_from_db()
    assert user.second_factor_at is None
    assert forget("bob@example.org") == "bob@example.org has no second factor"
    with pytest.raises(CommandError, match="no account"):
        forget("nobody@example.org")
