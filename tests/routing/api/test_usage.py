"""Usage, the time that records are kept, and asking for whole ones, over the API."""

from __future__ import annotations

import csv
import io
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from routing.core.record import DecisionRecord
from routing.models import Endpoint
from routing.services import publishing, records
from tenants.core.roles import Role
from tests.routing.services.rows import an_endpoint
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db
GONE = uuid.uuid4()


def keep(house: House, **fields: Any) -> None:
    """Store one decision as ingest does, by its role."""
    given: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1, **fields}
    one = DecisionRecord(id=uuid.uuid4(), tenant_id=house.id, started_at=timezone.now().timestamp(), **given)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert records.store([one]).stored == 1
        cursor.execute("SET ROLE saltroute_app")


def test_usage_by_key_and_in_sum(acorn: House, birch: House) -> None:
    key = acorn.key("app").key
    keep(acorn, key_id=key.id, prompt_tokens=100, cached_tokens=60, completion_tokens=7, prefill_tokens_per_s=120.0)
    keep(acorn, key_id=GONE, prompt_tokens=5)
    keep(birch, key_id=key.id, prompt_tokens=900)
    found = acorn.api(Role.VIEWER).get("usage?by=key").json()
    assert found["by"] == ["key"]
    assert found["total"] == {"requests": 2, "input_tokens": 105, "cached_tokens": 60, "output_tokens": 7, "engine_seconds_saved": 0.5}
    assert {(line["key"], line["key_id"], line["used"]["input_tokens"]) for line in found["lines"]} == {
        ("app", str(key.id), 100),
        (None, str(GONE), 5),
    }
    assert "learned prefill rate" in found["saved_method"]
    whole = acorn.api().get("usage").json()
    assert {line["day"] for line in whole["lines"]} == {timezone.now().date().isoformat()}
    assert acorn.api().get("usage?until=2020-01-01").json()["total"]["requests"] == 0


def test_the_export_is_the_same_numbers(acorn: House) -> None:
    keep(acorn, key_id=acorn.key("app").key.id, prompt_tokens=100, cached_tokens=60)
    answer = acorn.api().get("usage/export?by=key")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in answer.headers["Content-Disposition"]
    (row,) = csv.DictReader(io.StringIO(answer.content.decode()))
    assert (row["key"], row["requests"], row["input_tokens"], row["cached_tokens"]) == ("app", "1", "100", "60")


@pytest.mark.parametrize(
    ("query", "field"),
    [("since=yesterday", "since"), ("until=2026-1-1", "until"), ("by=tenant", "by"), ("since=2020-01-01", "since"), ("since=2999-01-01", "until")],
)
def test_malformed_questions_name_the_field(acorn: House, query: str, field: str) -> None:
    for path in ("usage", "usage/export"):
        answer = acorn.api().get(f"{path}?{query}")
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_how_long_decisions_are_kept(acorn: House, settings: Any) -> None:
    settings.RECORDS_DAYS = 30
    assert acorn.api().get("records").json() == {"keep_days": 30, "platform_days": 30, "oldest": None, "routers": None}
    assert acorn.api().patch("records", {"keep_days": 7}).json()["keep_days"] == 7
    assert acorn.api().get("records").json()["keep_days"] == 7
    assert acorn.api().patch("records", {"keep_days": 31}).status_code == 400
    assert acorn.api(Role.OPERATOR).patch("records", {"keep_days": 9}).status_code == 403
    assert len(acorn.log("records.keep")) == 1


def test_lost_records_are_told_to_the_platform_alone(acorn: House, platform: Api) -> None:
    for serial in (1, 4):
        keep(acorn, boot_ms=1_790_000_000_000, serial=serial)
    (found,) = platform.get("records").json()["routers"]
    assert (found["router_id"], found["numbered"], found["stored"], found["refused"], found["missing"]) == ("r1", 4, 2, 0, 2)
    assert acorn.api().get("records").json()["routers"] is None


def test_whole_records_are_asked_for_some_minutes(acorn: House, birch: House) -> None:
    with acorn.scope():
        endpoint = an_endpoint(acorn.id)
    answer = acorn.api(Role.OPERATOR).post("endpoints/chat/explain", {"minutes": 10})
    assert answer.status_code == 200
    with acorn.scope():
        until = Endpoint.objects.get(id=endpoint.id).explain_until
        assert until is not None
        assert timedelta(minutes=9) < until - timezone.now() <= timedelta(minutes=10)
        (entry,) = publishing.build_snapshot(acorn.id, now_s=0.0).endpoints
        assert entry.explain_until == until.timestamp()
    assert acorn.api().post("endpoints/chat/explain", {"minutes": 0}).json()["explain_until"] is None
    assert len(acorn.log("endpoint.explain")) == 2
    assert acorn.api().post("endpoints/chat/explain", {"minutes": 61}).status_code == 400
    assert acorn.api(Role.VIEWER).post("endpoints/chat/explain", {"minutes": 1}).status_code == 403
    strange, absent = (birch.api().post(f"endpoints/{one}/explain", {"minutes": 1}) for one in (endpoint.id, ABSENT))
    assert (strange.status_code, strange.content) == (absent.status_code, absent.content) == (404, absent.content)
