"""Tenants with a token for each role, and a client that speaks the control API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from django.test import Client
from django.utils import timezone

from tenants.actor import system
from tenants.core.roles import Role
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tenants.services import api_keys, provisioning

ROOT = system("tests")
ABSENT = "00000000-0000-4000-8000-000000000000"


@dataclass
class Api:
    """A caller of the control API."""

    token: str | None = None
    client: Client = field(default_factory=Client)
    headers: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None, *, raw: Any = None, **headers: str) -> Any:
        """One request; ``body`` is sent as JSON. Header names are written with underscores. Answers what Django's test client does."""
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        data = raw if raw is not None else b"" if body is None else msgspec.json.encode(body)
        return self.client.generic(method, f"/api/v1/{path}", data, content_type="application/json", headers=sent)

    def get(self, path: str, **headers: str) -> Any:
        """GET."""
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """POST."""
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        """PATCH."""
        return self.call("PATCH", path, body, **headers)

    def delete(self, path: str, body: Any = None, **headers: str) -> Any:
        """DELETE."""
        return self.call("DELETE", path, body, **headers)


@dataclass
class House:
    """A tenant and a token for each role."""

    id: UUID
    slug: str
    tokens: dict[Role, str]
    token_ids: dict[Role, UUID]

    def api(self, role: Role = Role.OWNER) -> Api:
        """A caller with that role."""
        return Api(token=self.tokens[role])

    def scope(self) -> Any:
        """Its tenant scope."""
        return tenant_scope(self.id)

    def log(self, action: str) -> list[AuditEntry]:
        """Its audit entries of one action, oldest first."""
        with tenant_scope(self.id):
            return list(AuditEntry.objects.filter(tenant_id=self.id, action=action).order_by("created_at"))

    def key(self, name: str = "app", **options: Any) -> api_keys.Issued:
        """An inference key."""
        with tenant_scope(self.id):
            return api_keys.issue_inference(tenant_id=self.id, actor=ROOT, name=name, now=timezone.now(), **options)


def house(slug: str) -> House:
    """Create a tenant with a token for each role."""
    tenant = provisioning.create(actor=ROOT, slug=slug, name=slug.title())
    made = {}
    with tenant_scope(tenant.id):
        for role in Role:
            made[role] = api_keys.issue_control(
                tenant_id=tenant.id, actor=ROOT, name=f"{role.value}-token", role=role.value, ceiling=Role.OWNER, now=timezone.now()
            )
    return House(
        id=tenant.id,
        slug=slug,
        tokens={role: issued.secret or "" for role, issued in made.items()},
        token_ids={role: issued.key.id for role, issued in made.items()},
    )


def platform_api() -> Api:
    """A caller with a platform operator's token."""
    tenant = provisioning.ensure_platform()
    with tenant_scope(tenant.id):
        issued = api_keys.issue_platform_token(tenant_id=tenant.id, actor=ROOT, name="operator", now=timezone.now())
    return Api(token=issued.secret)


def signed_in(user: Any) -> Api:
    """A person's session in the console, with its CSRF token."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = "c" * 32
    return Api(client=client, headers={"X-CSRFToken": "c" * 32})
