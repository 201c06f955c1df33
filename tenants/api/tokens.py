"""Control tokens: keys to this API. In the platform's tenant they are platform operators' tokens."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import TenantView, describe, require_platform
from tenants.api.bodies import parse
from tenants.api.idempotency import PARAMETER, once
from tenants.api.keys import issued
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import TokenChange, TokenIssued, TokenNew, TokenOut, WithReason, given, token_out
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid
from tenants.core.roles import Permission, Role
from tenants.models import PLATFORM_SLUG, ApiKey
from tenants.services import api_keys

_STATUS = OpenApiParameter("status", str, enum=["current", "revoked"], description="``current``: not revoked; without it all.")


class TokenCollection(TenantView):
    """All control tokens of the tenant."""

    permissions = {"GET": Permission.MEMBERS, "POST": Permission.MEMBERS}

    @describe("tokens_list", "List control tokens", answers=page_of(TokenOut), parameters=(*PAGING, _STATUS), tag="tokens")
    def get(self, request: Request) -> Response:
        """Newest first, revoked ones included."""
        now = timezone.now()
        rows = queries.with_status(queries.keys(self.tenant_id, Kind.CONTROL), request.query_params.get("status"))
        return self.answer(page(request, rows).render(lambda row: token_out(row, now)))

    @describe("tokens_issue", "Issue a control token", body=TokenNew, answers=changed(TokenIssued), status=201, parameters=(PARAMETER,), tag="tokens")
    def post(self, request: Request) -> Response:
        """The answer holds the token's text, this once. Its role is at most the caller's own."""
        wanted = parse(request, TokenNew)

        def issue() -> Response:
            now = timezone.now()
            made = self._issue(wanted, now=now)
            return issued(self, token_out(made.key, now), made.secret, status=201)

        return once(self, request, issue)

    def _issue(self, wanted: TokenNew, *, now: Any) -> api_keys.Issued:
        if self.tenant.slug == PLATFORM_SLUG:
            require_platform(self.caller)
            if wanted.role is not Role.OWNER:
                raise Invalid("A platform operator's token has the role owner.", field="role")
            return api_keys.issue_platform_token(tenant_id=self.tenant_id, actor=self.actor, name=wanted.name, expires_at=wanted.expires_at, now=now)
        return api_keys.issue_control(
            tenant_id=self.tenant_id,
            actor=self.actor,
            name=wanted.name,
            role=wanted.role.value,
            ceiling=self.role,
            expires_at=wanted.expires_at,
            now=now,
        )


class TokenView(TenantView):
    """Base of what is done with one control token."""

    def token(self, reference: str) -> ApiKey:
        """The token by id or name."""
        return queries.key(self.tenant_id, Kind.CONTROL, reference)

    def target(self, reference: str) -> dict[str, Any]:
        """What each of the service's calls needs."""
        key_id = self.token(reference).id
        return {"tenant_id": self.tenant_id, "actor": self.actor, "kind": Kind.CONTROL, "key_id": key_id, "ceiling": self.role}


class TokenItem(TokenView):
    """One control token."""

    permissions = {"GET": Permission.MEMBERS, "PATCH": Permission.MEMBERS, "DELETE": Permission.MEMBERS}

    @describe("tokens_read", "Read a control token", answers=TokenOut, tag="tokens")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id, or by name while it is not revoked."""
        return self.answer(token_out(self.token(reference), timezone.now()))

    @describe("tokens_change", "Change a control token", body=TokenChange, answers=changed(TokenOut), tag="tokens")
    def patch(self, request: Request, reference: str) -> Response:
        """Its name and expiry. Its role stays: issue another."""
        now = timezone.now()
        row = api_keys.update(**self.target(reference), fields=given(parse(request, TokenChange)), now=now)
        return self.changed(token_out(row, now))

    @describe("tokens_revoke", "Revoke a control token", body=WithReason, answers=changed(TokenOut), tag="tokens")
    def delete(self, request: Request, reference: str) -> Response:
        """It is refused from the next request on, also where it revokes itself."""
        now = timezone.now()
        row = api_keys.revoke(**self.target(reference), reason=parse(request, WithReason).reason, now=now)
        return self.changed(token_out(row, now))


class TokenRotation(TokenView):
    """A new text for a control token."""

    permissions = {"POST": Permission.MEMBERS}

    @describe("tokens_rotate", "Rotate a control token", answers=changed(TokenIssued), parameters=(PARAMETER,), tag="tokens")
    def post(self, request: Request, reference: str) -> Response:
        """The old text is refused from the next request on."""

        def rotate() -> Response:
            now = timezone.now()
            made = api_keys.rotate(**self.target(reference), now=now)
            return issued(self, token_out(made.key, now), made.secret, status=200)

        return once(self, request, rotate)
