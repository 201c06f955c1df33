"""What people should hear of: objectives by the minute, alerts, and the webhooks that they go to. Part of routing.models, which names all models."""

from __future__ import annotations

from django.db import models

from routing.core.findings import SEVERITIES
from tenants.models import TenantRow


class SloMinute(TenantRow):
    """Requests of one minute that counted for one objective of an endpoint, and how many of them missed it, by the target in force when counted."""

    endpoint_id = models.UUIDField()
    objective = models.CharField(max_length=16)  # such as ttft_p95
    minute = models.DateTimeField()
    total = models.IntegerField()
    bad = models.IntegerField()

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "endpoint_id", "objective", "minute"], name="slo_minute_once"),
        ]

    def __str__(self) -> str:
        return f"{self.objective} {self.minute}"


class Alert(TenantRow):
    """Something that people should hear of, from when it began until it has been calm for long enough. The subject is text: alerts outlive it."""

    kind = models.CharField(max_length=40)
    severity = models.CharField(max_length=16, choices=[(one, one) for one in SEVERITIES])
    state = models.CharField(max_length=16, choices=[("firing", "firing"), ("resolved", "resolved")])
    subject_kind = models.CharField(max_length=16)
    subject_id = models.CharField(max_length=500)
    aspect = models.CharField(max_length=200, blank=True, default="")
    subject = models.CharField(max_length=300)
    explanation = models.CharField(max_length=1000)
    began_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    calm_since = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(
                fields=["tenant", "kind", "subject_kind", "subject_id", "aspect"], condition=models.Q(state="firing"), name="alert_fires_once"
            ),
        ]
        indexes = [models.Index(fields=["tenant", "state", "-created_at"], name="alert_by_state")]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"


class Webhook(TenantRow):
    """Where a tenant's alerts are sent. The secret that signs them is sealed: whoever stored it cannot read it again."""

    name = models.CharField(max_length=100)
    url = models.CharField(max_length=500)
    secret = models.BinaryField()
    kinds = models.JSONField(default=list, blank=True)  # of alerts; empty: all
    enabled = models.BooleanField(default=True)
    delivered_at = models.DateTimeField(null=True, blank=True)  # the last that was accepted
    dead = models.IntegerField(default=0)  # deliveries given up
    dropped = models.IntegerField(default=0)  # never queued, because too many were

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints, models.UniqueConstraint(fields=["tenant", "name"], name="webhook_name_per_tenant")]

    def __str__(self) -> str:
        return self.name


class WebhookDelivery(TenantRow):
    """One message to one webhook, and what became of it. Its id is the receiver's idempotency key: every attempt carries the same."""

    webhook = models.ForeignKey(Webhook, on_delete=models.PROTECT, related_name="+", db_constraint=False)
    event = models.CharField(max_length=32, choices=[(one, one) for one in ("alert.firing", "alert.resolved", "test")])
    alert_id = models.UUIDField(null=True, blank=True)
    body = models.JSONField()  # ours; nothing of an answer is kept but its status
    state = models.CharField(max_length=16, choices=[(one, one) for one in ("queued", "delivered", "dead")], default="queued")
    attempts = models.IntegerField(default=0)
    next_at = models.DateTimeField()
    status = models.IntegerField(null=True, blank=True)
    error = models.CharField(max_length=40, blank=True, default="")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(
                fields=["tenant", "webhook", "event", "alert_id"], condition=models.Q(alert_id__isnull=False), name="webhook_delivery_once"
            ),
        ]
        indexes = [models.Index(fields=["tenant", "state", "next_at"], name="webhook_delivery_due")]

    def __str__(self) -> str:
        return f"{self.event} {self.state}"
