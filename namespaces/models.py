"""UNDER WHICH NAME: wrapped tenant keys. The salts derived from them are stored nowhere."""

from __future__ import annotations

from django.db import models

from tenants.models import TenantRow


class TenantKeyVersion(TenantRow):
    """A tenant key as wrapped under the root key. The highest version that is not retired is in force."""

    version = models.IntegerField()
    wrapped = models.BinaryField()  # nonce + ciphertext + tag; see namespaces.core.keyring
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "version"], name="tenant_key_version_unique"),
        ]

    def __str__(self) -> str:
        return f"v{self.version}"
