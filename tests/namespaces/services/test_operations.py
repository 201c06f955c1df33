"""Rotation of a tenant's key: asked for where there is no root key, done once where there is, all salts new at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from namespaces.core.keyring import Roots
from namespaces.models import KeyOperation
from namespaces.services import keys, operations
from tenants.core.errors import Conflict, Invalid, NotFound
from tenants.models import AuditEntry
from tenants.scoping import ScopeError, tenant_scope
from tenants.services import provisioning
from tests.namespaces.services.world import ACTOR, BOTH, NEW, OLD, World, make_world, namespace, router_view, spellings


@pytest.fixture
def world(db: None, settings: Any) -> World:
    return make_world(settings)


def _ask(tenant_id: UUID, reason: str = "a laptop was lost") -> KeyOperation:
    with tenant_scope(tenant_id):
        return operations.request_tenant_rotation(tenant_id=tenant_id, actor=ACTOR, reason=reason)


def test_a_new_key_changes_every_name_of_this_tenant_alone(world: World) -> None:
    """As a router derives them: salt, index seed and public id. Another tenant's key stays."""
    acorn, birch = world.tenants["acorn"], world.tenants["birch"]
    before = namespace(router_view(acorn, sealed_to=NEW, roots=(NEW, OLD)))
    done = world.perform(_ask(acorn))
    assert (done.state, done.from_version, done.to_version) == ("done", 1, 2)
    after = namespace(router_view(acorn, sealed_to=NEW, roots=(NEW, OLD)))
    assert before.salt != after.salt
    assert before.index_seed != after.index_seed
    assert before.public_id != after.public_id
    with tenant_scope(acorn):
        material = keys.material(acorn)
    assert material is not None
    Roots((NEW,)).unwrap(acorn, 2, material.wrapped)  # made under the current root
    assert world.keys(BOTH)[birch] == world.secrets[birch]


def test_asked_twice_it_is_done_once(world: World) -> None:
    """An open operation is the answer to the second request; a task delivered twice makes one version."""
    acorn = world.tenants["acorn"]
    row = _ask(acorn)
    assert _ask(acorn, "again").id == row.id
    for _ in range(3):
        assert world.perform(row).to_version == 2
    assert world.actions("key_operation.done") == [0, 1, 0, 0, 0]
    assert world.actions("tenant_key.rotate") == [0, 1, 0, 0, 0]
    assert _ask(acorn).id != row.id


def test_a_key_rotated_meanwhile_is_not_rotated_again(world: World) -> None:
    """The operation names the version it saw."""
    acorn = world.tenants["acorn"]
    row = _ask(acorn)
    with tenant_scope(acorn):
        keys.rotate(tenant_id=acorn, actor=ACTOR, root=NEW, from_version=1, reason="by hand", now=timezone.now())
    assert world.perform(row).to_version == 2


def test_a_tenant_deleted_meanwhile_ends_the_operation(world: World) -> None:
    acorn = world.tenants["acorn"]
    row = _ask(acorn)
    with tenant_scope(acorn):
        provisioning.delete(tenant_id=acorn, actor=ACTOR, now=timezone.now())
    failed = world.perform(row)
    assert (failed.state, failed.problem) == ("failed", "Not found.")


def test_asking_ladder(world: World) -> None:
    """A reason, a living tenant, a key, its scope."""
    acorn = world.tenants["acorn"]
    for reason in ("", " ", "x" * 501):
        with pytest.raises(Invalid):
            _ask(acorn, reason)
    with pytest.raises(Conflict):
        _ask(world.tenants["keyless"])
    with pytest.raises(NotFound):
        _ask(world.tenants["cedar"])
    with pytest.raises(ScopeError):
        operations.request_tenant_rotation(tenant_id=acorn, actor=ACTOR, reason="no scope")
    with tenant_scope(acorn):
        for reference in ("", "chat", str(UUID(int=1))):
            with pytest.raises(NotFound):
                operations.find(acorn, reference)


def test_who_why_and_which_version_are_in_the_audit_log_and_no_secret(world: World) -> None:
    acorn = world.tenants["acorn"]
    world.perform(_ask(acorn))
    with tenant_scope(acorn):
        rotated = AuditEntry.objects.get(action="tenant_key.rotate")
        assert (rotated.actor_label, rotated.reason, rotated.after) == ("tests", "a laptop was lost", {"version": 2})
        assert AuditEntry.objects.filter(action__in=("key_operation.request", "key_operation.done")).count() == 2
    written = world.everything_written()
    assert not [text for text in spellings(OLD, NEW, *world.secrets.values(), *world.keys(BOTH).values()) if text in written]


def test_the_sweep_finds_what_lost_its_wake_up(world: World, valkey_url: str) -> None:
    """Of every tenant, the platform's rotation included; a second sweep finds nothing open."""
    rows = [_ask(world.tenants["acorn"]), _ask(world.tenants["birch"]), world.request()]
    assert operations.perform_open(roots=BOTH, go_on=lambda: True) == 3
    assert operations.perform_open(roots=BOTH, go_on=lambda: True) == 0
    for row in rows:
        with tenant_scope(row.tenant_id):
            assert operations.find(row.tenant_id, str(row.id)).state == "done"
    assert world.keys(Roots((NEW,))).keys() == world.secrets.keys()


def test_asking_wakes_the_worker_on_commit(world: World, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the request that made the row; not for its repeat."""
    woken: list[tuple[UUID, UUID]] = []
    monkeypatch.setattr(operations, "_listeners", [lambda tenant_id, operation_id: woken.append((tenant_id, operation_id))])
    with django_capture_on_commit_callbacks(execute=True):
        row = _ask(world.tenants["acorn"])
        _ask(world.tenants["acorn"])
        assert woken == []
    assert woken == [(world.tenants["acorn"], row.id)]
