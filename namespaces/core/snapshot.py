"""What the data plane knows of a tenant's key material. Part of the snapshot; see routing.core.snapshot."""

from __future__ import annotations

import msgspec


class KeyMaterial(msgspec.Struct, frozen=True):
    """A tenant key as wrapped under the root key; opened in router memory only."""

    version: int
    wrapped: bytes
