"""What the services of this app share: rows by id under a lock, limits with their numbers, what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from tenants.core.errors import Invalid, LimitReached, NotFound
from tenants.models import TenantRow

Row = TypeVar("Row", bound=TenantRow)
T = TypeVar("T")


def locked(model: type[Row], *, tenant_id: UUID, row_id: UUID) -> Row:
    """The tenant's row, locked until the transaction ends.

    Raises:
        NotFound: no such row in this tenant.
    """
    row = model._default_manager.select_for_update().filter(tenant_id=tenant_id, id=row_id).first()
    if row is None:
        raise NotFound
    return row


def in_turn(refs: list[T], at_s: float, *, every_s: float) -> list[T]:
    """The same, beginning with another one at each sweep: who comes first may use up its time, so everybody is first in turn.

    ``at_s`` is the clock, ``every_s`` the time between two sweeps.
    """
    start = int(at_s // every_s) % len(refs) if refs else 0
    return refs[start:] + refs[:start]


def within(count: int, maximum: int, what: str) -> None:
    """Refuse one more of ``what`` when there are ``maximum`` already.

    Raises:
        LimitReached: the message names the limit and its number.
    """
    if count >= maximum:
        raise LimitReached(f"There may be at most {maximum} {what}; delete one first.")


def one_of(value: object, allowed: tuple[str, ...], *, field: str) -> str:
    """Check a word from a fixed list.

    Raises:
        Invalid: another word, or no text.
    """
    if not isinstance(value, str) or value not in allowed:
        raise Invalid(f"Use one of: {', '.join(allowed)}.", field=field)
    return value


def apply_changes(row: TenantRow, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Set the attributes that differ, save them, and return them as (before, after). Both empty: nothing differed, nothing was written."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name, value in wanted.items():
        old = getattr(row, name)
        old = bytes(old) if isinstance(old, memoryview) else old
        if old != value:
            before[name], after[name] = old, value
            setattr(row, name, value)
    if after:
        row.save(update_fields=list(after))
    return before, after


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the audit log keeps them: digests in hexadecimal, ids as text."""
    return {name: value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, UUID) else value for name, value in values.items()}
