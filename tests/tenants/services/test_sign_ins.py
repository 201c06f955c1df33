"""What is noted of signing in: in which tenants, how much of it at most, and nothing of who has no account."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.actor import Actor
from tenants.core.roles import Role
from tenants.models import AuditEntry, Membership, SignInCount, User
from tenants.scoping import tenant_scope
from tenants.services import accounts, members, provisioning, sign_ins
from tenants.services.sign_ins import MAX_AT_ONCE, WINDOW, Kind
from tests.tenants.houses import ROOT, House

pytestmark = pytest.mark.django_db
NOW = datetime.fromisoformat("2026-11-30T12:07:00+00:00")
OVER = datetime.fromisoformat("2026-11-30T12:15:00+00:00")
ADA = "ada@oak.example"


def person(*houses: House, entered: bool = True, email: str = ADA) -> User:
    """Somebody with a seat in each of these."""
    for house in houses:
        with house.scope():
            row = members.add(tenant_id=house.id, actor=ROOT, email=email, role="viewer", ceiling=Role.OWNER)
            if entered:
                Membership.objects.filter(id=row.id).update(entered_at=NOW)
    return User.objects.get(email=email)


def actor(user: User) -> Actor:
    return Actor(kind="user", id=user.id, label=user.email, peer_address="192.0.2.7")


def entries(tenant_id: UUID) -> list[AuditEntry]:
    """Those of signing in, oldest first."""
    with tenant_scope(tenant_id):
        rows = AuditEntry.objects.filter(tenant_id=tenant_id).order_by("created_at", "id")
        return [row for row in rows if row.action in [kind.value for kind in Kind]]


def fail(email: str, times: int = 1) -> None:
    for number in range(times):
        sign_ins.tried(Kind.FAILED, email=email, peer_address=f"192.0.2.{number % 200}", now=NOW + timedelta(seconds=number))


def test_a_success_is_in_each_tenant_that_the_person_has_been_in(acorn: House, birch: House) -> None:
    user = person(acorn)
    person(birch, entered=False)
    sign_ins.done(Kind.SUCCESS, user=user, actor=actor(user), now=NOW, after={"second_factor": False})
    (entry,) = entries(acorn.id)
    assert (entry.action, entry.actor_label, entry.object_label, entry.peer_address) == ("sign_in.success", ADA, ADA, "192.0.2.7")
    assert entry.config_version is None  # no router has to learn of it
    assert entries(birch.id) == []  # who adds an address does not watch its person
    with birch.scope():
        Membership.objects.filter(user=user).update(entered_at=NOW)
    sign_ins.done(Kind.SUCCESS, user=user, actor=actor(user), now=NOW)
    assert len(entries(birch.id)) == 1


def test_failures_at_an_account_are_one_entry_with_their_number_when_the_quarter_of_an_hour_is_over(acorn: House, birch: House) -> None:
    person(acorn)
    fail(f" {ADA.upper()}", 4)
    assert sign_ins.sweep(OVER - timedelta(seconds=1)).windows == 0
    assert entries(acorn.id) == []
    assert sign_ins.sweep(OVER) == sign_ins.Told(windows=1, entries=1)
    (entry,) = entries(acorn.id)
    assert (entry.action, entry.actor_kind, entry.object_label, entry.peer_address) == ("sign_in.failed", "system", ADA, "192.0.2.3")
    assert entry.after == {"times": 4, "first": "2026-11-30T12:07:00+00:00", "last": "2026-11-30T12:07:03+00:00"}
    assert sign_ins.sweep(OVER).windows == 0
    assert SignInCount.objects.count() == 0
    assert entries(birch.id) == []


def test_unknown_addresses_fill_nothing_and_none_is_kept(acorn: House) -> None:
    """However many: one row until the window is over, one entry for the platform then. People type passwords into that field."""
    platform = provisioning.ensure_platform()
    for number in range(50):
        fail(f"nobody-{number}@elsewhere.example")
    assert SignInCount.objects.count() == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT c::text FROM tenants_signincount c")
        assert "nobody" not in str(cursor.fetchall())
    assert sign_ins.sweep(OVER).entries == 1
    (entry,) = entries(platform.id)
    assert (entry.object_label, entry.object_id) == ("addresses without an account", None)
    assert (entry.after or {})["times"] == 50
    assert entries(acorn.id) == []


def test_an_address_with_and_one_without_an_account_cost_the_same(acorn: House) -> None:
    """The same statements, so that no answer's time tells."""
    person(acorn)
    said = []
    for email in (ADA, "nobody@elsewhere.example"):
        fail(email)  # both rows are there
        with CaptureQueriesContext(connection) as queries:
            fail(email)
        said.append([query["sql"].split("WHERE")[0].split("VALUES")[0] for query in queries])
    assert said[0] == said[1]
    assert len(said[0]) == 2


def test_what_a_person_repeats_is_written_so_often_and_then_counted(acorn: House) -> None:
    user = person(acorn)
    for _ in range(MAX_AT_ONCE + 3):
        sign_ins.done(Kind.CODE_REFUSED, user=user, actor=actor(user), now=NOW)
    assert len(entries(acorn.id)) == MAX_AT_ONCE
    sign_ins.done(Kind.CODE_REFUSED, user=user, actor=actor(user), now=NOW + WINDOW)  # another window
    assert len(entries(acorn.id)) == MAX_AT_ONCE + 1
    assert sign_ins.sweep(OVER) == sign_ins.Told(windows=1, entries=1)
    assert (entries(acorn.id)[-1].after or {})["times"] == 3
    assert sign_ins.sweep(OVER + WINDOW) == sign_ins.Told(windows=1, entries=0)


def test_an_operators_are_the_platforms(acorn: House) -> None:
    """An operator has a seat in every tenant; no tenant reads when they sign in."""
    platform = provisioning.ensure_platform()
    user = accounts.create(email="root@platform.example", password=None, platform_operator=True)
    sign_ins.done(Kind.SUCCESS, user=user, actor=actor(user), now=NOW)
    fail("root@platform.example")
    sign_ins.sweep(OVER)
    assert [entry.action for entry in entries(platform.id)] == ["sign_in.success", "sign_in.failed"]
    assert entries(acorn.id) == []


def test_a_person_who_is_gone_when_it_is_told_holds_nothing_up(acorn: House, as_owner: Callable[[], AbstractContextManager[None]]) -> None:
    user = person(acorn)
    fail(ADA)
    with acorn.scope():
        Membership.objects.filter(user=user).delete()
    with as_owner():
        user.delete()
    assert sign_ins.sweep(OVER).windows == 1
    assert SignInCount.objects.count() == 0


def test_what_another_version_counted_holds_nothing_up(acorn: House) -> None:
    """A row of an unknown kind, the oldest, does not keep later ones from being told."""
    user = person(acorn)
    fail(ADA)
    SignInCount.objects.create(subject=user.id, kind="sign_in.odd", window_started_at=NOW - 2 * WINDOW, attempts=7, first_at=NOW, last_at=NOW)
    assert sign_ins.sweep(OVER) == sign_ins.Told(windows=2, entries=1)
    assert [entry.action for entry in entries(acorn.id)] == ["sign_in.failed"]
    assert SignInCount.objects.count() == 0


def test_where_a_person_has_not_been_nobody_reads_from_where_they_come(acorn: House, birch: House) -> None:
    """A change of the account is told there without its peer's address."""
    user = person(acorn)
    person(birch, entered=False)
    accounts.rename(user=user, name="Ada", actor=actor(user))
    assert [one.log("account.rename")[0].peer_address for one in (acorn, birch)] == ["192.0.2.7", ""]
