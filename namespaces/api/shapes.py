"""Bodies and answers of this app's part of the control API. None ever holds key material."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from namespaces.models import KeyOperation, OperationKind, OperationState, TenantKeyVersion
from tenants.api.bodies import Body

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, description="Goes to the audit log.")]


class RotateKey(Body):
    """Why a key is rotated."""

    reason: Reason


class KeyVersionOut(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the tenant key. A retired one is destroyed 7 days later."""

    version: int
    created_at: datetime
    retired_at: datetime | None


class TenantKeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant key: ``version`` is in force, null until it is made."""

    version: int | None
    versions: list[KeyVersionOut]


class RootKeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """The root key that the control plane seals to, by its id; null where this process knows none."""

    root: str | None


class OperationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation of the root has moved so far. ``unreadable`` values open under no root that the worker has; they were left as they are."""

    keys: int = 0
    sealed: int = 0
    unreadable: int = 0
    left: int = 0


class KeyOperationOut(msgspec.Struct, frozen=True, kw_only=True):
    """Work on keys and how far it is. A ``requested`` one with a ``problem`` waits for what the problem says."""

    id: UUID
    kind: OperationKind
    state: OperationState
    reason: str
    requested_by: str
    root: str | None
    from_version: int | None
    to_version: int | None
    phase: str | None
    passes: int
    tenants_done: int
    tenants_total: int
    counts: OperationCounts
    problem: str | None
    created_at: datetime
    started_at: datetime | None
    advanced_at: datetime | None
    finished_at: datetime | None


def operation_out(row: KeyOperation) -> KeyOperationOut:
    """An operation as answered."""
    return KeyOperationOut(
        id=row.id,
        kind=OperationKind(row.kind),
        state=OperationState(row.state),
        reason=row.reason,
        requested_by=row.actor_label,
        root=row.root_id or None,
        from_version=row.from_version,
        to_version=row.to_version,
        phase=row.phase or None,
        passes=row.passes,
        tenants_done=row.tenants_done,
        tenants_total=row.tenants_total,
        counts=OperationCounts(**row.counts),
        problem=row.problem or None,
        created_at=row.created_at,
        started_at=row.started_at,
        advanced_at=row.advanced_at,
        finished_at=row.finished_at,
    )


def version_out(row: TenantKeyVersion) -> KeyVersionOut:
    """A version of a tenant key as answered: never the wrapped key."""
    return KeyVersionOut(version=row.version, created_at=row.created_at, retired_at=row.retired_at)
