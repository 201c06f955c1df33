"""Tenant keys: made once, rotated once, wrapped for their tenant and version alone."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from namespaces.core import keyring
from namespaces.models import TenantKeyVersion
from namespaces.services import keys
from tenants.actor import system
from tenants.core.errors import Conflict, NotFound
from tenants.models import AuditEntry, Tenant
from tenants.scoping import ScopeError, tenant_scope
from tenants.services import provisioning

ACTOR = system("tests")
ROOT = b"r" * 32


def _tenant(slug: str = "acorn") -> Tenant:
    return provisioning.create(actor=ACTOR, slug=slug, name=slug)


def _provision(tenant: Tenant) -> bool:
    with tenant_scope(tenant.id):
        return keys.provision(tenant_id=tenant.id, actor=ACTOR, root=ROOT)


@pytest.mark.django_db
def test_the_first_key_is_made_once_and_opens_for_its_tenant_alone() -> None:
    """Version 1, wrapped; a repeat changes nothing; another tenant, version or root does not open it."""
    tenant = _tenant()
    assert [_provision(tenant) for _ in range(2)] == [True, False]
    with tenant_scope(tenant.id):
        held = keys.material(tenant.id)
        assert held is not None
        assert held.version == 1
        assert TenantKeyVersion.objects.count() == 1
    opened = keyring.unwrap_tenant_key(ROOT, tenant.id, 1, held.wrapped)
    assert len(opened.secret) == 32
    assert opened.secret not in held.wrapped
    for root, owner, version in ((b"x" * 32, tenant.id, 1), (ROOT, uuid.uuid4(), 1), (ROOT, tenant.id, 2)):
        with pytest.raises(keyring.KeyringError):
            keyring.unwrap_tenant_key(root, owner, version, held.wrapped)


@pytest.mark.django_db
def test_making_a_key_publishes_the_tenant_and_logs_no_key() -> None:
    """The version routers wait for rises; the audit log names the version only."""
    tenant = _tenant()
    before = tenant.config_version
    _provision(tenant)
    with tenant_scope(tenant.id):
        assert Tenant.objects.get(id=tenant.id).config_version == before + 1
        entry = AuditEntry.objects.get(action="tenant_key.provision")
        assert entry.after == {"version": 1}


@pytest.mark.django_db
def test_rotation_puts_the_next_version_in_force_once() -> None:
    """A repeat with the version seen before changes nothing; a version never in force is refused; keys differ."""
    tenant = _tenant()
    with tenant_scope(tenant.id):
        with pytest.raises(Conflict):
            keys.rotate(tenant_id=tenant.id, actor=ACTOR, root=ROOT, from_version=1, reason="too early", now=timezone.now())
        keys.provision(tenant_id=tenant.id, actor=ACTOR, root=ROOT)
        first = keys.material(tenant.id)
        repeated = [keys.rotate(tenant_id=tenant.id, actor=ACTOR, root=ROOT, from_version=1, reason="leak", now=timezone.now()) for _ in range(2)]
        assert repeated == [2, 2]
        assert list(TenantKeyVersion.objects.filter(retired_at=None).values_list("version", flat=True)) == [2]
        second = keys.material(tenant.id)
        assert first is not None
        assert second is not None
        assert second.version == 2
        secrets = {keyring.unwrap_tenant_key(ROOT, tenant.id, held.version, held.wrapped).secret for held in (first, second)}
        assert len(secrets) == 2
        with pytest.raises(Conflict):
            keys.rotate(tenant_id=tenant.id, actor=ACTOR, root=ROOT, from_version=9, reason="wrong", now=timezone.now())
        assert [entry.reason for entry in AuditEntry.objects.filter(action="tenant_key.rotate")] == ["leak"]


@pytest.mark.django_db
def test_a_deleted_or_foreign_tenant_gets_no_key() -> None:
    """Deleted: not found. Outside its scope: our mistake."""
    tenant, other = _tenant(), _tenant("birch")
    with tenant_scope(tenant.id):
        provisioning.delete(tenant_id=tenant.id, actor=ACTOR, now=timezone.now())
        with pytest.raises(NotFound):
            keys.provision(tenant_id=tenant.id, actor=ACTOR, root=ROOT)
        with pytest.raises(ScopeError):
            keys.provision(tenant_id=other.id, actor=ACTOR, root=ROOT)
        with pytest.raises(ScopeError):
            keys.material(other.id)


@pytest.mark.django_db
def test_a_root_of_the_wrong_size_is_refused() -> None:
    """Nothing is stored under half a key."""
    tenant = _tenant()
    with pytest.raises(keyring.KeyringError), tenant_scope(tenant.id):
        keys.provision(tenant_id=tenant.id, actor=ACTOR, root=b"short")
    with tenant_scope(tenant.id):
        assert keys.material(tenant.id) is None


@pytest.mark.django_db
def test_the_sweep_makes_what_is_missing_and_nothing_else() -> None:
    """Living tenants without a key, the platform's included."""
    done, missing, gone = _tenant("done"), _tenant("missing"), _tenant("gone")
    platform = provisioning.ensure_platform()
    _provision(done)
    with tenant_scope(gone.id):
        provisioning.delete(tenant_id=gone.id, actor=ACTOR, now=timezone.now())
    assert keys.provision_missing(actor=ACTOR, root=ROOT) == ["missing", "platform"]
    assert keys.provision_missing(actor=ACTOR, root=ROOT) == []
    for tenant in (missing, platform):
        with tenant_scope(tenant.id):
            assert keys.material(tenant.id) is not None


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_make_one_key() -> None:
    """The second waits for the first and finds its key."""
    tenant = _tenant()
    start, made = threading.Barrier(2), []

    def work() -> None:
        try:
            start.wait(timeout=20)
            made.append(_provision(tenant))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(made) == [False, True]
    with tenant_scope(tenant.id):
        assert TenantKeyVersion.objects.count() == 1


@pytest.mark.django_db
def test_keys_are_destroyed_seven_days_after_the_tenant() -> None:
    """Not a moment before; once; a living tenant keeps the version in force and loses those a rotation retired as long ago."""
    gone, living = _tenant("gone"), _tenant("living")
    now = timezone.now()
    for tenant in (gone, living):
        _provision(tenant)
    with tenant_scope(living.id):
        keys.rotate(tenant_id=living.id, actor=ACTOR, root=ROOT, from_version=1, reason="leak", now=now)
    with tenant_scope(gone.id):
        provisioning.delete(tenant_id=gone.id, actor=ACTOR, now=now)
    assert keys.destroy_expired(actor=ACTOR, now=now + keys.KEPT_FOR - timedelta(seconds=1)) == []
    with tenant_scope(gone.id):
        assert TenantKeyVersion.objects.count() == 1
    assert keys.destroy_expired(actor=ACTOR, now=now + keys.KEPT_FOR) == [gone.id]
    assert keys.destroy_expired(actor=ACTOR, now=now + keys.KEPT_FOR) == []
    with tenant_scope(gone.id):
        assert TenantKeyVersion.objects.count() == 0
        assert AuditEntry.objects.get(action="tenant_key.destroy").before == {"versions": [1]}
    with tenant_scope(living.id):
        assert list(TenantKeyVersion.objects.values_list("version", flat=True)) == [2]
        assert AuditEntry.objects.get(action="tenant_key.destroy").before == {"versions": [1]}
    assert keys.provision_missing(actor=ACTOR, root=ROOT) == []  # nobody makes a deleted tenant a new key
