"""What came of requests: decisions, what they add up to, and how long they are kept. Part of routing.models, which names them all."""

from __future__ import annotations

from django.db import models

from tenants.models import TenantRow


class DecisionRow(TenantRow):
    """A stored decision record; written by ingest alone. ``record`` is what of routing.core.record.DecisionRecord the columns do not hold, as JSON.

    The table is partitioned by day (UTC) of ``started_at``, which is therefore part of its primary key in PostgreSQL: (id, started_at).
    """

    started_at = models.DateTimeField()
    endpoint_id = models.UUIDField(null=True, blank=True)
    key_id = models.UUIDField(null=True, blank=True)
    scope_id = models.UUIDField(null=True, blank=True)
    replica_id = models.CharField(max_length=64, blank=True, default="")
    outcome = models.CharField(max_length=20)
    status = models.IntegerField()
    prompt_tokens = models.IntegerField(null=True, blank=True)
    cached_tokens = models.IntegerField(null=True, blank=True)
    completion_tokens = models.IntegerField(null=True, blank=True)
    matched_tokens = models.IntegerField(default=0)
    expected_ttft_s = models.FloatField(null=True, blank=True)
    ttft_s = models.FloatField(null=True, blank=True)
    e2e_s = models.FloatField(null=True, blank=True)
    record = models.JSONField()

    class Meta(TenantRow.Meta):
        constraints = []  # nothing refers to a decision, and an index costs each row
        indexes = [
            models.Index(fields=["tenant", "-started_at"], name="decision_by_time"),
            models.Index(fields=["tenant", "endpoint_id", "-started_at"], name="decision_by_endpoint"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class RollupRow(TenantRow):
    """Requests of some minutes added up: routing.core.rollup.Rollup. Rows of one key are parts of a sum: ingest adds, ``rollups.fold`` merges."""

    start_at = models.DateTimeField()
    width_s = models.IntegerField()
    endpoint_id = models.UUIDField(null=True, blank=True)
    scope_id = models.UUIDField(null=True, blank=True)
    replica_id = models.CharField(max_length=64, blank=True, default="")
    outcome = models.CharField(max_length=20)
    requests = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reported_prompt_tokens = models.BigIntegerField()
    matched_tokens = models.BigIntegerField()
    expected_tokens = models.BigIntegerField()
    slo_missed = models.BigIntegerField()
    saved_us = models.BigIntegerField()
    codes = models.JSONField(default=dict)
    histograms = models.BinaryField()

    class Meta(TenantRow.Meta):
        constraints = []
        indexes = [models.Index(fields=["tenant", "start_at"], name="rollup_by_time")]

    def __str__(self) -> str:
        return f"{self.start_at} {self.outcome}"


class UsageRow(TenantRow):
    """What was used on a day (UTC): routing.core.rollup.Usage. Rows of the same key are parts of one sum, as for rollups."""

    day = models.DateField()
    key_id = models.UUIDField(null=True, blank=True)
    scope_id = models.UUIDField(null=True, blank=True)
    endpoint_id = models.UUIDField(null=True, blank=True)
    requests = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    saved_us = models.BigIntegerField()

    class Meta(TenantRow.Meta):
        constraints = []
        indexes = [models.Index(fields=["tenant", "day"], name="usage_by_day")]

    def __str__(self) -> str:
        return f"{self.day}"


class RecordSettings(TenantRow):
    """How long a tenant keeps its decisions. Without a row as long as the platform allows."""

    keep_days = models.IntegerField()

    class Meta(TenantRow.Meta):
        constraints = [models.UniqueConstraint(fields=["tenant"], name="record_settings_once")]

    def __str__(self) -> str:
        return f"{self.keep_days} days"


class RecordAccount(models.Model):
    """What ingest took of the records that one router process numbered; the numbers that are missing were lost. No tenant's: routers serve all."""

    at = models.DateTimeField()
    router_id = models.CharField(max_length=200)
    boot_ms = models.BigIntegerField()  # unix ms of the process's start
    highest = models.BigIntegerField()  # number that was seen
    stored = models.BigIntegerField()
    refused = models.BigIntegerField()  # by the database, or for what they say

    class Meta:
        indexes = [models.Index(fields=["router_id", "boot_ms"], name="record_account_by_router")]

    def __str__(self) -> str:
        return f"{self.router_id} {self.highest}"
