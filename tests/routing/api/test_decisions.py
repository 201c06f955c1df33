"""Decisions, routers and status over the API."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis
from django.db import connection

from routing.core.record import AttemptRecord, CandidateRecord, DecisionRecord
from routing.models import DecisionRow
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db
START = datetime(2026, 11, 1, 12, tzinfo=UTC)


def store(house: House, *, at_s: float = 0, replica_id: str | None = None, **fields: Any) -> uuid.UUID:
    """A record as ingest stores it, by the role that may."""
    started = START + timedelta(seconds=at_s)
    given: dict[str, Any] = {"outcome": "ok", "status": 200, "ttft_s": 0.5, **fields}
    record = DecisionRecord(
        id=uuid.uuid4(),
        tenant_id=house.id,
        started_at=started.timestamp(),
        route="chat",
        router_id="r1",
        config_version=1,
        replica_id=replica_id,
        **given,
    )
    columns = {name: given[name] for name in ("outcome", "status", "ttft_s", "endpoint_id", "key_id") if name in given}
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
    DecisionRow.objects.bulk_create(
        [
            DecisionRow(
                id=record.id, tenant_id=house.id, started_at=started, replica_id=replica_id or "", record=msgspec.to_builtins(record), **columns
            )
        ],
        ignore_conflicts=True,
    )
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_app")
    return record.id


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["results"]]


def test_lists_are_narrowed_by_every_filter(acorn: House) -> None:
    endpoint_id = uuid.uuid4()
    key = acorn.key("app").key
    old = store(acorn, at_s=0, endpoint_id=endpoint_id, ttft_s=3.0)
    refused = store(acorn, at_s=10, outcome="refused", status=429, ttft_s=None)
    new = store(acorn, at_s=20, key_id=key.id, ttft_s=0.1)
    api = acorn.api()
    assert ids(api.get("decisions")) == [str(new), str(refused), str(old)]
    assert ids(api.get(f"decisions?endpoint={endpoint_id}")) == [str(old)]
    assert ids(api.get("decisions?key=app")) == [str(new)]
    assert ids(api.get("decisions?outcome=refused")) == [str(refused)]
    assert ids(api.get("decisions?since=2026-11-01T12:00:05Z&until=2026-11-01T12:00:15Z")) == [str(refused)]
    assert ids(api.get("decisions?slower_than_ms=1000")) == [str(old)]
    assert ids(api.get("decisions?order=slowest")) == [str(old), str(new)]
    first = api.get("decisions?order=slowest&limit=1").json()
    assert ids(api.get(f"decisions?order=slowest&limit=1&cursor={first['next']}")) == [str(new)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("endpoint=nothing", "endpoint"),
        ("key=nothing", "key"),
        (f"replica={ABSENT}", "replica"),
        ("outcome=fine", "outcome"),
        ("since=yesterday", "since"),
        ("until=2026-11-01T12:00:00", "until"),
        ("slower_than_ms=-1", "slower_than_ms"),
        ("order=random", "order"),
        ("limit=1000", "limit"),
        ("cursor=x", "cursor"),
    ],
)
def test_bad_filters_name_the_field(acorn: House, query: str, field: str) -> None:
    answer = acorn.api().get(f"decisions?{query}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def candidates(*replica_ids: str) -> tuple[CandidateRecord, ...]:
    return tuple(
        CandidateRecord(
            replica_id=replica_id,
            replica_name=f"name-{number}",
            matched_tokens=64 * number,
            expected_ttft_s=0.75,
            score_s=1.0,
            queued_tokens=5000.0,
            in_flight=7,
            evidence="inferred",
            terms={"wait": 0.6, "prefill": 0.15, "external_price": 0.2, "pressure": 0.05},
        )
        for number, replica_id in enumerate(replica_ids, start=1)
    )


def test_on_its_own_pool_a_tenant_reads_everything(acorn: House) -> None:
    api = acorn.api()
    api.post("pools", {"name": "gpu"})
    replica = api.post("replicas", {"pool": "gpu", "name": "a", "url": "http://127.0.0.1:9001"}).json()
    decision_id = store(acorn, replica_id=replica["id"], replica_name="a", candidates=candidates(replica["id"]))
    answer = api.get(f"decisions/{decision_id}").json()
    assert answer["replica_id"] == replica["id"]
    (candidate,) = answer["decision"]["candidates"]
    assert (candidate["replica"], candidate["chosen"], candidate["in_flight"], candidate["queued_tokens"]) == ("name-1", True, 7, 5000.0)
    assert candidate["terms"] == {"wait": 0.6, "prefill": 0.15, "external_price": 0.2, "pressure": 0.05}
    assert answer["decision"]["record"]["route"] == "chat"
    assert ids(api.get("decisions?replica=a")) == [str(decision_id)]


def test_on_a_platform_pool_a_tenant_reads_its_own_terms(acorn: House, platform: Api) -> None:
    """One rounded wait; no replica by id or name, no load, no sums from which the load follows. The platform reads it all."""
    first, second = str(uuid.UUID(int=2)), str(uuid.UUID(int=1))
    decision_id = store(
        acorn,
        replica_id=first,
        replica_name="secret-name",
        candidates=(*candidates(first, second), CandidateRecord(replica_id="x", replica_name="secret-3", refusal="breaker open")),
        attempts=(AttemptRecord(replica_id=second, status=503, duration_s=0.1), AttemptRecord(replica_id=first, status=200)),
    )
    raw = acorn.api().get(f"decisions/{decision_id}")
    answer = raw.json()
    assert answer["replica_id"] is None
    shown = answer["decision"]
    assert (shown["replica"], shown["replica_id"], shown["pool_wait_s"]) == ("replica 2", None, 1.0)
    assert [row["replica"] for row in shown["candidates"]] == ["replica 2", "replica 1", "replica 3"]
    assert [row["chosen"] for row in shown["candidates"]] == [True, False, False]
    assert shown["candidates"][0]["terms"] == {"prefill": 0.15, "external_price": 0.2}
    assert shown["candidates"][0]["matched_tokens"] == 64
    assert {row[name] for row in shown["candidates"] for name in ("in_flight", "queued_tokens", "expected_ttft_s", "score_s")} == {None}
    assert shown["candidates"][2]["refusal"] == "not available"
    assert [row["replica"] for row in shown["attempts"]] == ["replica 1", "replica 2"]
    for secret in (first, second, "secret", "name-", "5000", "breaker"):
        assert secret.encode() not in raw.content
    assert first.encode() not in acorn.api().get("decisions").content
    seen = platform.get(f"decisions/{decision_id}", X_Saltroute_Tenant="acorn").json()
    assert seen["decision"]["replica"] == "name-1"
    assert ids(platform.get(f"decisions?replica={first}", X_Saltroute_Tenant="acorn")) == [str(decision_id)]


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    decision_id = store(acorn)
    answers = {birch.api().get(f"decisions/{reference}").content for reference in (decision_id, ABSENT, "nonsense", "chat")}
    assert len(answers) == 1
    assert birch.api().get("decisions").json()["results"] == []


def test_routers_and_status(acorn: House, platform: Api, valkey_url: str) -> None:
    """Which routers run the newest version; what they say of themselves is the platform's to read."""
    version = acorn.api().get("status").json()["config_version"]
    with redis.Redis.from_url(valkey_url) as client:
        client.set("saltroute:router:r1", msgspec.json.encode({"state": "ready", "versions": {str(acorn.id): version}, "in_flight": 3}))
        client.set("saltroute:router:r2", msgspec.json.encode({"state": "stale", "versions": {str(acorn.id): version - 1}}))
        client.hset("saltroute:versions", str(acorn.id), str(version))
    answer = acorn.api().get("routers").json()
    assert (answer["summary"], answer["applied"], answer["total"], answer["published_version"]) == ("applied by 1 of 2 routers", 1, 2, version)
    assert answer["routers"][1] == {"router_id": "r2", "applied_version": version - 1, "stale": True, "report": None}
    seen = platform.get("routers", X_Saltroute_Tenant="acorn").json()
    assert seen["routers"][0]["report"]["in_flight"] == 3
    status = acorn.api().get("status/").json()
    assert (status["tenant"], status["applied"], status["endpoints"], status["pools"]) == ("acorn", "applied by 1 of 2 routers", 0, 0)


def test_without_valkey_status_still_answers(acorn: House, settings: Any) -> None:
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    assert acorn.api().get("routers").json()["reachable"] is False
    assert acorn.api().get("status").json()["published_version"] is None
