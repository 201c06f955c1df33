"""Keys as declarations set them, and what the service refuses whoever calls it. The API's side: tests/tenants/api/test_keys.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tenants.actor import system
from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, Invalid
from tenants.core.roles import Role
from tenants.models import ApiKey, Tenant
from tenants.scoping import ScopeError, tenant_scope
from tenants.services import api_keys, provisioning, scopes

pytestmark = pytest.mark.django_db
ACTOR = system("tests")
OWN = "an-operators-own-secret-key-0001"


@pytest.fixture
def tenant() -> Tenant:
    """A tenant."""
    return provisioning.create(actor=ACTOR, slug="acorn", name="Acorn")


def _declare(tenant: Tenant, **options: Any) -> tuple[ApiKey, list[str]]:
    with tenant_scope(tenant.id):
        return api_keys.declare_inference(tenant_id=tenant.id, actor=ACTOR, now=timezone.now(), **{"name": "app", "own_secret": OWN, **options})


def test_a_declared_key_is_issued_once_and_then_left_alone(tenant: Tenant) -> None:
    """The second run changes nothing and raises no version; the key's text is in the database as a digest only."""
    first, changed = _declare(tenant)
    assert changed == ["issued"]
    assert bytes(first.digest) == api_key.digest(OWN)
    with tenant_scope(tenant.id):
        version = Tenant.objects.get(id=tenant.id).config_version
    second, changed = _declare(tenant)
    assert (second.id, changed) == (first.id, [])
    with tenant_scope(tenant.id):
        assert Tenant.objects.get(id=tenant.id).config_version == version
        assert OWN not in str(ApiKey.objects.values_list())


def test_a_declared_change_keeps_the_key(tenant: Tenant) -> None:
    """Scope, endpoints, expiry and secret change in place; each run says what it changed."""
    with tenant_scope(tenant.id):
        scopes.create(tenant_id=tenant.id, actor=ACTOR, path="support")
    first, _ = _declare(tenant)
    later = timezone.now() + timedelta(days=1)
    key, changed = _declare(tenant, scope_path="support", endpoints=["llama"], expires_at=later, own_secret="another-secret-of-the-operator")
    assert (key.id, changed) == (first.id, ["scope", "endpoints", "expires_at", "secret"])
    assert _declare(tenant, scope_path="support", endpoints=["llama"], expires_at=later, own_secret="another-secret-of-the-operator")[1] == []


def test_a_revoked_key_is_declared_anew(tenant: Tenant) -> None:
    """The old row keeps its digest, so the same secret is refused rather than revived."""
    first, _ = _declare(tenant)
    with tenant_scope(tenant.id):
        api_keys.revoke(tenant_id=tenant.id, actor=ACTOR, kind=Kind.INFERENCE, key_id=first.id, ceiling=Role.OWNER, now=timezone.now())
    with pytest.raises(Conflict) as refusal:
        _declare(tenant)
    assert refusal.value.field == "secret"
    assert _declare(tenant, own_secret="another-secret-of-the-operator")[1] == ["issued"]


@pytest.mark.parametrize("secret", ["short", "x" * 257, "has a space in the middle of it", "ключ" * 10, "srct-" + "x" * 43])
def test_an_own_secret_that_is_none_is_refused(tenant: Tenant, secret: str) -> None:
    """Too short, too long, not for a header, or of the other kind's form."""
    with pytest.raises(Invalid) as refusal:
        _declare(tenant, own_secret=secret)
    assert refusal.value.field == "secret"


def test_the_same_secret_in_two_tenants_is_refused_without_saying_whose(tenant: Tenant) -> None:
    """One digest opens one tenant; the refusal names no other."""
    other = provisioning.create(actor=ACTOR, slug="birch", name="Birch")
    _declare(tenant)
    with pytest.raises(Conflict) as refusal:
        _declare(other)
    assert "acorn" not in refusal.value.message


def test_the_platform_has_no_inference_keys_and_others_no_platform_tokens(tenant: Tenant) -> None:
    """The platform serves no requests; a tenant's token is never an operator's."""
    platform = provisioning.ensure_platform()
    with pytest.raises(Invalid):
        _declare(platform)
    with pytest.raises(Invalid), tenant_scope(tenant.id):
        api_keys.issue_platform_token(tenant_id=tenant.id, actor=ACTOR, name="x", now=timezone.now())


def test_outside_the_scope_is_our_mistake(tenant: Tenant) -> None:
    """Never a refusal to a caller."""
    with pytest.raises(ScopeError):
        api_keys.issue_inference(tenant_id=tenant.id, actor=ACTOR, name="app", now=timezone.now())


def test_a_key_is_in_no_repr_and_nowhere_in_the_database(tenant: Tenant) -> None:
    """Not in any column of any table."""
    with tenant_scope(tenant.id):
        issued = api_keys.issue_inference(tenant_id=tenant.id, actor=ACTOR, name="app", now=timezone.now())
        secret = issued.secret or ""
        assert len(secret) > 40
        assert secret not in repr(issued)
        with connection.cursor() as cursor:
            cursor.execute("SELECT relname FROM pg_stat_user_tables WHERE has_table_privilege(relid, 'SELECT')")
            tables = [row[0] for row in cursor.fetchall()]
            assert {"tenants_apikey", "tenants_auditentry", "tenants_tenant"} <= set(tables)
            for table in tables:
                cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE t::text LIKE %s', [f"%{secret[12:]}%"])
                assert cursor.fetchone() == (0,), table
