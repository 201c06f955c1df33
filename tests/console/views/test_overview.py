"""The overview: sums by endpoint over a range, and only of the tenant's own requests."""

from __future__ import annotations

import re
import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from routing.models import Endpoint
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


def _seconds(shown: str) -> float:
    """Of ``1.2 s`` or ``990 ms``."""
    value, unit = shown.split(" ")
    return float(value) / {"s": 1, "ms": 1000}[unit]


def _figures(page: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))


def test_requests_errors_ttft_and_reuse_of_a_range(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    good = [rows.record(made, ttft_s=0.1 * n, prompt_tokens=1000, matched_tokens=800, cached_tokens=600) for n in range(1, 11)]
    bad = [
        rows.record(made, outcome="upstream_error", status=502, ttft_s=None, cached_tokens=None, prompt_tokens=None),
        rows.record(made, outcome="refused", status=503, ttft_s=None, cached_tokens=None, prompt_tokens=None),
    ]
    old = rows.record(made, started_at=rows.ago(hours=3))
    rows.store(as_owner, made, *good, *bad, old)
    rows.store(as_owner, town.birch, rows.record(town.birch))
    figures = _figures(town.owner.get("/t/acorn").content.decode())
    assert figures["Requests"] == "12"
    assert figures["Failed"] == "8.3 %"
    p50, p95 = (figures[name] for name in ("TTFT p50", "TTFT p95"))
    assert p50.endswith(" ms")
    assert float(p50[:-3]) == pytest.approx(500, rel=0.02)
    assert _seconds(p95) == pytest.approx(1.0, rel=0.02)
    assert figures["Cached tokens"] == "60 %"
    assert figures["Predicted reuse"] == "80 %"
    assert _figures(town.owner.get("/t/acorn?range=6h").content.decode())["Requests"] == "13"
    # an unknown range is the ordinary one
    assert _figures(town.owner.get("/t/acorn?range=%3Cimg%3E").content.decode())["Requests"] == "12"


def test_requests_that_named_no_endpoint_are_counted_apart(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, rows.record(town.acorn), rows.record(town.acorn, endpoint_id=None, outcome="client_error", status=404))
    page = town.owner.get("/t/acorn").content.decode()
    assert _figures(page)["Requests"] == "2"
    assert _figures(page)["Client errors"] == "1"
    assert re.findall(r'data-label="Client errors">(\d+)<', page) == ["1", "0"]  # of no endpoint, then of the endpoint
    assert "no such endpoint" in page


def test_many_endpoints_cost_no_more_queries(town: Town, as_owner: AsOwner) -> None:
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn")
    with tenant_scope(town.acorn.tenant_id):
        one = Endpoint.objects.get()
        for number in range(30):
            one.id, one.name = uuid.uuid4(), f"endpoint-{number}"
            one._state.adding = True
            one.save()
            rows.store(as_owner, town.acorn, rows.record(town.acorn, endpoint_id=one.id))
    with CaptureQueriesContext(connection) as many:
        assert "endpoint-29" in town.owner.get("/t/acorn").content.decode()
    assert len(many) == len(few)


def test_a_new_tenant_is_told_what_to_run(town: Town) -> None:
    page = town.owner.get("/t/acorn").content.decode()
    assert "No requests in this range" in page
    assert "curl -N" in page
    with tenant_scope(town.birch.tenant_id):
        Endpoint.objects.all().delete()
    assert "manage.py apply" in town.stranger.get("/t/birch").content.decode()
