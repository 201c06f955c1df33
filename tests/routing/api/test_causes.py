"""Causes summed over decisions: by endpoint, scope and hour, exactly, bounded, and folded where others' load would show."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from routing.core.record import CauseRecord
from routing.services import causes
from tests.routing.api.test_decisions import store
from tests.tenants.houses import House

pytestmark = pytest.mark.django_db
PERIOD = "since=2026-11-01T12:00:00Z&until=2026-11-01T15:00:00Z"


def _cause(main: str, **parts_us: int) -> CauseRecord:
    return CauseRecord(parts_us=parts_us, main=main, missed_tokens={"evicted": 10} if "missed_evicted" in parts_us else {})


def _groups(answer: Any) -> dict[str | None, dict[str, float]]:
    assert answer.status_code == 200, answer.content
    return {group["of"]: {part["part"]: part["seconds"] for part in group["parts"]} for group in answer.json()["groups"]}


def test_sums_are_exact_for_each_endpoint_and_hour(acorn: House, birch: House) -> None:
    one, other = uuid.uuid4(), uuid.uuid4()
    store(acorn, at_s=10, endpoint_id=one, cause=_cause("missed_evicted", missed_evicted=1_500_001, ideal=20_000))
    store(acorn, at_s=20, endpoint_id=one, cause=_cause("queue_router", queue_router=700_000, ideal=20_000))
    store(acorn, at_s=3700, endpoint_id=other, cause=_cause("generation", generation=4_000_000))
    store(acorn, at_s=30)  # of an older router, without a cause
    store(birch, at_s=10, cause=_cause("generation", generation=9_000_000))
    answer = acorn.api().get(f"causes?{PERIOD}")
    assert _groups(answer) == {str(other): {"generation": 4.0}, str(one): {"ideal": 0.04, "queue_router": 0.7, "missed_evicted": 1.500001}}
    assert (answer.json()["read"], answer.json()["complete"]) == (3, True)
    first = answer.json()["groups"][1]
    assert {part["part"]: part["main_of"] for part in first["parts"]} == {"ideal": 0, "queue_router": 1, "missed_evicted": 1}
    assert first["missed_tokens"] == {"evicted": 10}
    by_hour = _groups(acorn.api().get(f"causes?by=hour&{PERIOD}"))
    assert list(by_hour) == ["2026-11-01T12:00:00+00:00", "2026-11-01T13:00:00+00:00"]
    assert _groups(acorn.api().get(f"causes?endpoint={other}&{PERIOD}")) == {str(other): {"generation": 4.0}}
    assert set(_groups(acorn.api().get(f"causes?by=scope&{PERIOD}"))) == {None}


def test_a_platform_pool_is_folded(acorn: House) -> None:
    store(acorn, at_s=1, replica_id=str(uuid.uuid4()), cause=_cause("queue_engine", queue_engine=600_000, slow_replica=100_000, ideal=10_000))
    answer = acorn.api().get(f"causes?{PERIOD}")
    assert _groups(answer) == {None: {"ideal": 0.01, "replica": 0.7}}
    assert b"queue_engine" not in answer.content


def test_the_query_is_bounded_and_says_so(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "MAX_ROWS", 2)
    for at_s in range(3):
        store(acorn, at_s=at_s, cause=_cause("generation", generation=1_000_000))
    answer = acorn.api().get(f"causes?{PERIOD}").json()
    assert (answer["read"], answer["complete"], answer["groups"][0]["decisions"]) == (2, False, 2)


@pytest.mark.parametrize("query", ["by=replica", "since=yesterday", "since=2026-01-01T00:00:00Z", "endpoint=nothing", "until=2026-11-01T12:00:00"])
def test_what_cannot_be_asked_is_refused_by_name(acorn: House, query: str) -> None:
    answer = acorn.api().get(f"causes?{query}")
    assert answer.status_code == 400
    assert query.split("=", maxsplit=1)[0] in answer.content.decode()
