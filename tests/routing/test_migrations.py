"""Migrations over rows that exist: decisions of every age move into their partitions whole, and stay their tenant's."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from deploy.local.roles import OWNER
from tests.services import Services

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 110
_PLAIN: dict[str, Any] = {
    "uuid": uuid.uuid4,
    "timestamp with time zone": lambda: datetime.now(UTC),
    "boolean": lambda: False,
    "jsonb": lambda: Jsonb({}),
    "bytea": lambda: b"",
    "character varying": lambda: "x",
    "text": lambda: "x",
}
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def database(postgres_server: Services) -> Iterator[str]:
    """URL of an empty database of this test's own."""
    name = f"migrations_{uuid.uuid4().hex[:10]}"
    url = postgres_server.role_url(OWNER)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield url.replace("/saltroute?", f"/{name}?")
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def migrate(url: str, *to: str) -> None:
    argv = [sys.executable, "manage.py", "migrate", "--verbosity", "0", *to]
    done = subprocess.run(
        argv, cwd=REPOSITORY, env={**os.environ, "DATABASE_URL": url}, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr


def add(connection: Connection, table: str, **given: Any) -> None:
    """A row; columns that need a value and have none get a plain one, whatever columns the table has at this point."""
    columns = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s AND is_nullable = 'NO' AND column_default IS NULL",
        [table],
    ).fetchall()
    row = {name: _PLAIN.get(kind, lambda: 0)() for name, kind in columns if name not in given} | given
    names = sql.SQL(", ").join(map(sql.Identifier, row))
    marks = sql.SQL(", ").join(sql.Placeholder() * len(row))
    connection.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.Identifier(table), names, marks), list(row.values()))


def scoped(connection: Connection, tenant_id: uuid.UUID) -> None:
    connection.execute("SELECT set_config('saltroute.tenant', %s, false)", [str(tenant_id)])


def decisions(connection: Connection, tenant_id: uuid.UUID) -> list[tuple[Any, ...]]:
    scoped(connection, tenant_id)
    return connection.execute(
        "SELECT id, tenant_id, started_at, endpoint_id, replica_id, outcome, status, ttft_s, record FROM routing_decisionrow ORDER BY started_at"
    ).fetchall()


@pytest.mark.timeout(400)
def test_decisions_of_every_age_move_into_their_partitions(database: str) -> None:
    """From 0010, where they lie in one table, over 0013 to the newest: the same rows, each in its day's partition or among all others, and no tenant
    sees another's, not even in a partition by its own name."""
    migrate(database, "routing", "0010_policy_trials")
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    ages = [timedelta(0), timedelta(days=1), timedelta(days=30), timedelta(days=365), timedelta(days=400), -timedelta(days=20)]
    tenants = [uuid.uuid4(), uuid.uuid4()]
    with psycopg.connect(database, autocommit=True) as connection:
        for number, tenant_id in enumerate(tenants):
            scoped(connection, tenant_id)
            add(connection, "tenants_tenant", id=tenant_id, slug=f"tenant-{number}", name="x")
            for age in ages:
                add(
                    connection,
                    "routing_decisionrow",
                    tenant_id=tenant_id,
                    started_at=midnight + timedelta(hours=5) - age,
                    outcome="ok",
                    ttft_s=0.25,
                    endpoint_id=uuid.uuid4(),
                    record=Jsonb({"terms": [1, {"a": "ä"}]}),
                )
        before = {tenant_id: decisions(connection, tenant_id) for tenant_id in tenants}
    assert {len(rows) for rows in before.values()} == {len(ages)}
    migrate(database, "routing", "0013_replica_max_concurrency")
    with psycopg.connect(database, autocommit=True) as connection:
        for tenant_id in tenants:
            assert decisions(connection, tenant_id) == before[tenant_id]
            lies = connection.execute("SELECT started_at, tableoid::regclass::text FROM routing_decisionrow ORDER BY started_at").fetchall()
            days = [at.astimezone(UTC).strftime("routing_decisionrow_p%Y%m%d") for at, _ in lies]
            assert [table for _, table in lies] == ["routing_decisionrow_other", *days[1:-1], "routing_decisionrow_other"]
        assert connection.execute("SELECT to_regclass('routing_decisionrow_before')").fetchone() == (None,)
        scoped(connection, tenants[0])
        for table in ("routing_decisionrow_other", days[1]):
            held = connection.execute(sql.SQL("SELECT DISTINCT tenant_id FROM {}").format(sql.Identifier(table))).fetchall()
            assert held == [(tenants[0],)]
        add(connection, "routing_rolluprow", tenant_id=tenants[0], start_at=now, width_s=60, outcome="ok", histograms=b"")
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        for tenant_id in tenants:
            assert decisions(connection, tenant_id) == before[tenant_id]
        scoped(connection, tenants[0])
        assert connection.execute("SELECT grain, ceiling_tokens, causes FROM routing_rolluprow").fetchall() == [(0, 0, {})]
