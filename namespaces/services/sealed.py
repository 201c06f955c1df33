"""What else is sealed to the root key, kept by apps above this one: each registers how its values are moved to another root.

Whoever stores a new kind of sealed value registers it here, in its AppConfig; a rotation of the root then carries it along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from namespaces.core.keyring import Roots


@dataclass(frozen=True, slots=True)
class Moved:
    """What one go over a tenant's values did. ``unreadable`` opened under no root that we have: they were lost before, and are left as they are."""

    moved: int = 0
    unreadable: int = 0


class SealedValues(Protocol):
    """One kind of sealed values. Both methods run inside the tenant's scope, with its row locked."""

    name: str

    def reseal(self, tenant_id: UUID, roots: Roots) -> Moved:
        """Seal to the current root whatever is sealed to another. Safe to repeat."""
        ...

    def left(self, tenant_id: UUID, roots: Roots) -> int:
        """How many values are sealed to a root that is not the current one. Changes nothing."""
        ...


_kinds: dict[str, SealedValues] = {}


def register(values: SealedValues) -> None:
    """Let rotations carry these values along. Safe to repeat."""
    _kinds[values.name] = values


def kinds() -> tuple[SealedValues, ...]:
    """Every registered kind, by name."""
    return tuple(_kinds[name] for name in sorted(_kinds))
