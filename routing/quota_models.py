"""What tenants' requests may use. Part of routing.models, which names all models."""

from __future__ import annotations

from django.db import models

from routing.core.quota import MAX_LIMIT, MEASURES, OFS
from tenants.models import TenantRow


class Quota(TenantRow):
    """Limits of what ``of`` and ``name`` say. It follows a name, not a row: a rotated key, or a scope made again, finds its quota in place."""

    of = models.CharField(max_length=16, choices=[(one, one) for one in OFS])
    name = models.CharField(max_length=520, blank=True, default="")  # of a key or endpoint, or a scope's path; empty: tenant, platform, root scope
    requests_per_minute = models.BigIntegerField(null=True, blank=True)
    tokens_per_minute = models.BigIntegerField(null=True, blank=True)
    tokens_per_month = models.BigIntegerField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "of", "name"], name="quota_once"),
            models.CheckConstraint(
                condition=models.Q(requests_per_minute__gt=0) | models.Q(tokens_per_minute__gt=0) | models.Q(tokens_per_month__gt=0),
                name="quota_limits_something",
            ),
            *(models.CheckConstraint(condition=models.Q(**{f"{name}__range": (1, MAX_LIMIT)}), name=f"quota_{name}_in_range") for name in MEASURES),
        ]

    def __str__(self) -> str:
        return f"{self.of} {self.name}".strip()
