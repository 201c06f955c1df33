"""Runs and findings of reconciliation, guarded from the start."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [
        ("routing", "0006_foreign_origins"),
        ("tenants", "0002_row_level_security"),
    ]

    operations = [
        migrations.CreateModel(
            name="ReconciliationFinding",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("kind", models.CharField(max_length=40)),
                ("severity", models.CharField(choices=[("critical", "critical"), ("warning", "warning"), ("info", "info")], max_length=16)),
                ("state", models.CharField(choices=[("watching", "watching"), ("open", "open"), ("resolved", "resolved")], max_length=16)),
                ("subject_kind", models.CharField(max_length=16)),
                ("subject_id", models.CharField(max_length=500)),
                ("aspect", models.CharField(blank=True, default="", max_length=200)),
                ("subject", models.CharField(max_length=300)),
                ("explanation", models.CharField(max_length=1000)),
                ("mark", models.CharField(blank=True, default="", max_length=200)),
                ("first_seen_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                ("repairs", models.IntegerField(default=0)),
                ("repaired_at", models.DateTimeField(blank=True, null=True)),
                ("done", models.CharField(blank=True, default="", max_length=300)),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={
                "abstract": False,
                "indexes": [models.Index(fields=["tenant", "state", "-created_at"], name="reconciliation_finding_state")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_reconciliationfinding_tenant_id"),
                    models.UniqueConstraint(
                        condition=models.Q(("state", "resolved"), _negated=True),
                        fields=("tenant", "kind", "subject_kind", "subject_id", "aspect"),
                        name="reconciliation_finding_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ReconciliationRun",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "state",
                    models.CharField(
                        choices=[("queued", "queued"), ("running", "running"), ("finished", "finished"), ("broken", "broken")],
                        default="queued",
                        max_length=16,
                    ),
                ),
                ("trigger", models.CharField(max_length=16)),
                ("requested_by", models.CharField(blank=True, default="", max_length=254)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("took_s", models.FloatField(blank=True, null=True)),
                ("repeats", models.IntegerField(default=1)),
                ("routers", models.IntegerField(blank=True, null=True)),
                ("watching", models.IntegerField(default=0)),
                ("open", models.IntegerField(default=0)),
                ("opened", models.IntegerField(default=0)),
                ("resolved", models.IntegerField(default=0)),
                ("repairs", models.IntegerField(default=0)),
                ("dropped", models.IntegerField(default=0)),
                ("reason", models.CharField(blank=True, default="", max_length=300)),
                ("observed", models.JSONField(blank=True, default=dict)),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={
                "abstract": False,
                "indexes": [models.Index(fields=["tenant", "-created_at"], name="reconciliation_run_by_time")],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="routing_reconciliationrun_tenant_id")],
            },
        ),
        rls.tenant_rows("routing_reconciliationrun"),
        rls.tenant_rows("routing_reconciliationfinding"),
    ]
