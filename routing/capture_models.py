"""Trace captures and what they hold. Part of routing.models, which names them all."""

from __future__ import annotations

from django.db import models

from tenants.models import TenantRow

END_REASONS = ("time", "switched off", "budget", "deleted")


class TraceCapture(TenantRow):
    """One stretch of time in which a share of an endpoint's conversations is captured. The row outlives its content: what was captured is history.

    ``seed`` is the half of the capture's key that only this row holds (namespaces.core.captures); None: destroyed, and every id with it.
    """

    endpoint_id = models.UUIDField()
    endpoint_name = models.CharField(max_length=200)
    share = models.FloatField()  # of the conversations
    began_at = models.DateTimeField()
    ends_at = models.DateTimeField()  # by itself
    ended_at = models.DateTimeField(null=True, blank=True)
    end_reason = models.CharField(max_length=16, blank=True, default="", choices=[(one, one) for one in END_REASONS])
    deleted_at = models.DateTimeField(null=True, blank=True)
    seed = models.BinaryField(max_length=32, null=True, blank=True)
    begun_by = models.CharField(max_length=254, blank=True, default="")

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "endpoint_id"], condition=models.Q(ended_at=None), name="trace_capture_one_running"),
            models.CheckConstraint(condition=models.Q(share__gt=0.0, share__lte=1.0), name="trace_capture_share_is_a_share"),
            models.CheckConstraint(condition=models.Q(deleted_at=None) | models.Q(seed=None), name="trace_capture_deleted_has_no_seed"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint_name} {self.began_at}"


class CapturedRequest(TenantRow):
    """One captured request: routing.core.capture.CaptureRecord. Written by ingest alone.

    The table is partitioned by day (UTC) of ``at``, which is therefore part of its primary key in PostgreSQL: (id, at).
    """

    capture_id = models.UUIDField()
    at = models.DateTimeField()
    prompt_tokens = models.IntegerField()
    output_tokens = models.IntegerField()
    blocks = models.BinaryField()
    exact = models.BooleanField()
    session = models.BigIntegerField()
    named = models.BooleanField()
    turn = models.IntegerField()
    scope = models.BigIntegerField()
    kind = models.CharField(max_length=16)
    duration_ms = models.IntegerField()

    class Meta(TenantRow.Meta):
        constraints = []  # as for decisions
        indexes = [models.Index(fields=["tenant", "capture_id", "at", "id"], name="captured_by_time")]

    def __str__(self) -> str:
        return str(self.id)


class CaptureAccount(TenantRow):
    """What ingest took of what one router process captured; rows of one process are parts of a sum. Numbers that are missing were lost."""

    capture_id = models.UUIDField()
    router_id = models.CharField(max_length=200)
    boot_ms = models.BigIntegerField()
    highest = models.BigIntegerField()  # number that was seen
    requests = models.BigIntegerField()
    estimated = models.BigIntegerField()  # of them, whose tokens were counted by bytes
    blocks = models.BigIntegerField()

    class Meta(TenantRow.Meta):
        constraints = []
        indexes = [models.Index(fields=["tenant", "capture_id"], name="capture_account_by_capture")]

    def __str__(self) -> str:
        return f"{self.router_id} {self.highest}"
