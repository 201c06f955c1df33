"""Runs of one tenant do not overlap, whichever processes they are in: proved with a second connection that holds the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection

from routing.models import ReconciliationRun
from routing.services.reconciliation import orders, running
from tenants.scoping import tenant_scope

if TYPE_CHECKING:
    from tests.routing.services.reconciliation.place import Place

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]


def test_another_that_is_just_beginning_has_the_tenant(place: Place) -> None:
    """And with its transaction the lock is gone."""
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [orders._lock(place.tenant.id)])
        assert running.run(place.tenant.id, trigger="beat") is None
        with tenant_scope(place.tenant.id):
            assert not ReconciliationRun.objects.filter(tenant_id=place.tenant.id).exists()
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [orders._lock(place.tenant.id)])
    finally:
        other.close()
    assert running.run(place.tenant.id, trigger="beat") is not None
