"""Tenants as commands and races see them. The API's side: tests/tenants/api/test_tenants.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone

from tenants import changes, queries
from tenants.actor import system
from tenants.core.errors import Conflict, NotFound
from tenants.core.roles import Role
from tenants.models import Tenant, User
from tenants.scoping import current, tenant_scope
from tenants.services import members, provisioning

ACTOR = system("tests")


def _at_once(number: int, work: Callable[[], Tenant]) -> list[Tenant]:
    start, results = threading.Barrier(number), []

    def run() -> None:
        try:
            start.wait(timeout=20)
            results.append(work())
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return results


@pytest.mark.django_db(transaction=True)
def test_the_platform_is_made_once_also_at_once() -> None:
    """Three processes that start together find one tenant."""
    made = _at_once(3, provisioning.ensure_platform)
    assert len({tenant.id for tenant in made}) == 1
    assert len(made) == 3
    assert [ref.slug for ref in queries.all_tenants()] == ["platform"]


@pytest.mark.django_db(transaction=True)
def test_of_two_owners_who_leave_at_once_one_stays() -> None:
    """The second waits for the tenant's row until the first has left, and then is the last."""
    tenant = provisioning.create(actor=ACTOR, slug="acorn", name="Acorn")
    with tenant_scope(tenant.id):
        first, second = (
            members.add(tenant_id=tenant.id, actor=ACTOR, email=f"o{number}@oak.example", role="owner", ceiling=Role.OWNER).id for number in range(2)
        )
    for user in User.objects.all():  # both can sign in, so each is an owner who may be left alone
        user.set_password("a long pass phrase of the tests")
        user.save()

    def leave(membership_id: UUID) -> None:
        members.remove(tenant_id=tenant.id, actor=ACTOR, membership_id=membership_id, ceiling=Role.OWNER)

    refusals: list[Conflict] = []
    through = threading.Event()

    def leave_too() -> None:
        try:
            with tenant_scope(tenant.id):
                leave(second)
        except Conflict as refusal:
            refusals.append(refusal)
        finally:
            connection.close()
            through.set()

    other = threading.Thread(target=leave_too)
    with tenant_scope(tenant.id):
        leave(first)
        other.start()
        while not _somebody_waits_for_a_lock() and not through.wait(timeout=0.02):
            pass
    other.join(timeout=30)
    assert len(refusals) == 1
    with tenant_scope(tenant.id):
        assert [row.id for row in queries.members(tenant.id)] == [second]


def _somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.django_db
def test_a_change_is_told_on_commit_and_a_refused_one_is_not(django_capture_on_commit_callbacks: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners hear of the tenant once it is there to be read."""
    heard: list[object] = []
    monkeypatch.setattr(changes, "_listeners", [heard.append])
    monkeypatch.setattr(provisioning, "_listeners", [lambda tenant_id: heard.append(("created", tenant_id))])
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]  # pytest-django's fixture
        tenant = provisioning.create(actor=ACTOR, slug="acorn", name="Acorn")
        assert heard == []
    assert heard == [tenant.id, ("created", tenant.id)]
    with django_capture_on_commit_callbacks(execute=True), pytest.raises(Conflict):  # type: ignore[operator]  # pytest-django's fixture
        provisioning.create(actor=ACTOR, slug="acorn", name="Again")
    assert len(heard) == 2


@pytest.mark.django_db
def test_a_deleted_tenant_is_gone_for_every_change() -> None:
    """Nothing can be added to it, and no scope is left open."""
    tenant = provisioning.create(actor=ACTOR, slug="acorn", name="Acorn")
    with tenant_scope(tenant.id):
        provisioning.delete(tenant_id=tenant.id, actor=ACTOR, now=timezone.now())
        with pytest.raises(NotFound):
            members.add(tenant_id=tenant.id, actor=ACTOR, email="p@oak.example", role="viewer", ceiling=Role.OWNER)
        with pytest.raises(NotFound):
            provisioning.delete(tenant_id=tenant.id, actor=ACTOR, now=timezone.now())
    assert current() is None
    assert queries.tenant_id_of("acorn") is None
    assert [(ref.tenant_id, ref.deleted) for ref in queries.all_tenants(deleted=True)] == [(tenant.id, True)]
