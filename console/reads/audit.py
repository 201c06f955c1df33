"""The audit log as the console shows it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

from console.reads import decisions
from tenants import queries
from tenants.models import AuditEntry

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Entries, newest first, and the cursor of the next page or an empty text."""

    rows: tuple[AuditEntry, ...]
    next: str


def listed(tenant_id: UUID, cursor: str, *, action: str = "") -> Page:
    """One page, inside the tenant scope; ``action`` is a whole action such as api_key.revoke, or its noun."""
    entries = AuditEntry.objects.none() if "\0" in action else queries.audit_log(tenant_id, action=action or None)
    moment, row_id = decisions.cursor(cursor)
    if moment and row_id:
        entries = entries.filter(Q(created_at__lt=moment) | Q(created_at=moment, id__lt=row_id))
    rows = list(entries.order_by("-created_at", "-id")[: PAGE_ROWS + 1])
    more = len(rows) > PAGE_ROWS
    rows = rows[:PAGE_ROWS]
    return Page(rows=tuple(rows), next=f"{rows[-1].created_at.isoformat()}~{rows[-1].id}" if more else "")
