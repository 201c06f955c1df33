"""Looks at engines before they are added. Part of routing.models, which names all models."""

from __future__ import annotations

from django.db import models

from tenants.models import TenantRow


class ReplicaCheck(TenantRow):
    """A replica as it was filled in, and what a router found at its address. Added, it becomes the replica of the same id, so that a credential,
    which is sealed to that id, need not be given again."""

    pool_id = models.UUIDField()
    name = models.CharField(max_length=100)
    url = models.CharField(max_length=512)
    engine = models.CharField(max_length=16)
    served_model = models.CharField(max_length=200, blank=True, default="")
    endpoint_id = models.UUIDField(null=True, blank=True)  # whose artifacts tokens are compared with
    credential = models.BinaryField(null=True, blank=True)
    credential_tag = models.BinaryField(max_length=16, null=True, blank=True)
    state = models.CharField(max_length=16, choices=[(one, one) for one in ("queued", "running", "done", "failed")], default="queued")
    requested_by = models.CharField(max_length=254, blank=True, default="")
    started_at = models.DateTimeField(null=True, blank=True)
    shown_at = models.DateTimeField(null=True, blank=True)  # until then it is said to run: how long "nothing answered" took tells nothing
    report = models.JSONField(null=True, blank=True)  # routing.core.replica_check.CheckReport
    error = models.CharField(max_length=200, blank=True, default="")

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints]
        indexes = [models.Index(fields=["tenant", "-created_at"], name="replica_check_by_time")]

    def __str__(self) -> str:
        return f"{self.name} {self.state}"
