"""Auth scopes."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import RaiseScope, ScopeNew, ScopeOut, scope_out
from tenants.core.roles import Permission
from tenants.services import scopes


class ScopeCollection(TenantView):
    """The tree of auth scopes."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    @describe("scopes_list", "List auth scopes", answers=page_of(ScopeOut), parameters=PAGING, tag="scopes")
    def get(self, request: Request) -> Response:
        """By path; the first is the root, whose path is empty."""
        return self.answer(page(request, queries.scopes(self.tenant_id), by="path").render(scope_out))

    @describe("scopes_create", "Create an auth scope", body=ScopeNew, answers=changed(ScopeOut), status=201, tag="scopes")
    def post(self, request: Request) -> Response:
        """Below a scope that exists."""
        row = scopes.create(tenant_id=self.tenant_id, actor=self.actor, path=parse(request, ScopeNew).path)
        return self.changed(scope_out(row), status=201)


class ScopeItem(TenantView):
    """One auth scope, by id or path; the root, whose path is empty, by id alone."""

    permissions = {"GET": Permission.READ, "DELETE": Permission.CONFIGURE}

    @describe("scopes_read", "Read an auth scope", answers=ScopeOut, tag="scopes")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its path and version."""
        return self.answer(scope_out(queries.scope(self.tenant_id, reference)))

    @describe("scopes_delete", "Delete an auth scope", answers=changed(ScopeOut), tag="scopes")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Refused for the root, and while scopes lie below it or keys are bound to it."""
        scope_id = queries.scope(self.tenant_id, reference).id
        row = scopes.delete(tenant_id=self.tenant_id, actor=self.actor, scope_id=scope_id)
        return self.changed(scope_out(row))


class ScopeRaise(TenantView):
    """A new version of an auth scope."""

    permissions = {"POST": Permission.OPERATE}

    @describe("scopes_raise", "Raise an auth scope's version", body=RaiseScope, answers=changed(ScopeOut), tag="scopes")
    def post(self, request: Request, reference: str) -> Response:
        """Everything cached under it and below becomes unreachable for requests that begin once routers know."""
        reason = parse(request, RaiseScope).reason
        scope_id = queries.scope(self.tenant_id, reference).id
        return self.changed(scope_out(scopes.raise_version(tenant_id=self.tenant_id, actor=self.actor, scope_id=scope_id, reason=reason)))
