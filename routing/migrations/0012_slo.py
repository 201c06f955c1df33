"""Weights of grants, minutes of objectives, alerts and webhooks; guarded from the start."""

import uuid
from typing import Any

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls

_SCOPED = "nullif(current_setting('saltroute.tenant', true), '')::uuid"
_POOLS = "saltroute_granted_pools(grantee uuid)"
_GRANTEES = "saltroute_pool_grantees(wanted uuid)"
_POOL_COLUMNS = "grant_id uuid, pool_id uuid, owner_tenant_id uuid, name text, isolation text, grantees bigint"
_POOL_SELECT = """SELECT g.id, p.id, p.tenant_id, p.name::text, p.isolation::text,
                   (SELECT count(*) FROM routing_poolgrant o WHERE o.pool_id = p.id)"""
_POOL_FROM = f"""
              FROM routing_poolgrant g JOIN routing_pool p ON p.id = g.pool_id
             WHERE g.tenant_id = grantee
               AND grantee = {_SCOPED}
            """
_GRANTEE_FROM = f"""
              FROM routing_poolgrant g JOIN routing_pool p ON p.id = g.pool_id
             WHERE p.id = wanted AND p.tenant_id = {_SCOPED}
            """
_pools_before = rls.definer_function(_POOLS, f"TABLE ({_POOL_COLUMNS})", f"{_POOL_SELECT} {_POOL_FROM}", drop="saltroute_granted_pools(uuid)")
_grantees_before = rls.definer_function(
    _GRANTEES, "TABLE (tenant_id uuid)", f"SELECT g.tenant_id {_GRANTEE_FROM}", drop="saltroute_pool_grantees(uuid)"
)


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
    dependencies = [("routing", "0011_records"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.AddField(model_name="poolgrant", name="weight", field=models.FloatField(default=1.0)),
        migrations.AddConstraint(
            model_name="poolgrant",
            constraint=models.CheckConstraint(condition=models.Q(("weight__gt", 0)), name="pool_grant_weight_is_positive"),
        ),
        migrations.RunSQL(sql="DROP FUNCTION saltroute_granted_pools(uuid)", reverse_sql=_pools_before.sql),
        rls.definer_function(
            _POOLS,
            f"TABLE ({_POOL_COLUMNS}, weight double precision)",
            f"{_POOL_SELECT}, g.weight {_POOL_FROM}",
            drop="saltroute_granted_pools(uuid)",
        ),
        migrations.RunSQL(sql="DROP FUNCTION saltroute_pool_grantees(uuid)", reverse_sql=_grantees_before.sql),
        rls.definer_function(
            _GRANTEES,
            "TABLE (tenant_id uuid, weight double precision)",
            f"SELECT g.tenant_id, g.weight {_GRANTEE_FROM}",
            drop="saltroute_pool_grantees(uuid)",
        ),
        migrations.CreateModel(
            name="SloMinute",
            fields=_row(
                ("endpoint_id", models.UUIDField()),
                ("objective", models.CharField(max_length=16)),
                ("minute", models.DateTimeField()),
                ("total", models.IntegerField()),
                ("bad", models.IntegerField()),
            ),
            options={
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_slominute_tenant_id"),
                    models.UniqueConstraint(fields=("tenant", "endpoint_id", "objective", "minute"), name="slo_minute_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=_row(
                ("kind", models.CharField(max_length=40)),
                ("severity", models.CharField(choices=_choices("critical", "warning", "info"), max_length=16)),
                ("state", models.CharField(choices=_choices("firing", "resolved"), max_length=16)),
                ("subject_kind", models.CharField(max_length=16)),
                ("subject_id", models.CharField(max_length=500)),
                ("aspect", models.CharField(blank=True, default="", max_length=200)),
                ("subject", models.CharField(max_length=300)),
                ("explanation", models.CharField(max_length=1000)),
                ("began_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                ("calm_since", models.DateTimeField(blank=True, null=True)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
            ),
            options={
                "abstract": False,
                "indexes": [models.Index(fields=["tenant", "state", "-created_at"], name="alert_by_state")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_alert_tenant_id"),
                    models.UniqueConstraint(
                        condition=models.Q(("state", "firing")),
                        fields=("tenant", "kind", "subject_kind", "subject_id", "aspect"),
                        name="alert_fires_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Webhook",
            fields=_row(
                ("name", models.CharField(max_length=100)),
                ("url", models.CharField(max_length=500)),
                ("secret", models.BinaryField()),
                ("kinds", models.JSONField(blank=True, default=list)),
                ("enabled", models.BooleanField(default=True)),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
                ("dead", models.IntegerField(default=0)),
                ("dropped", models.IntegerField(default=0)),
            ),
            options={
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_webhook_tenant_id"),
                    models.UniqueConstraint(fields=("tenant", "name"), name="webhook_name_per_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=_row(
                ("event", models.CharField(choices=_choices("alert.firing", "alert.resolved", "test"), max_length=32)),
                ("alert_id", models.UUIDField(blank=True, null=True)),
                ("body", models.JSONField()),
                ("state", models.CharField(choices=_choices("queued", "delivered", "dead"), default="queued", max_length=16)),
                ("attempts", models.IntegerField(default=0)),
                ("next_at", models.DateTimeField()),
                ("status", models.IntegerField(blank=True, null=True)),
                ("error", models.CharField(blank=True, default="", max_length=40)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "webhook",
                    models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="routing.webhook"),
                ),
            ),
            options={
                "abstract": False,
                "indexes": [models.Index(fields=["tenant", "state", "next_at"], name="webhook_delivery_due")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="routing_webhookdelivery_tenant_id"),
                    models.UniqueConstraint(
                        condition=models.Q(("alert_id__isnull", False)),
                        fields=("tenant", "webhook", "event", "alert_id"),
                        name="webhook_delivery_once",
                    ),
                ],
            },
        ),
        rls.composite_foreign_key("routing_webhookdelivery", "webhook_id", "routing_webhook"),
        rls.tenant_rows("routing_slominute"),
        rls.tenant_rows("routing_alert"),
        rls.tenant_rows("routing_webhook"),
        rls.tenant_rows("routing_webhookdelivery"),
    ]
