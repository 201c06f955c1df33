"""The tenant scope: what is inside is seen, what is outside is not, whatever happens on the way."""

from __future__ import annotations

import uuid

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from tenants.models import ApiKey, Scope, Tenant
from tenants.scoping import ScopeError, current, require_scope, tenant_scope

pytestmark = pytest.mark.django_db


def _tenant(slug: str) -> uuid.UUID:
    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        Tenant.objects.create(id=tenant_id, slug=slug, name=slug)
        Scope.objects.create(tenant_id=tenant_id, path="")
    return tenant_id


def test_a_tenant_sees_and_changes_its_own_rows_only() -> None:
    """Reading, updating and deleting another tenant's rows find nothing; the positive control finds its own."""
    acorn, birch = _tenant("acorn"), _tenant("birch")
    with tenant_scope(acorn):
        assert Scope.objects.count() == 1
    with tenant_scope(birch):
        assert Scope.objects.filter(tenant_id=acorn).count() == 0
        assert Scope.objects.filter(tenant_id=acorn).update(version=9) == 0
        assert Scope.objects.filter(tenant_id=acorn).delete()[0] == 0
        assert Tenant.objects.count() == 1
    with tenant_scope(acorn):
        assert Scope.objects.get().version == 1


def test_without_a_scope_tables_are_empty_and_refuse_writes() -> None:
    """Fail closed: no scope, no rows, no writes."""
    acorn = _tenant("acorn")
    assert current() is None
    assert Scope.objects.count() == 0
    with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
        Scope.objects.create(tenant_id=acorn, path="x")


@pytest.mark.django_db(transaction=True)
def test_what_a_scope_sets_ends_with_its_transaction() -> None:
    """How freely joins are planned, as well as the tenant: a pooled connection carries neither to its next user."""

    def said() -> tuple[str, str | None]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('join_collapse_limit'), nullif(current_setting('saltroute.tenant', true), '')")
            limit, tenant = cursor.fetchone()
            return limit, tenant

    before, acorn = said(), uuid.uuid4()
    with tenant_scope(acorn):
        assert said() == ("4", str(acorn))
    assert said() == before == ("8", None)


def test_a_row_cannot_be_written_for_another_tenant() -> None:
    """WITH CHECK: a scoped session cannot plant rows elsewhere."""
    acorn, birch = _tenant("acorn"), _tenant("birch")
    with pytest.raises(DatabaseError, match="row-level security"), tenant_scope(birch):
        Scope.objects.create(tenant_id=acorn, path="planted")


def test_the_outer_scope_returns_after_an_inner_one() -> None:
    """A released savepoint keeps a transaction-local setting, so the scope restores it itself; after an error the rollback does."""
    acorn, birch = _tenant("acorn"), _tenant("birch")
    with tenant_scope(acorn):
        with tenant_scope(birch):
            assert current() == birch
        assert current() == acorn
        with pytest.raises(IntegrityError), tenant_scope(birch):
            Scope.objects.create(tenant_id=birch, path="")
        assert current() == acorn
        assert Scope.objects.count() == 1
    assert current() is None


def test_require_scope_is_a_programmers_mistake() -> None:
    """Asking outside the scope is not a refusal to a caller but our bug."""
    acorn = _tenant("acorn")
    with pytest.raises(ScopeError):
        require_scope(acorn)
    with tenant_scope(acorn):
        require_scope(acorn)


def _key_of_another_scope(tenant_id: uuid.UUID, scope_id: uuid.UUID) -> None:
    with tenant_scope(tenant_id):
        ApiKey.objects.create(tenant_id=tenant_id, kind="inference", name="k", shown="x", digest=b"d" * 32, scope_id=scope_id)
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_references_cannot_cross_tenants() -> None:
    """A composite foreign key refuses another tenant's id even where a policy would not see it."""
    acorn, birch = _tenant("acorn"), _tenant("birch")
    with tenant_scope(acorn):
        foreign = Scope.objects.get().id
    with pytest.raises(IntegrityError):
        _key_of_another_scope(birch, foreign)
    _key_of_another_scope(acorn, foreign)  # its own scope is fine
