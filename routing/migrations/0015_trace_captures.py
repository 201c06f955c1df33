"""Trace captures: what was switched on and when, the captured requests in partitions of a day, and what each router's share of them was.

The partitions have a door of their own, made from that of the decisions (see migration 0011): it takes numbers and no names. The app deletes captured
rows of the tenant it is scoped to; it never changes one.
"""

import uuid
from importlib import import_module
from typing import Any

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls

# ruff: noqa: S608 - every piece of these statements is a constant of this file or of tenants.rls
_earlier = import_module("routing.migrations.0011_records")
_DOOR = "saltroute_keep_capture_partitions(integer, integer)"


def _of_captures(statement: str) -> str:
    """A statement about the partitions of decisions, about those of captured requests."""
    return statement.replace("routing_decisionrow", "routing_capturedrequest").replace(
        "saltroute_keep_partitions", "saltroute_keep_capture_partitions"
    )


_TABLE = [
    """
    CREATE TABLE routing_capturedrequest (
        id uuid NOT NULL, created_at timestamptz NOT NULL, tenant_id uuid NOT NULL, capture_id uuid NOT NULL, at timestamptz NOT NULL,
        prompt_tokens integer NOT NULL, output_tokens integer NOT NULL, blocks bytea NOT NULL, exact boolean NOT NULL, session bigint NOT NULL,
        named boolean NOT NULL, turn integer NOT NULL, scope bigint NOT NULL, kind varchar(16) NOT NULL, duration_ms integer NOT NULL,
        CONSTRAINT routing_capturedrequest_key PRIMARY KEY (id, at),
        CONSTRAINT routing_capturedrequest_tenant FOREIGN KEY (tenant_id) REFERENCES tenants_tenant (id) DEFERRABLE INITIALLY DEFERRED
    ) PARTITION BY RANGE (at)
    """,
    "CREATE INDEX captured_by_time ON routing_capturedrequest (tenant_id, capture_id, at, id)",
    _of_captures(
        f"""
DO $body$
DECLARE
    day date;
    part text := 'routing_decisionrow_other';
    made integer := 0;
    blocked integer := 0;
BEGIN
    PERFORM set_config('timezone', 'UTC', true);
    CREATE TABLE routing_decisionrow_other PARTITION OF routing_decisionrow DEFAULT;
    {_earlier._GUARD}
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(-1, 7) AS n LOOP
        {_earlier._MAKE}
    END LOOP;
END
$body$
"""
    ),
]


def _row(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """The columns that every tenant row has, with ``fields`` between them."""
    return [
        ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
        ("created_at", models.DateTimeField(auto_now_add=True)),
        *fields,
        ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
    ]


_REASONS = [(word, word) for word in ("time", "switched off", "budget", "deleted")]


class Migration(migrations.Migration):
    dependencies = [("routing", "0014_measures"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.CreateModel(
            name="TraceCapture",
            fields=_row(
                ("endpoint_id", models.UUIDField()),
                ("endpoint_name", models.CharField(max_length=200)),
                ("share", models.FloatField()),
                ("began_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("end_reason", models.CharField(blank=True, choices=_REASONS, default="", max_length=16)),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                ("seed", models.BinaryField(blank=True, max_length=32, null=True)),
                ("begun_by", models.CharField(blank=True, default="", max_length=254)),
            ),
            options={
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_tracecapture_tenant_id"),
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)), fields=("tenant", "endpoint_id"), name="trace_capture_one_running"
                    ),
                    models.CheckConstraint(condition=models.Q(("share__gt", 0.0), ("share__lte", 1.0)), name="trace_capture_share_is_a_share"),
                    models.CheckConstraint(
                        condition=models.Q(("deleted_at", None), ("seed", None), _connector="OR"), name="trace_capture_deleted_has_no_seed"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CaptureAccount",
            fields=_row(
                ("capture_id", models.UUIDField()),
                ("router_id", models.CharField(max_length=200)),
                ("boot_ms", models.BigIntegerField()),
                ("highest", models.BigIntegerField()),
                ("requests", models.BigIntegerField()),
                ("estimated", models.BigIntegerField()),
                ("blocks", models.BigIntegerField()),
            ),
            options={
                "abstract": False,
                "constraints": [],
                "indexes": [models.Index(fields=["tenant", "capture_id"], name="capture_account_by_capture")],
            },
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(_TABLE, "DROP TABLE routing_capturedrequest")],
            state_operations=[
                migrations.CreateModel(
                    name="CapturedRequest",
                    fields=_row(
                        ("capture_id", models.UUIDField()),
                        ("at", models.DateTimeField()),
                        ("prompt_tokens", models.IntegerField()),
                        ("output_tokens", models.IntegerField()),
                        ("blocks", models.BinaryField()),
                        ("exact", models.BooleanField()),
                        ("session", models.BigIntegerField()),
                        ("named", models.BooleanField()),
                        ("turn", models.IntegerField()),
                        ("scope", models.BigIntegerField()),
                        ("kind", models.CharField(max_length=16)),
                        ("duration_ms", models.IntegerField()),
                    ),
                    options={
                        "abstract": False,
                        "constraints": [],
                        "indexes": [models.Index(fields=["tenant", "capture_id", "at", "id"], name="captured_by_time")],
                    },
                ),
            ],
        ),
        rls.tenant_rows("routing_tracecapture"),
        rls.tenant_rows("routing_captureaccount", app="SELECT, INSERT, DELETE", ingest=True),
        rls.tenant_rows("routing_capturedrequest", app="SELECT, DELETE", ingest=True),
        migrations.RunSQL([_of_captures(_earlier.KEEP), *_earlier._door(_DOOR)], f"DROP FUNCTION {_DOOR}"),
    ]
