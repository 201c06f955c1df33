"""When keys were last used: from decision records to the keys."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from routing import tasks
from routing.models import DecisionRow
from routing.services import key_use
from tenants.models import ApiKey
from tenants.scoping import ScopeError, tenant_scope
from tenants.services import api_keys
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, actions, version

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def _now() -> None:
    """Of each test, since the task looks back from the clock for ten minutes, and a whole run may take longer."""
    global NOW  # noqa: PLW0603 - what all of them count from
    NOW = datetime.now(UTC)


MINUTE = timedelta(minutes=1)


def _key(tenant: Made, name: str = "app") -> ApiKey:
    with tenant_scope(tenant.id):
        return api_keys.issue_inference(tenant_id=tenant.id, actor=ACTOR, name=name, now=NOW).key


def _used(tenant: Made, key_id: uuid.UUID | None, *ago: timedelta) -> None:
    """Decision records as ingest stores them."""
    rows = [
        DecisionRow(id=uuid.uuid4(), tenant_id=tenant.id, key_id=key_id, started_at=NOW - one, outcome="ok", status=200, record={}) for one in ago
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
    DecisionRow.objects.bulk_create(rows, ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_app")


def _last(tenant: Made, key: ApiKey) -> datetime | None:
    with tenant_scope(tenant.id):
        return ApiKey.objects.get(id=key.id).last_used_at


def test_a_key_is_seen_at_its_newest_request(acorn: Made) -> None:
    """Each key at its own; one without requests, or with none lately, stays as it was. Requests without a key are nobody's."""
    app, other, idle = _key(acorn), _key(acorn, "other"), _key(acorn, "idle")
    _used(acorn, app.id, 3 * MINUTE, MINUTE, 2 * MINUTE)
    _used(acorn, other.id, 4 * MINUTE)
    _used(acorn, idle.id, key_use.WINDOW + MINUTE)
    _used(acorn, None, MINUTE)
    assert key_use.note_all(NOW) == 2
    assert [_last(acorn, key) for key in (app, other, idle)] == [NOW - MINUTE, NOW - 4 * MINUTE, None]
    assert key_use.note_all(NOW) == 0


def test_it_never_goes_back_nor_ahead(acorn: Made) -> None:
    """Neither to an older request, nor to one that a router with a fast clock says is yet to come."""
    app = _key(acorn)
    with tenant_scope(acorn.id):
        ApiKey.objects.filter(id=app.id).update(last_used_at=NOW - MINUTE)
    _used(acorn, app.id, 2 * MINUTE)
    key_use.note_all(NOW)
    assert _last(acorn, app) == NOW - MINUTE
    _used(acorn, app.id, -MINUTE)
    key_use.note_all(NOW)
    assert _last(acorn, app) == NOW - MINUTE


def test_a_record_touches_no_other_tenants_key(acorn: Made, birch: Made) -> None:
    """Whatever key id a record of one tenant holds."""
    app = _key(acorn)
    _used(birch, app.id, MINUTE)
    key_use.note_all(NOW)
    assert _last(acorn, app) is None
    with pytest.raises(ScopeError):
        key_use.note(acorn.id, NOW)


def test_the_task_publishes_nothing_and_leaves_no_trace_in_the_audit_log(acorn: Made) -> None:
    """It is no change of configuration: routers need not hear of it."""
    app = _key(acorn)
    _used(acorn, app.id, MINUTE)
    with tenant_scope(acorn.id):
        before = version(acorn.id), actions(acorn.id)
    tasks.note_key_use()
    assert _last(acorn, app) == NOW - MINUTE
    with tenant_scope(acorn.id):
        assert (version(acorn.id), actions(acorn.id)) == before
