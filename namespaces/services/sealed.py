"""What else is sealed to the root key, kept by apps above this one: sealed here, and carried along when the root is rotated.

Whoever stores a new kind of sealed value registers it, in its AppConfig; a rotation of the root then moves it to the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from namespaces.core import keyring
from namespaces.core.keyring import KeyringError, Roots
from tenants.core.errors import Unavailable
from tenants.models import TenantRow

Bind = Callable[[UUID, UUID], bytes]  # tenant's id and row's id to what the value is bound to


def seal(secret: str, *, info: bytes) -> bytes:
    """Seal a secret to whoever holds the root: nobody else, and not this process, can open it again. ``info`` binds purpose and owner.

    Raises:
        Unavailable: this process cannot seal.
    """
    if settings.SEAL_PUBLIC_KEY is None:
        raise Unavailable("This process holds no seal key, so it cannot store a secret.")
    return keyring.seal(settings.SEAL_PUBLIC_KEY, secret.encode(), info=info)


@dataclass(frozen=True, slots=True)
class Moved:
    """What one go over a tenant's values did. ``unreadable`` opened under no root that we have: they were lost before, and are left as they are."""

    moved: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of sealed values, null where there is none, each bound to its own row."""

    model: type[TenantRow]
    name: str
    bind: Bind

    def rows(self, tenant_id: UUID) -> QuerySet[TenantRow]:
        """The tenant's rows that hold a value."""
        return self.model._default_manager.filter(tenant_id=tenant_id, **{f"{self.name}__isnull": False})

    def fresh(self, row: TenantRow, roots: Roots) -> bytes | None:
        """The row's value sealed to the current root; None: it is.

        Raises:
            KeyringError: it opens under none.
        """
        return roots.reseal(bytes(getattr(row, self.name)), info=self.bind(row.tenant_id, row.id))


class SealedValues:
    """One kind of sealed values. Both methods run inside the tenant's scope, with its row locked."""

    def __init__(self, name: str, *columns: Column) -> None:
        self.name = name
        self._columns = columns

    def reseal(self, tenant_id: UUID, roots: Roots) -> Moved:
        """Seal to the current root whatever is sealed to another. Safe to repeat."""
        moved = unreadable = 0
        for column in self._columns:
            for row in column.rows(tenant_id).select_for_update():
                try:
                    fresh = column.fresh(row, roots)
                except KeyringError:
                    unreadable += 1
                    continue
                if fresh is not None:
                    setattr(row, column.name, fresh)
                    row.save(update_fields=[column.name])
                    moved += 1
        return Moved(moved, unreadable)

    def left(self, tenant_id: UUID, roots: Roots) -> int:
        """How many values are sealed to a root that is not the current one. Changes nothing."""
        found = 0
        for column in self._columns:
            for row in column.rows(tenant_id):
                try:
                    found += column.fresh(row, roots) is not None
                except KeyringError:
                    continue
        return found


_kinds: dict[str, SealedValues] = {}


def register(values: SealedValues) -> None:
    """Let rotations carry these values along. Safe to repeat."""
    _kinds[values.name] = values


def kinds() -> tuple[SealedValues, ...]:
    """Every registered kind, by name."""
    return tuple(_kinds[name] for name in sorted(_kinds))
