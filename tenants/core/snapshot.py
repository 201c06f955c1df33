"""What the data plane knows of a tenant's keys and scopes. Part of the snapshot; see routing.core.snapshot."""

from __future__ import annotations

from uuid import UUID

import msgspec


class ScopeEntry(msgspec.Struct, frozen=True):
    """One auth scope: its path from the root and the version that its holders' blocks are cached under."""

    id: UUID
    path: str
    version: int


class KeyEntry(msgspec.Struct, frozen=True):
    """An inference key, by digest. ``expires_at`` is unix seconds; None never expires. ``endpoints`` None means every endpoint."""

    id: UUID
    name: str
    digest: bytes
    scope_id: UUID
    expires_at: float | None = None
    endpoints: tuple[str, ...] | None = None
