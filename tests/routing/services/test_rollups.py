"""Rollups and usage in the database: reading, folding and naming change no sum, and no tenant sees another's."""

from __future__ import annotations

import functools
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet

from routing.core.record import DecisionRecord
from routing.core.replica_state import ReplicaState
from routing.core.rollup import GRAINS, SUMS, Grain, Rollup, Usage
from routing.models import ReplicaStateRow, RollupRow, UsageRow
from routing.services import record_store, records, rollups, usage
from tenants.core.errors import Invalid
from tenants.scoping import ScopeError, tenant_scope
from tests.routing.services.made import Made

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC).replace(microsecond=0)


def record(tenant: Made, ago: timedelta = timedelta(minutes=5), **fields: Any) -> DecisionRecord:
    given: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1, "prompt_tokens": 100}
    return DecisionRecord(id=uuid.uuid4(), tenant_id=tenant.id, started_at=(NOW - ago).timestamp(), **{**given, **fields})


def keep(*batches: list[DecisionRecord]) -> None:
    """Store each batch as ingest does, by its role."""
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        for batch in batches:
            assert records.store(batch).stored == len(batch)
        cursor.execute("SET ROLE saltroute_app")


def whole(tenant: Made, grain: Grain = "detail") -> Rollup:
    found = rollups.read(tenant.id, since=NOW - timedelta(days=30), until=NOW + timedelta(hours=1), grain=grain)
    return functools.reduce(Rollup.plus, (one for _, one in found), Rollup())


def detail() -> QuerySet[RollupRow]:
    return RollupRow.objects.filter(grain=0)


def test_folding_changes_rows_and_no_sum(acorn: Made, birch: Made) -> None:
    """Batches of one minute become one row, hours-old minutes ten minutes, days-old ones an hour; what is of this minute is left alone."""
    batches = [[record(acorn, timedelta(minutes=5), ttft_s=0.1 * n, cached_tokens=n) for n in range(1, 4)] for _ in range(3)]
    old = [[record(acorn, timedelta(hours=9, minutes=n), ttft_s=n / 10)] for n in range(30)]
    older = [[record(acorn, timedelta(hours=50, minutes=n))] for n in range(120)]
    keep(*batches, *old, *older, [record(acorn, timedelta(0))], [record(acorn, timedelta(0))], [record(birch)], [record(birch)])
    with tenant_scope(acorn.id):
        before, rows_before = whole(acorn), RollupRow.objects.count()
        fewer = rollups.fold(acorn.id, NOW)
        assert fewer >= rows_before - RollupRow.objects.count() > 100
        assert whole(acorn) == before
        widths = set(detail().values_list("width_s", flat=True))
        assert widths == {60, 600, 3600}
        assert detail().count() < 15
        assert rollups.fold(acorn.id, NOW) == 0
    with tenant_scope(birch.id):
        assert detail().count() == 2


def test_every_grain_adds_up_to_the_same(acorn: Made) -> None:
    """Each request is in one row of every grain, before and after folding, and widths follow the grain."""
    ids = [uuid.uuid4() for _ in range(3)]
    ago = [timedelta(minutes=5), timedelta(minutes=40), timedelta(hours=3), timedelta(hours=20), timedelta(hours=60)]
    keep([record(acorn, one, endpoint_id=ids[n % 3], scope_id=ids[n % 2], replica_id=f"r{n}", ttft_s=n / 10) for one in ago for n in range(6)])
    with tenant_scope(acorn.id):
        for _ in range(2):
            for grain in GRAINS[1:]:
                coarse, fine = whole(acorn, grain), whole(acorn)
                assert [getattr(coarse, name) for name in SUMS] == [getattr(fine, name) for name in SUMS]
                assert coarse.histograms["ttft_s"] == fine.histograms["ttft_s"]
            rollups.fold(acorn.id, NOW)
        by_endpoint = RollupRow.objects.filter(grain=1)
        assert set(by_endpoint.values_list("width_s", flat=True)) == {60, 300, 1800, 3600, 21600}
        assert set(by_endpoint.values_list("endpoint_id", flat=True)) == set(ids)
        assert set(RollupRow.objects.filter(grain=3).values_list("endpoint_id", "scope_id", "replica_id")) == {(None, None, "")}
        narrowed = rollups.read(acorn.id, since=NOW - timedelta(days=30), until=NOW, grain="endpoint", endpoints=[ids[0]])
        assert {key.endpoint_id for key, _ in narrowed} == {ids[0]}


def state(tenant: Made, ago: timedelta, **fields: Any) -> ReplicaState:
    usual: dict[str, Any] = {"replica_id": uuid.UUID(int=7), "router_id": "r1", "observed_us": 15_000_000, "busy_us": 3_000_000}
    return ReplicaState(id=uuid.uuid4(), tenant_id=tenant.id, started_at=(NOW - ago).timestamp(), **{**usual, **fields})


def test_states_of_replicas_fold_to_the_same_sums_and_repeat_harmlessly(acorn: Made, birch: Made) -> None:
    """By minute, then wider, for each router; a state that comes twice counts once, and no tenant reads another's."""
    states = [state(acorn, timedelta(minutes=minutes, seconds=15 * n), router_id=f"r{n % 2}") for minutes in (5, 200, 2000) for n in range(8)]
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert record_store.store_states(states).stored == 24
        assert record_store.store_states(states) == record_store.Stored(repeated=24)
        cursor.execute("SET ROLE saltroute_app")
    with tenant_scope(acorn.id):
        before = [sum(one) for one in zip(*ReplicaStateRow.objects.values_list("observed_us", "busy_us"), strict=True)]
        assert rollups.fold(acorn.id, NOW) > 0
        rows = ReplicaStateRow.objects.all()
        assert [sum(one) for one in zip(*rows.values_list("observed_us", "busy_us"), strict=True)] == before
        assert set(rows.values_list("width_s", flat=True)) == {60, 600, 3600}
        assert rows.count() < 14
        assert rollups.fold(acorn.id, NOW) == 0
    with tenant_scope(birch.id):
        assert ReplicaStateRow.objects.count() == 0


def test_quantiles_of_folded_rows_are_those_of_all_requests(acorn: Made) -> None:
    keep(*[[record(acorn, ttft_s=n / 100)] for n in range(1, 101)])
    with tenant_scope(acorn.id):
        rollups.fold(acorn.id, NOW)
        assert detail().count() == 1
        assert rollups.quantile(whole(acorn), "ttft_s", 0.95) == pytest.approx(0.95, rel=0.02)
        assert rollups.quantile(whole(acorn), "e2e_s", 0.95) is None


def test_usage_is_the_sum_of_the_records_by_whatever_it_is_asked(acorn: Made, birch: Made) -> None:
    one, two, scope = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    first = [record(acorn, key_id=one, endpoint_id=two, cached_tokens=40, completion_tokens=7, prefill_tokens_per_s=3000.0) for _ in range(4)]
    second = [record(acorn, key_id=two, scope_id=scope, prompt_tokens=11), record(acorn, timedelta(days=2), key_id=one)]
    keep(first, second, [record(birch, key_id=one)])
    today = NOW.date()
    with tenant_scope(acorn.id):
        for _ in range(2):  # before and after folding
            found = usage.report(acorn.id, since=today - timedelta(days=3), until=today)
            assert found.total == Usage(6, 511, 160, 28, 4 * 13333)
            assert functools.reduce(Usage.plus, (line.used for line in found.lines)) == found.total
            by_key = usage.report(acorn.id, since=today - timedelta(days=3), until=today, by=["key"])
            assert {line.key_id: line.used.input_tokens for line in by_key.lines} == {one: 500, two: 11}
            assert usage.report(acorn.id, since=today - timedelta(days=3), until=today, by=[]).lines == ()
            rollups.fold(acorn.id, NOW)
        assert usage.report(acorn.id, since=today - timedelta(days=30), until=today - timedelta(days=10)).total == Usage()


@pytest.mark.parametrize(("days", "by", "field"), [((0, -1), ["day"], "until"), ((-400, 0), ["day"], "since"), ((0, 0), ["tenant"], "by")])
def test_what_usage_cannot_be_asked(acorn: Made, days: tuple[int, int], by: list[str], field: str) -> None:
    today = date(2026, 11, 30)
    with tenant_scope(acorn.id), pytest.raises(Invalid) as refused:
        usage.report(acorn.id, since=today + timedelta(days=days[0]), until=today + timedelta(days=days[1]), by=by)
    assert refused.value.field == field


def test_a_table_for_spreadsheets_holds_no_formula(acorn: Made) -> None:
    line = usage.Line(date(2026, 11, 30), uuid.UUID(int=1), "=cmd()", None, None, None, None, Usage(1, 2, 3, 4, 1_500_000))
    found = usage.as_csv(usage.Report(date(2026, 11, 30), date(2026, 11, 30), usage.DIMENSIONS, (line,), line.used, truncated=False))
    assert found.splitlines() == [
        "day,key_id,key,scope_id,scope,endpoint_id,endpoint,requests,input_tokens,cached_tokens,output_tokens,engine_seconds_saved_estimate",
        f"2026-11-30,{uuid.UUID(int=1)},'=cmd(),,,,,1,2,3,4,1.500000",
    ]


def test_nothing_is_read_outside_its_scope(acorn: Made, birch: Made) -> None:
    keep([record(acorn)])
    with tenant_scope(birch.id):
        assert RollupRow.objects.count() == UsageRow.objects.count() == 0
        for ask in (lambda: list(rollups.read(acorn.id, since=NOW, until=NOW)), lambda: rollups.fold(acorn.id, NOW)):
            with pytest.raises(ScopeError):
                ask()
