"""Partitions come and go through one door, tenants keep less than the platform, and lost records are counted."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from routing.core.record import DecisionRecord
from routing.models import DecisionRow, RecordAccount
from routing.services import records, retention
from tenants.core.errors import Invalid
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, actions

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)
AsOwner = Callable[[], AbstractContextManager[None]]


def keep(tenant: Made, ago_days: float, **fields: Any) -> None:
    """Store one decision as ingest does, by its role."""
    at = (NOW - timedelta(days=ago_days)).timestamp()
    given: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1}
    one = DecisionRecord(id=uuid.uuid4(), tenant_id=tenant.id, started_at=at, **{**given, **fields})
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert records.store([one]).stored == 1
        cursor.execute("SET ROLE saltroute_app")


def partitions() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'routing_decisionrow'::regclass")
        return {str(row[0]) for row in cursor.fetchall()}


def named(days: int) -> str:
    return f"routing_decisionrow_p{NOW + timedelta(days=days):%Y%m%d}"


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def make_partition(as_owner: AsOwner, days: int) -> None:
    low, high = (f"{NOW + timedelta(days=days + more):%Y-%m-%d} 00:00+00" for more in (0, 1))
    with as_owner():
        sql(f"CREATE TABLE {named(days)} PARTITION OF routing_decisionrow FOR VALUES FROM ('{low}') TO ('{high}')")


def count(tenant: Made) -> int:
    with tenant_scope(tenant.id):
        return DecisionRow.objects.count()


def test_coming_days_get_partitions_and_old_ones_go(acorn: Made, as_owner: AsOwner, settings: Any) -> None:
    settings.RECORDS_DAYS = 30
    make_partition(as_owner, -31)
    make_partition(as_owner, -30)
    keep(acorn, 31)
    keep(acorn, 30)
    sql("SET CONSTRAINTS ALL IMMEDIATE")  # as a commit does
    with as_owner():
        sql(f"DROP TABLE {named(5)}")
    done = retention.keep_partitions()
    assert (done.created, done.dropped, done.blocked) == (1, 1, 0)
    assert {named(5), named(7), named(0), named(-30)} <= partitions()
    assert named(-31) not in partitions()
    assert count(acorn) == 1
    assert retention.keep_partitions() == retention.Partitions(0, 0, 0)


def test_a_new_partition_is_guarded_from_the_start(acorn: Made, as_owner: AsOwner) -> None:
    """By its own name nobody reads it, and the owner, who may, sees the rows of its scope alone."""
    with as_owner():
        sql(f"DROP TABLE {named(0)}")
    retention.keep_partitions()
    keep(acorn, 0)
    with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
        sql(f"SELECT * FROM {named(0)}")
    with as_owner(), connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {named(0)}")
        assert cursor.fetchone() == (0,)
        with tenant_scope(acorn.id):
            cursor.execute(f"SELECT count(*) FROM {named(0)}")
            assert cursor.fetchone() == (1,)


def test_a_day_whose_rows_came_first_is_told_and_loses_none(acorn: Made, as_owner: AsOwner) -> None:
    with as_owner():
        sql(f"DROP TABLE {named(0)}")
    keep(acorn, 0)  # goes to the partition of all other days
    assert retention.keep_partitions().blocked == 1
    assert count(acorn) == 1


@pytest.mark.parametrize("days", [(7, 0), (0, 30), (1000, 30), (7, 100_000), (7, -1)])
def test_the_door_takes_no_bounds_that_would_empty_the_table(days: tuple[int, int]) -> None:
    with pytest.raises(DatabaseError, match="must be"), transaction.atomic():
        sql(f"SELECT * FROM saltroute_keep_partitions({days[0]}, {days[1]})")


def test_a_tenant_keeps_its_decisions_for_shorter_and_no_other_pays(acorn: Made, birch: Made) -> None:
    for tenant in (acorn, birch):
        for ago_days in (1, 5, 20, 40):
            keep(tenant, ago_days)
    with tenant_scope(acorn.id):
        assert retention.set_days(tenant_id=acorn.id, actor=ACTOR, keep_days=10).keep_days == 10
        assert "records.keep" in actions(acorn.id)
        assert retention.expire(acorn.id) == 2
        assert retention.expire(acorn.id) == 0
        oldest = retention.kept(acorn.id).oldest
    assert oldest is not None
    assert oldest > NOW - timedelta(days=6)
    assert (count(acorn), count(birch)) == (2, 4)
    with tenant_scope(birch.id):
        assert retention.kept(birch.id).keep_days == 30
        assert retention.expire(birch.id) == 1  # beyond the platform's bound, in the partition of all other days
    sql("SELECT saltroute_expire_decisions(1, 1000)")  # outside any scope
    assert (count(acorn), count(birch)) == (2, 3)


def test_a_longer_time_than_the_platform_s_is_refused(acorn: Made, settings: Any) -> None:
    settings.RECORDS_DAYS = 14
    for days in (0, 15):
        with tenant_scope(acorn.id), pytest.raises(Invalid) as refused:
            retention.set_days(tenant_id=acorn.id, actor=ACTOR, keep_days=days)
        assert refused.value.field == "keep_days"


def test_ingest_may_neither_expire_nor_drop(acorn: Made) -> None:
    for call in ("saltroute_expire_decisions(1, 1)", "saltroute_keep_partitions(7, 1)"):
        with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
            sql(f"SET LOCAL ROLE saltroute_ingest; SELECT {call}")
        sql(f"SELECT {call}")  # the app may


def test_missing_records_are_those_whose_numbers_never_came(acorn: Made) -> None:
    for serial in (1, 2, 5):
        keep(acorn, 0, boot_ms=1000, serial=serial)
    keep(acorn, 0, boot_ms=2000, serial=1)
    for _ in range(2):
        found = {one.started_at.timestamp(): one for one in retention.accounts()}
        assert [(found[at].numbered, found[at].stored, found[at].missing) for at in (1.0, 2.0)] == [(5, 3, 2), (1, 1, 0)]
        retention.fold_accounts(datetime.now(UTC))
    assert RecordAccount.objects.count() == 2
    retention.fold_accounts(datetime.now(UTC) + timedelta(days=31))
    assert retention.accounts() == []


def test_tending_goes_over_all_tenants(acorn: Made, birch: Made) -> None:
    for tenant in (acorn, birch):
        for _ in range(3):
            keep(tenant, 0.1)
        keep(tenant, 40)
    folded, forgotten = retention.tend(NOW)
    assert folded >= 4
    assert forgotten == 2
