"""Members of a tenant."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import MemberChange, MemberNew, MemberOut, member_out
from tenants.core.roles import Permission
from tenants.services import members


class MemberCollection(TenantView):
    """All members."""

    permissions = {"GET": Permission.MEMBERS, "POST": Permission.MEMBERS}

    @describe("members_list", "List members", answers=page_of(MemberOut), parameters=PAGING, tag="members")
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.answer(page(request, queries.members(self.tenant_id)).render(member_out))

    @describe("members_add", "Add a member", body=MemberNew, answers=changed(MemberOut), status=201, tag="members")
    def post(self, request: Request) -> Response:
        """By e-mail; the role is at most the caller's own."""
        wanted = parse(request, MemberNew)
        row = members.add(tenant_id=self.tenant_id, actor=self.actor, email=wanted.email, role=wanted.role.value, ceiling=self.role)
        return self.changed(member_out(row), status=201)


class MemberItem(TenantView):
    """One member, by the membership's id or the person's e-mail."""

    permissions = {"GET": Permission.MEMBERS, "PATCH": Permission.MEMBERS, "DELETE": Permission.MEMBERS}

    @describe("members_read", "Read a member", answers=MemberOut, tag="members")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Their role."""
        return self.answer(member_out(queries.member(self.tenant_id, reference)))

    @describe("members_change", "Change a member's role", body=MemberChange, answers=changed(MemberOut), tag="members")
    def patch(self, request: Request, reference: str) -> Response:
        """From the next request on. The last owner keeps the role."""
        role = parse(request, MemberChange).role
        membership_id = queries.member(self.tenant_id, reference).id
        row = members.change_role(
            tenant_id=self.tenant_id, actor=self.actor, membership_id=membership_id, role=role.value, ceiling=self.role
        )
        return self.changed(member_out(row))

    @describe("members_remove", "Remove a member", answers=changed(MemberOut), tag="members")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Their account stays; what they set up stays too."""
        membership_id = queries.member(self.tenant_id, reference).id
        row = members.remove(tenant_id=self.tenant_id, actor=self.actor, membership_id=membership_id, ceiling=self.role)
        return self.changed(member_out(row))
