"""Tenants, and the caller's own places in them. Everybody sees their own; platform operators see, create, change and delete all."""

from __future__ import annotations

from uuid import UUID

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import ApiView, describe, require_platform
from tenants.api.bodies import parse
from tenants.api.pagination import limit_of
from tenants.api.schema import PAGING, page_of
from tenants.api.shapes import Me, TenantChange, TenantNew, TenantOut, WithReason, given, seat_out, tenant_out
from tenants.core.errors import NotFound
from tenants.core.roles import Role
from tenants.models import Tenant, User
from tenants.queries import Seat
from tenants.scoping import tenant_scope
from tenants.services import provisioning


class TenantsView(ApiView):
    """Base: which tenants the caller may see."""

    def seats(self) -> list[Seat]:
        """The caller's places, by slug. A platform token's are left to :meth:`references`, which needs no name and role of each."""
        if self.caller.user_id is not None:
            seats = queries.tenants_of_user(User.objects.get(id=self.caller.user_id))
            return [seat for seat in seats if self.caller.platform or not seat.platform]  # an operator who owes a second factor has none of those
        tenant_id, role = self.caller.token_tenant_id, self.caller.token_role
        if tenant_id is None or role is None:
            return []
        row = read(tenant_id)
        return [Seat(row.id, row.slug, row.name, Role.OWNER if self.caller.platform else role, self.caller.platform, row.suspended)]

    def references(self) -> dict[str, UUID]:
        """Every tenant the caller may see, as slug and id."""
        if self.caller.platform:
            return {ref.slug: ref.tenant_id for ref in queries.all_tenants()}
        return {seat.slug: seat.tenant_id for seat in self.seats()}

    def find(self, reference: str) -> UUID:
        """A tenant by id or slug.

        Raises:
            NotFound: absent, deleted, or not the caller's.
        """
        seen = self.references()
        row_id = queries.parse_uuid(reference)
        found = row_id if row_id in seen.values() else seen.get(reference)
        if found is None:
            raise NotFound
        return found


class TenantCollection(TenantsView):
    """The tenants that the caller may see."""

    @describe("tenants_list", "List tenants", answers=page_of(TenantOut), parameters=PAGING, tag="tenants", in_tenant=False)
    def get(self, request: Request) -> Response:
        """By slug."""
        limit, after = limit_of(request), request.query_params.get("cursor") or ""
        found = sorted((slug, tenant_id) for slug, tenant_id in self.references().items() if slug > after)
        shown = [tenant_out(read(tenant_id)) for _, tenant_id in found[:limit]]
        return self.answer({"results": shown, "next": found[limit - 1][0] if len(found) > limit else None})

    @describe("tenants_create", "Create a tenant", body=TenantNew, answers=TenantOut, status=201, tag="tenants", in_tenant=False)
    def post(self, request: Request) -> Response:
        """For platform operators. Its key is made within seconds; until then its requests are refused."""
        require_platform(self.caller)
        wanted = parse(request, TenantNew)
        row = provisioning.create(actor=self.actor, slug=wanted.slug, name=wanted.name, owner_email=wanted.owner_email)
        return self.answer(tenant_out(row), status=201)


class TenantItem(TenantsView):
    """One tenant, by id or slug."""

    @describe("tenants_read", "Read a tenant", answers=TenantOut, tag="tenants", in_tenant=False)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """One that the caller has a place in."""
        return self.answer(tenant_out(read(self.find(reference))))

    @describe("tenants_change", "Change a tenant", body=TenantChange, answers=TenantOut, tag="tenants", in_tenant=False)
    def patch(self, request: Request, reference: str) -> Response:
        """For platform operators: rename, suspend, resume."""
        require_platform(self.caller)
        tenant_id = self.find(reference)
        wanted = parse(request, TenantChange)
        fields = given(wanted)
        with tenant_scope(tenant_id):
            if "name" in fields:
                provisioning.rename(tenant_id=tenant_id, actor=self.actor, name=fields["name"])
            if "suspended" in fields:
                provisioning.suspend(tenant_id=tenant_id, actor=self.actor, suspended=fields["suspended"], reason=wanted.reason)
        return self.answer(tenant_out(read(tenant_id)))

    @describe("tenants_delete", "Delete a tenant", body=WithReason, answers=TenantOut, tag="tenants", in_tenant=False)
    def delete(self, request: Request, reference: str) -> Response:
        """For platform operators. Every key of it is unknown within a second; its slug is free again."""
        require_platform(self.caller)
        tenant_id = self.find(reference)
        reason = parse(request, WithReason).reason
        with tenant_scope(tenant_id):
            row = provisioning.delete(tenant_id=tenant_id, actor=self.actor, reason=reason, now=timezone.now())
            row.refresh_from_db()
        return self.answer(tenant_out(row))


class MeView(TenantsView):
    """The caller."""

    @describe("me", "Who am I", answers=Me, tag="me", in_tenant=False)
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """And where I may act as what. A platform token names its own tenant here and may act in all."""
        actor = self.actor
        seats = [seat_out(seat) for seat in self.seats()]
        return self.answer(Me(kind=actor.kind, label=actor.label, id=actor.id, platform=self.caller.platform, tenants=seats))


def read(tenant_id: UUID) -> Tenant:
    """A tenant's row from outside its scope; the caller may see it."""
    with tenant_scope(tenant_id):
        return queries.tenant(tenant_id)
