"""Causes summed over all requests: by endpoint, scope and hour, equal to the sum of the records, and folded where others' load would show."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from routing.core.cause import MISSES, PARTS
from routing.core.record import CauseRecord, DecisionRecord
from routing.models import DecisionRow
from routing.services import causes, record_store, rollups
from tenants.scoping import tenant_scope
from tests.tenants.houses import House

pytestmark = pytest.mark.django_db
START = datetime(2026, 11, 1, 12, tzinfo=UTC)
PERIOD = "since=2026-11-01T12:00:00Z&until=2026-11-01T15:00:00Z"


def _cause(main: str, **parts_us: int) -> CauseRecord:
    return CauseRecord(parts_us=parts_us, main=main, missed_tokens={"evicted": 10} if "missed_evicted" in parts_us else {})


def _record(house: House, *, at_s: float = 0, **fields: Any) -> DecisionRecord:
    given: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1, **fields}
    return DecisionRecord(id=uuid.uuid4(), tenant_id=house.id, started_at=(START + timedelta(seconds=at_s)).timestamp(), **given)


def _keep(*records: DecisionRecord) -> None:
    """Store them as ingest does, by its role."""
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert record_store.store(records).stored == len(records)
        cursor.execute("SET ROLE saltroute_app")


def store(house: House, **fields: Any) -> None:
    _keep(_record(house, **fields))


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
    assert answer.json()["decisions"] == 3
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


def test_coarser_sums_fold_what_no_read_could_fold_any_more(acorn: House) -> None:
    """A request on a platform's pool, or of a router that does not say, beside one on an own pool: only the latter's parts stay apart. The platform
    reads all of them."""
    own, foreign = str(uuid.uuid4()), str(uuid.uuid4())
    parts: dict[str, int] = {"queue_engine": 100_000, "ideal": 1000}
    _keep(
        _record(acorn, replica_id=own, cause=CauseRecord(parts_us=parts, main="queue_engine", own_pool=True)),
        _record(acorn, replica_id=foreign, cause=CauseRecord(parts_us=parts, main="queue_engine")),
    )
    with tenant_scope(acorn.id):
        for by in ("endpoint", "scope", "hour"):
            asked: dict[str, Any] = {"by": by, "since": START, "until": START + timedelta(hours=1)}
            (group,) = causes.summed(acorn.id, readable={own}, **asked).groups
            assert {part.part: (part.seconds, part.main_of) for part in group.parts} == {
                "ideal": (0.002, 0),
                "queue_engine": (0.1, 1),
                "replica": (0.1, 1),
            }
            (whole,) = causes.summed(acorn.id, readable=None, **asked).groups
            assert {part.part: part.seconds for part in whole.parts} == {"ideal": 0.002, "queue_engine": 0.2}


@pytest.mark.parametrize("readable", [None, {"a", "b"}])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by", ["endpoint", "scope", "hour"])
def test_totals_equal_the_sum_of_the_records_and_outlive_them(acorn: House, by: causes.By, seed: int, readable: set[str] | None) -> None:
    """To the microsecond, of random records in random batches, before and after rows are folded, and without a single decision row."""
    draw = random.Random(seed)
    ids = [uuid.UUID(int=draw.getrandbits(128)) for _ in range(3)]
    records = [
        _record(
            acorn,
            at_s=draw.randrange(0, 10_000),
            endpoint_id=draw.choice([*ids, None]),
            scope_id=draw.choice(ids),
            replica_id=draw.choice(["a", "b", None]),
            outcome=draw.choice(["ok", "refused"]),
            cause=draw.choice(
                [
                    None,
                    CauseRecord(
                        parts_us={part: draw.randrange(0, 10**9) for part in draw.sample(PARTS, 5)},
                        main=draw.choice([*PARTS, None]),
                        missed_tokens={miss: draw.randrange(0, 10**5) for miss in draw.sample(MISSES, 2)},
                        own_pool=True,
                    ),
                ]
            ),
        )
        for _ in range(60)
    ]
    for at in range(0, len(records), 17):
        _keep(*records[at : at + 17])
    expected: dict[str | None, Counter[str]] = {}
    for one in records:
        if one.cause is None:
            continue
        hour = datetime.fromtimestamp(one.started_at, tz=UTC).replace(minute=0, second=0).isoformat()
        of: str | None = {"endpoint": str(one.endpoint_id) if one.endpoint_id else None, "scope": str(one.scope_id), "hour": hour}[by]
        counter = expected.setdefault(of, Counter())
        counter["n"] += 1
        counter.update({f"us {part}": part_us for part, part_us in one.cause.parts_us.items()})
        counter.update({f"missed {why}": tokens for why, tokens in one.cause.missed_tokens.items()})
        counter.update([f"main {one.cause.main}"] if one.cause.main in one.cause.parts_us else [])
    with tenant_scope(acorn.id):
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_owner")
            DecisionRow.objects.all().delete()
            cursor.execute("SET ROLE saltroute_app")
        for _ in range(2):
            found = causes.summed(acorn.id, by=by, readable=readable, since=START, until=START + timedelta(hours=3))
            seen = {
                group.of: Counter(
                    {
                        "n": group.decisions,
                        **{f"us {part.part}": round(part.seconds * 1e6) for part in group.parts},
                        **{f"main {part.part}": part.main_of for part in group.parts if part.main_of},
                        **{f"missed {why}": tokens for why, tokens in group.missed_tokens.items()},
                    }
                )
                for group in found.groups
            }
            for of, counter in expected.items():
                mine = seen[of]
                assert {name: count for name, count in mine.items() if not name.startswith("main")} == {
                    name: count for name, count in counter.items() if not name.startswith("main")
                }
                assert all(mine[name] >= count for name, count in counter.items())
            assert set(seen) == set(expected)
            assert found.decisions == sum(one.cause is not None for one in records)
            rollups.fold(acorn.id, datetime.now(UTC))


@pytest.mark.parametrize("query", ["by=replica", "since=yesterday", "since=2026-01-01T00:00:00Z", "endpoint=nothing", "until=2026-11-01T12:00:00"])
def test_what_cannot_be_asked_is_refused_by_name(acorn: House, query: str) -> None:
    answer = acorn.api().get(f"causes?{query}")
    assert answer.status_code == 400
    assert query.split("=", maxsplit=1)[0] in answer.content.decode()
