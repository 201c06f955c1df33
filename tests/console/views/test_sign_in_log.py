"""What people do to sign in stands in the audit log of their tenants, as its owner reads it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tenants.models import AuditEntry, Membership, User
from tenants.scoping import tenant_scope
from tenants.services import provisioning, sign_ins
from tests.console import rows
from tests.console.rows import Town
from tests.tenants.people import code, link, mailed, with_second_factor

pytestmark = pytest.mark.django_db
EMAIL = "ada@example.com"
NEW = "another long pass phrase"


@pytest.fixture
def ada(town: Town) -> User:
    """A member of acorn who has been there."""
    user = rows.person(EMAIL)
    rows.member(town.acorn.tenant_id, user, "viewer")
    with tenant_scope(town.acorn.tenant_id):
        Membership.objects.filter(user=user).update(entered_at=timezone.now())
    return user


def _signed_in(password: str = rows.PASSWORD) -> tuple[Client, Any]:
    client = Client(headers={"User-Agent": "of the tests"})
    return client, client.post("/login", {"email": EMAIL, "password": password})


def _log(town: Town) -> list[tuple[str, Any]]:
    """Action and details of ada's entries, oldest first."""
    with tenant_scope(town.acorn.tenant_id):
        found = AuditEntry.objects.filter(tenant_id=town.acorn.tenant_id, object_label=EMAIL).order_by("created_at", "id")
        return [(entry.action, entry.after) for entry in found]


def test_success_refused_code_ended_session_and_reset(town: Town, ada: User) -> None:
    client, _ = _signed_in()
    client.post("/logout")
    text, _codes = with_second_factor(ada)
    client, answer = _signed_in()
    assert answer.headers["Location"] == "/login/code"
    assert client.post("/login/code", {"code": "000000"}).status_code == 400
    assert client.post("/login/code", {"code": code(text)}).status_code == 302
    other = Client()
    other.force_login(User.objects.get(email=EMAIL))
    assert client.post("/account/sessions/end-others").status_code == 302
    Client().post("/reset/ask", {"email": EMAIL})
    reset = Client()
    reset.get(link(mailed(EMAIL)[-1]))
    assert reset.post("/reset/new", {"password": NEW, "again": NEW}).status_code == 302
    signing = [row for row in _log(town) if row[0].split(".")[0] in ("sign_in", "session", "password_reset")]
    assert signing == [
        ("sign_in.success", {"second_factor": False}),
        ("session.ended", {"by": "signing out"}),
        ("sign_in.code_refused", None),
        ("sign_in.success", {"second_factor": True}),
        ("session.ended", {"by": "its person, from another session", "sessions": 1}),
        ("password_reset.used", None),
    ]
    sign_ins.sweep(timezone.now() + timedelta(hours=1))
    assert [action for action, _ in _log(town)][-1] == "password_reset.asked"


@pytest.mark.usefixtures("ada")
def test_failures_are_read_by_owners_and_those_at_unknown_addresses_by_the_platform(town: Town) -> None:
    provisioning.ensure_platform()
    _signed_in("not the password")
    _signed_in("not the password")
    Client().post("/login", {"email": "hunter2-typed-in-the-wrong-field", "password": "x"})
    sign_ins.sweep(timezone.now() + timedelta(hours=1))
    page = town.owner.get("/t/acorn/audit?action=sign_in").content.decode()
    assert "sign_in.failed" in page
    assert EMAIL in page
    assert "unknown" not in page
    platform = town.operator.get("/t/platform/audit?action=sign_in").content.decode()
    assert "addresses without an account" in platform
    assert "hunter2" not in platform
    assert town.viewer.get("/t/acorn/audit?action=sign_in").status_code == 403
    assert "sign_in.failed" not in town.stranger.get("/t/birch/audit?action=sign_in").content.decode()


def test_no_entry_holds_a_secret(town: Town, ada: User) -> None:
    """Neither a password that was right or wrong, nor a code, nor a link's token."""
    text, _codes = with_second_factor(ada)
    _signed_in("a wrong password")
    client, _ = _signed_in()
    client.post("/login/code", {"code": "123456"})
    said = code(text)
    client.post("/login/code", {"code": said})
    sign_ins.sweep(timezone.now() + timedelta(hours=1))
    with tenant_scope(town.acorn.tenant_id):
        kept = str(list(AuditEntry.objects.filter(tenant_id=town.acorn.tenant_id).values()))
    assert "sign_in.failed" in kept
    for secret in (rows.PASSWORD, "a wrong password", "123456", f"'{said}'"):
        assert secret not in kept


def test_whoever_is_kept_waiting_is_not_noted(town: Town, ada: User) -> None:
    """Beyond the limit of attempts nothing is written, so the log grows no faster than guessing may go."""
    del ada
    from console import throttle

    for _ in range(throttle.ACCOUNT_ATTEMPTS + 5):
        _signed_in("guess")
    sign_ins.sweep(timezone.now() + timedelta(hours=1))
    ((action, after),) = _log(town)
    assert (action, after["times"]) == ("sign_in.failed", throttle.ACCOUNT_ATTEMPTS)
