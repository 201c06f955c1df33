"""The audit log: who changed what, and when."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, HttpResponse

from console.access import TenantPage
from console.reads import audit
from tenants.core.roles import Permission


class AuditLog(TenantPage):
    """Changes of the tenant's configuration and people, newest first."""

    tab = "audit"
    needs = {"GET": Permission.MEMBERS}

    def get(self, request: HttpRequest) -> HttpResponse:
        page = audit.listed(self.tenant_id, request.GET.get("before", ""), action=request.GET.get("action", "").strip())
        rows = [(entry, _changed(entry.before, entry.after)) for entry in page.rows]
        context = {"rows": rows, "next": page.next, "later": bool(request.GET.get("before")), "action": request.GET.get("action", "")}
        return self.page("console/audit.html", context)


def _changed(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """(field, before, after) of every field that differs; a missing side is an empty text."""
    old, new = before or {}, after or {}
    fields = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [(name, _text(old, name), _text(new, name)) for name in fields]


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if name not in values:
        return ""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
