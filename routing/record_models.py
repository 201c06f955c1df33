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
            models.Index(fields=["tenant", "-started_at"], condition=models.Q(record__has_key="audit"), name="decision_audits"),  # queries.AUDITS
        ]

    def __str__(self) -> str:
        return str(self.id)


class RollupRow(TenantRow):
    """Requests of some minutes added up: routing.core.rollup.Rollup. Rows of one key are parts of a sum: ingest adds, ``rollups.fold`` merges.

    ``grain`` says which parts of the key a row is of (routing.core.rollup.GRAINS): each request is in one row of every grain, so a sum reads one.
    """

    grain = models.SmallIntegerField(default=0)
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
    ceiling_tokens = models.BigIntegerField(default=0)
    slo_missed = models.BigIntegerField()
    saved_us = models.BigIntegerField()
    codes = models.JSONField(default=dict)
    causes = models.JSONField(default=dict)  # routing.core.cause_sum.CauseSum
    histograms = models.BinaryField()

    class Meta(TenantRow.Meta):
        constraints = []
        indexes = [
            models.Index(fields=["tenant", "grain", "start_at"], name="rollup_by_time"),
            models.Index(fields=["tenant", "endpoint_id", "grain", "start_at"], name="rollup_by_endpoint"),
        ]

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


class ReplicaStateRow(TenantRow):
    """What routers saw of one replica in some seconds, as sums: routing.core.replica_state.Sums. The tenant is the owner of the replica's pool."""

    start_at = models.DateTimeField()
    width_s = models.IntegerField()
    replica_id = models.UUIDField()
    router_id = models.CharField(max_length=200)
    observed_us = models.BigIntegerField()
    busy_us = models.BigIntegerField()
    request_us = models.BigIntegerField()
    event_us = models.BigIntegerField()
    evicted_blocks = models.BigIntegerField()
    kv_samples = models.BigIntegerField()
    kv_used_ppm = models.BigIntegerField()
    block_samples = models.BigIntegerField()
    resident_blocks = models.BigIntegerField()
    distinct_blocks = models.BigIntegerField()

    class Meta(TenantRow.Meta):
        constraints = []  # nothing refers to a state
        indexes = [
            models.Index(fields=["tenant", "start_at"], name="replica_state_by_time"),
            models.Index(fields=["tenant", "replica_id", "start_at"], name="replica_state_by_replica"),
        ]

    def __str__(self) -> str:
        return f"{self.replica_id} {self.start_at}"


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
