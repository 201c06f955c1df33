"""A violated constraint becomes a refusal by its name, and only by its name."""

from __future__ import annotations

import uuid

import pytest
from django.db import IntegrityError
from rest_framework.response import Response

from tenants.api.errors import handle
from tenants.constraints import refuse_on
from tenants.core.errors import Conflict
from tenants.models import ApiKey, Scope, Tenant
from tenants.scoping import tenant_scope

pytestmark = pytest.mark.django_db


def _tenant() -> uuid.UUID:
    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        Tenant.objects.create(id=tenant_id, slug="acorn", name="Acorn")
        Scope.objects.create(tenant_id=tenant_id, path="")
    return tenant_id


def test_the_named_constraint_is_refused_and_the_transaction_goes_on() -> None:
    """The savepoint takes back the failed write alone."""
    acorn = _tenant()
    with tenant_scope(acorn):
        Scope.objects.create(tenant_id=acorn, path="before")
        with pytest.raises(Conflict), refuse_on(scope_path_per_tenant=Conflict("This scope exists.")):
            Scope.objects.create(tenant_id=acorn, path="")
        assert Scope.objects.filter(path="before").exists()


def test_another_constraint_stays_our_mistake() -> None:
    """An unexpected violation is never dressed up as the caller's."""
    acorn = _tenant()
    with tenant_scope(acorn), pytest.raises(IntegrityError), refuse_on(membership_once_per_tenant=Conflict("no")):
        Scope.objects.create(tenant_id=acorn, path="")


def test_a_reference_that_went_away_is_a_conflict() -> None:
    """Composite foreign keys are checked at commit, beyond any savepoint: the error handler knows them by SQLSTATE."""
    acorn = _tenant()
    answer: Response | None = None
    try:
        with tenant_scope(acorn):
            ApiKey.objects.create(tenant_id=acorn, kind="inference", name="k", shown="x", digest=b"d" * 32, scope_id=uuid.uuid4())
            from django.db import connection

            connection.check_constraints()
    except IntegrityError as error:
        answer = handle(error, {})
    assert answer is not None
    assert (answer.status_code, answer.data["error"]["code"]) == (409, "conflict")
