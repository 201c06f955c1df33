"""Rollups and usage in the database: reading, folding and naming change no sum, and no tenant sees another's."""

from __future__ import annotations

import functools
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from routing.core.record import DecisionRecord
from routing.core.rollup import Rollup, Usage
from routing.models import RollupRow, UsageRow
from routing.services import records, rollups, usage
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


def whole(tenant: Made) -> Rollup:
    found = rollups.read(tenant.id, since=NOW - timedelta(days=30), until=NOW + timedelta(hours=1))
    return functools.reduce(Rollup.plus, (one for _, one in found), Rollup())


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
        widths = set(RollupRow.objects.values_list("width_s", flat=True))
        assert widths == {60, 600, 3600}
        assert RollupRow.objects.count() < 15
        assert rollups.fold(acorn.id, NOW) == 0
    with tenant_scope(birch.id):
        assert RollupRow.objects.count() == 2


def test_quantiles_of_folded_rows_are_those_of_all_requests(acorn: Made) -> None:
    keep(*[[record(acorn, ttft_s=n / 100)] for n in range(1, 101)])
    with tenant_scope(acorn.id):
        rollups.fold(acorn.id, NOW)
        assert RollupRow.objects.count() == 1
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
