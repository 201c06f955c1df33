"""Looks at engines before they are added; guarded from the start."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("routing", "0017_quotas"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.CreateModel(
            name="ReplicaCheck",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("pool_id", models.UUIDField()),
                ("name", models.CharField(max_length=100)),
                ("url", models.CharField(max_length=512)),
                ("engine", models.CharField(max_length=16)),
                ("served_model", models.CharField(blank=True, default="", max_length=200)),
                ("endpoint_id", models.UUIDField(blank=True, null=True)),
                ("credential", models.BinaryField(blank=True, null=True)),
                ("credential_tag", models.BinaryField(blank=True, max_length=16, null=True)),
                (
                    "state",
                    models.CharField(choices=[(one, one) for one in ("queued", "running", "done", "failed")], default="queued", max_length=16),
                ),
                ("requested_by", models.CharField(blank=True, default="", max_length=254)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("shown_at", models.DateTimeField(blank=True, null=True)),
                ("report", models.JSONField(blank=True, null=True)),
                ("error", models.CharField(blank=True, default="", max_length=200)),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={
                "abstract": False,
                "indexes": [models.Index(fields=["tenant", "-created_at"], name="replica_check_by_time")],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="routing_replicacheck_tenant_id")],
            },
        ),
        rls.tenant_rows("routing_replicacheck"),
    ]
