"""Quotas of tenants, scopes, keys and endpoints; guarded from the start."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls

_MEASURES = ("requests_per_minute", "tokens_per_minute", "tokens_per_month")


class Migration(migrations.Migration):
    dependencies = [("routing", "0016_trace_jobs"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.CreateModel(
            name="Quota",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "of",
                    models.CharField(choices=[(one, one) for one in ("tenant", "platform", "scope", "key", "endpoint")], max_length=16),
                ),
                ("name", models.CharField(blank=True, default="", max_length=520)),
                *((name, models.BigIntegerField(blank=True, null=True)) for name in _MEASURES),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_quota_tenant_id"),
                    models.UniqueConstraint(fields=("tenant", "of", "name"), name="quota_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("requests_per_minute__gt", 0), ("tokens_per_minute__gt", 0), ("tokens_per_month__gt", 0), _connector="OR"
                        ),
                        name="quota_limits_something",
                    ),
                    *(
                        models.CheckConstraint(condition=models.Q((f"{name}__range", (1, 10**15))), name=f"quota_{name}_in_range")
                        for name in _MEASURES
                    ),
                ],
            },
        ),
        rls.tenant_rows("routing_quota"),
    ]
