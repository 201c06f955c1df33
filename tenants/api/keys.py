"""Inference keys."""

from __future__ import annotations

from typing import Any

import msgspec
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.idempotency import PARAMETER, once
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import KeyChange, KeyIssued, KeyNew, KeyOut, WithReason, given, key_out
from tenants.core.api_key import Kind
from tenants.core.roles import Permission
from tenants.models import ApiKey
from tenants.services import api_keys

_STATUS = OpenApiParameter("status", str, enum=["current", "revoked"], description="``current``: not revoked; without it all.")


def issued(view: TenantView, shape: msgspec.Struct, secret: str | None, *, status: int) -> Response:
    """Answer with a key just made; the one place that shows a secret."""
    return view.changed({**msgspec.to_builtins(shape), "secret": secret}, status=status)


class KeyCollection(TenantView):
    """All inference keys of the tenant."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    @describe("keys_list", "List inference keys", answers=page_of(KeyOut), parameters=(*PAGING, _STATUS), tag="keys")
    def get(self, request: Request) -> Response:
        """Newest first, revoked ones included."""
        now = timezone.now()
        rows = queries.with_status(queries.keys(self.tenant_id, Kind.INFERENCE), request.query_params.get("status"))
        return self.answer(page(request, rows).render(lambda row: key_out(row, now)))

    @describe("keys_issue", "Issue an inference key", body=KeyNew, answers=changed(KeyIssued), status=201, parameters=(PARAMETER,), tag="keys")
    def post(self, request: Request) -> Response:
        """The answer holds the key's text, this once."""
        wanted = parse(request, KeyNew)

        def issue() -> Response:
            now = timezone.now()
            made = api_keys.issue_inference(
                tenant_id=self.tenant_id,
                actor=self.actor,
                name=wanted.name,
                scope_path=wanted.scope,
                endpoints=wanted.endpoints,
                expires_at=wanted.expires_at,
                now=now,
            )
            return issued(self, key_out(made.key, now), made.secret, status=201)

        return once(self, request, issue)


class KeyView(TenantView):
    """Base of what is done with one inference key."""

    def key(self, reference: str) -> ApiKey:
        """The key by id or name."""
        return queries.key(self.tenant_id, Kind.INFERENCE, reference)

    def target(self, reference: str) -> dict[str, Any]:
        """What each of the service's calls needs."""
        key_id = self.key(reference).id
        return {"tenant_id": self.tenant_id, "actor": self.actor, "kind": Kind.INFERENCE, "key_id": key_id, "ceiling": self.role}


class KeyItem(KeyView):
    """One inference key."""

    permissions = {"GET": Permission.READ, "PATCH": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}

    @describe("keys_read", "Read an inference key", answers=KeyOut, tag="keys")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id, or by name while it is not revoked."""
        return self.answer(key_out(self.key(reference), timezone.now()))

    @describe("keys_change", "Change an inference key", body=KeyChange, answers=changed(KeyOut), tag="keys")
    def patch(self, request: Request, reference: str) -> Response:
        """Its name, expiry and endpoints. Its scope stays: a key that moves would carry nothing of its cache along."""
        now = timezone.now()
        row = api_keys.update(**self.target(reference), fields=given(parse(request, KeyChange)), now=now)
        return self.changed(key_out(row, now))

    @describe("keys_revoke", "Revoke an inference key", body=WithReason, answers=changed(KeyOut), tag="keys")
    def delete(self, request: Request, reference: str) -> Response:
        """Routers refuse it within a second. The row stays for the records that name it."""
        now = timezone.now()
        row = api_keys.revoke(**self.target(reference), reason=parse(request, WithReason).reason, now=now)
        return self.changed(key_out(row, now))


class KeyRotation(KeyView):
    """A new text for an inference key."""

    permissions = {"POST": Permission.CONFIGURE}

    @describe("keys_rotate", "Rotate an inference key", answers=changed(KeyIssued), parameters=(PARAMETER,), tag="keys")
    def post(self, request: Request, reference: str) -> Response:
        """The old text opens nothing as soon as routers know; id, name, scope and what it shares caches with stay."""

        def rotate() -> Response:
            now = timezone.now()
            made = api_keys.rotate(**self.target(reference), now=now)
            return issued(self, key_out(made.key, now), made.secret, status=200)

        return once(self, request, rotate)
