"""Where requests' time went, in the console."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from routing.core.record import CauseRecord
from routing.models import Endpoint
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


def test_sums_are_shown_by_endpoint_and_hour(town: Town, as_owner: AsOwner) -> None:
    cause = CauseRecord(parts_us={"missed_evicted": 900_000, "queue_router": 250_000}, main="missed_evicted")
    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, cause=cause) for _ in range(4)))
    page = town.viewer.get("/t/acorn/causes").content.decode()
    assert "4 decisions" in page
    assert "3.60 s" in page
    assert "1.00 s" in page
    assert "style=" not in page.split("<main")[1]
    by_hour = town.viewer.get("/t/acorn/causes?by=hour").content.decode()
    assert "3.60 s" in by_hour
    assert town.viewer.get("/t/acorn/causes?by=%3Cimg%3E&endpoint=1").status_code == 200
    assert "3.60 s" not in town.stranger.get("/t/birch/causes").content.decode()
    assert town.stranger.get("/t/acorn/causes").status_code == 404


def test_many_endpoints_cost_no_more_queries_and_the_busiest_are_shown(town: Town, as_owner: AsOwner) -> None:
    """A page of endpoints with most requests; the others are counted, and their sums are not read."""
    made = town.acorn
    with tenant_scope(made.tenant_id):
        ids = [made.endpoint_id]
        for number in range(30):
            one = Endpoint.objects.get(id=made.endpoint_id)
            one.id, one.name = uuid.uuid4(), f"endpoint-{number:02}"
            one._state.adding = True
            one.save()
            ids.append(one.id)
    cause = CauseRecord(parts_us={"queue_router": 250_000}, main="queue_router")
    rows.store(as_owner, made, rows.record(made, cause=cause))
    town.viewer.get("/t/acorn/causes")
    with CaptureQueriesContext(connection) as few:
        town.viewer.get("/t/acorn/causes")
    rows.store(as_owner, made, *(rows.record(made, endpoint_id=one, cause=cause) for place, one in enumerate(ids) for _ in range(1 + (place == 30))))
    with CaptureQueriesContext(connection) as many:
        page = town.viewer.get("/t/acorn/causes").content.decode()
    assert len(many) == len(few)
    assert page.count("<caption") == 24
    assert "endpoint-29: 2 decisions" in page
    assert "7 more are in the API" in page
    narrowed = town.viewer.get(f"/t/acorn/causes?endpoint={ids[5]}&range=6h").content.decode()
    assert "1 decision since" in narrowed
    assert "endpoint-04: 1 decision," in narrowed
