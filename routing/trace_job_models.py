"""Traces that a tenant sent, and the jobs over them or over its captured traffic. Part of routing.models, which names them all."""

from __future__ import annotations

from django.db import models

from tenants.models import TenantRow

KINDS = ("analyze", "replay", "review")
STATES = ("queued", "running", "done", "failed", "cancelled")


class TraceFile(TenantRow):
    """A trace that was sent: lengths, times and block ids of its requests. Text is read as it arrives and never stored, see services.traces.files."""

    name = models.CharField(max_length=200)
    requests = models.IntegerField()
    prompt_tokens = models.BigIntegerField()
    block_tokens = models.IntegerField()
    timed = models.BooleanField()  # False: its times are made up
    span_s = models.FloatField()
    size_bytes = models.IntegerField()  # of the content
    content = models.BinaryField()  # chunks as routing.traces.stored packs them
    created_by = models.CharField(max_length=254, blank=True, default="")

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints, models.UniqueConstraint(fields=["tenant", "name"], name="trace_file_name_per_tenant")]

    def __str__(self) -> str:
        return self.name


class TraceJob(TenantRow):
    """An analysis, a replay or a review of a policy: asked for, carried out by a worker that holds it, and what came of it.

    ``parameters`` are all that the work needs but its requests, so that a job that is taken up again does the same. Names are kept as they were.
    """

    kind = models.CharField(max_length=16, choices=[(one, one) for one in KINDS])
    state = models.CharField(max_length=16, choices=[(one, one) for one in STATES], default="queued")
    file = models.ForeignKey(TraceFile, on_delete=models.PROTECT, related_name="+", db_constraint=False, null=True, blank=True)
    input_name = models.CharField(max_length=200)  # of the file, or of the endpoint
    endpoint_id = models.UUIDField(null=True, blank=True)
    since = models.DateTimeField(null=True, blank=True)  # of the captured traffic
    until = models.DateTimeField(null=True, blank=True)
    parameters = models.JSONField()
    requested_by = models.CharField(max_length=254, blank=True, default="")
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    done = models.BigIntegerField(default=0)  # of ``total`` steps; a step is a request in one run
    total = models.BigIntegerField(default=0)
    attempts = models.IntegerField(default=0)
    attempt_at = models.DateTimeField(null=True, blank=True)
    attempt_done = models.BigIntegerField(default=0)  # steps that were done when the attempt began
    spent_s = models.FloatField(default=0.0)  # by all attempts
    holder = models.UUIDField(null=True, blank=True)  # of the attempt that may write
    lease_until = models.DateTimeField(null=True, blank=True)
    checkpoint = models.BinaryField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    plots = models.JSONField(default=dict, blank=True)  # name -> SVG
    html = models.TextField(blank=True, default="")
    error = models.CharField(max_length=500, blank=True, default="")

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints]
        indexes = [
            models.Index(fields=["tenant", "-created_at"], name="trace_job_by_time"),
            models.Index(fields=["tenant", "state"], name="trace_job_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"
