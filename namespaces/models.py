"""UNDER WHICH NAME: wrapped tenant keys. The salts derived from them are stored nowhere."""

from __future__ import annotations

from enum import StrEnum

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


class OperationKind(StrEnum):
    """What only a holder of the root key can do."""

    ROTATE_ROOT = "rotate_root"
    ROTATE_TENANT = "rotate_tenant"


class OperationState(StrEnum):
    """How far an operation is. ``requested`` with a ``problem`` waits for what the problem names."""

    REQUESTED = "requested"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


OPEN_STATES = (OperationState.REQUESTED.value, OperationState.RUNNING.value)


class KeyOperation(TenantRow):
    """Work on keys that was asked for where there is no root key; the ``keys`` worker does it and writes its progress here.

    A rotation of the root lives in the platform's tenant, one of a tenant key in that tenant. ``position`` is the last tenant that this phase is
    done with: it is written in the same transaction as that tenant's rows, so a worker killed at any point goes on exactly there.
    """

    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in OperationKind])
    state = models.CharField(max_length=16, choices=[(state.value, state.value) for state in OperationState], default=OperationState.REQUESTED.value)
    reason = models.CharField(max_length=500)
    actor_kind = models.CharField(max_length=16)
    actor_id = models.UUIDField(null=True, blank=True)
    actor_label = models.CharField(max_length=254)
    peer_address = models.CharField(max_length=64, blank=True, default="")
    root_id = models.CharField(max_length=16, blank=True, default="")  # the root key to rotate to
    from_version = models.IntegerField(null=True, blank=True)  # the tenant key in force when it was asked for
    to_version = models.IntegerField(null=True, blank=True)
    phase = models.CharField(max_length=16, blank=True, default="")  # of a rotation of the root: rewrap, verify
    passes = models.IntegerField(default=0)
    position = models.UUIDField(null=True, blank=True)
    tenants_total = models.IntegerField(default=0)
    tenants_done = models.IntegerField(default=0)  # in this phase
    counts = models.JSONField(default=dict, blank=True)  # keys and sealed values moved, unreadable ones, those left in this phase
    problem = models.CharField(max_length=500, blank=True, default="")
    started_at = models.DateTimeField(null=True, blank=True)
    advanced_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "kind"], condition=models.Q(state__in=OPEN_STATES), name="key_operation_one_open"),
        ]
        indexes = [models.Index(fields=["tenant", "-created_at"], name="key_operation_by_time")]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"
