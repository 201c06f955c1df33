"""The one door for changes: a version under the row's lock, an audit entry, a wake-up on commit."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tenants import changes
from tenants.actor import Actor, system
from tenants.models import AuditEntry, Tenant
from tenants.scoping import tenant_scope
from tenants.services import provisioning

pytestmark = pytest.mark.django_db


def test_a_change_raises_the_version_and_one_for_people_does_not() -> None:
    """Routers are only woken for what they act on; both are logged."""
    tenant = provisioning.create(actor=system("tests"), slug="acorn", name="Acorn")
    actor = Actor(kind="token", label="t" * 10, id=UUID(int=1), peer_address="192.0.2.1")
    with tenant_scope(tenant.id):
        facts: dict[str, Any] = {"before": {"a": 1}, "after": {"a": 2}, "reason": "r" * 900, "object_label": "x" * 900}
        changes.record(tenant_id=tenant.id, actor=actor, action="thing.change", **facts)
        changes.record(tenant_id=tenant.id, actor=actor, action="member.add", publishes=False)
        assert Tenant.objects.get(id=tenant.id).config_version == tenant.config_version + 1
        first, second = AuditEntry.objects.filter(action__in=["thing.change", "member.add"]).order_by("created_at")
    assert (first.config_version, second.config_version) == (tenant.config_version + 1, None)
    assert (first.actor_id, first.actor_kind, first.peer_address, first.before, first.after) == (actor.id, "token", "192.0.2.1", {"a": 1}, {"a": 2})
    assert (len(first.reason), len(first.object_label)) == (500, 300)


def test_listeners_hear_once_for_each_change_on_commit(django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscribing twice is hearing once."""
    monkeypatch.setattr(changes, "_listeners", [])
    heard: list[UUID] = []
    for _ in range(2):
        changes.subscribe(heard.append)
    with django_capture_on_commit_callbacks(execute=True):
        tenant = provisioning.create(actor=system("tests"), slug="acorn", name="Acorn")
        assert heard == []
    assert heard == [tenant.id]
