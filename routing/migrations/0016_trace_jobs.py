"""Traces that tenants send, and the jobs over them; guarded from the start."""

import uuid
from typing import Any

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls


def _row(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """The columns that every tenant row has, with ``fields`` between them."""
    return [
        ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
        ("created_at", models.DateTimeField(auto_now_add=True)),
        *fields,
        ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
    ]


def _choices(*words: str) -> list[tuple[str, str]]:
    return [(word, word) for word in words]


class Migration(migrations.Migration):
    dependencies = [("routing", "0015_trace_captures"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.CreateModel(
            name="TraceFile",
            fields=_row(
                ("name", models.CharField(max_length=200)),
                ("requests", models.IntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("block_tokens", models.IntegerField()),
                ("timed", models.BooleanField()),
                ("span_s", models.FloatField()),
                ("size_bytes", models.IntegerField()),
                ("content", models.BinaryField()),
                ("created_by", models.CharField(blank=True, default="", max_length=254)),
            ),
            options={
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_tracefile_tenant_id"),
                    models.UniqueConstraint(fields=("tenant", "name"), name="trace_file_name_per_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="TraceJob",
            fields=_row(
                ("kind", models.CharField(choices=_choices("analyze", "replay", "review"), max_length=16)),
                (
                    "state",
                    models.CharField(choices=_choices("queued", "running", "done", "failed", "cancelled"), default="queued", max_length=16),
                ),
                (
                    "file",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="routing.tracefile",
                    ),
                ),
                ("input_name", models.CharField(max_length=200)),
                ("endpoint_id", models.UUIDField(blank=True, null=True)),
                ("since", models.DateTimeField(blank=True, null=True)),
                ("until", models.DateTimeField(blank=True, null=True)),
                ("parameters", models.JSONField()),
                ("requested_by", models.CharField(blank=True, default="", max_length=254)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("done", models.BigIntegerField(default=0)),
                ("total", models.BigIntegerField(default=0)),
                ("attempts", models.IntegerField(default=0)),
                ("attempt_at", models.DateTimeField(blank=True, null=True)),
                ("attempt_done", models.BigIntegerField(default=0)),
                ("spent_s", models.FloatField(default=0.0)),
                ("holder", models.UUIDField(blank=True, null=True)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                ("checkpoint", models.BinaryField(blank=True, null=True)),
                ("result", models.JSONField(blank=True, null=True)),
                ("plots", models.JSONField(blank=True, default=dict)),
                ("html", models.TextField(blank=True, default="")),
                ("error", models.CharField(blank=True, default="", max_length=500)),
            ),
            options={
                "abstract": False,
                "indexes": [
                    models.Index(fields=["tenant", "-created_at"], name="trace_job_by_time"),
                    models.Index(fields=["tenant", "state"], name="trace_job_by_state"),
                ],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="routing_tracejob_tenant_id")],
            },
        ),
        rls.composite_foreign_key("routing_tracejob", "file_id", "routing_tracefile"),
        rls.tenant_rows("routing_tracefile"),
        rls.tenant_rows("routing_tracejob"),
    ]
