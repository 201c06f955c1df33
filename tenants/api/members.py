"""Members of a tenant."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import InvitationOut, InvitationSent, MemberChange, MemberNew, MemberOut, SignInRules, invitation_out, member_out
from tenants.core.roles import Permission
from tenants.services import invitations, members, provisioning


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
        row = members.change_role(tenant_id=self.tenant_id, actor=self.actor, membership_id=membership_id, role=role.value, ceiling=self.role)
        return self.changed(member_out(row))

    @describe("members_remove", "Remove a member", answers=changed(MemberOut), tag="members")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Their account stays; what they set up stays too."""
        membership_id = queries.member(self.tenant_id, reference).id
        row = members.remove(tenant_id=self.tenant_id, actor=self.actor, membership_id=membership_id, ceiling=self.role)
        return self.changed(member_out(row))


class InvitationCollection(TenantView):
    """Addresses that were offered a role."""

    permissions = {"GET": Permission.MEMBERS, "POST": Permission.MEMBERS}

    @describe("invitations_list", "List invitations", answers=page_of(InvitationOut), parameters=PAGING, tag="members")
    def get(self, request: Request) -> Response:
        """Newest first, those that are over included."""
        now = timezone.now()
        return self.answer(page(request, queries.invitations(self.tenant_id)).render(lambda row: invitation_out(row, now)))

    @describe("invitations_create", "Invite a person", body=MemberNew, answers=changed(InvitationSent), status=201, tag="members")
    def post(self, request: Request) -> Response:
        """A link is mailed to the address; whoever opens it joins with the role, which is at most the caller's own. Platform operators are shown the
        link too: this once."""
        wanted, now = parse(request, MemberNew), timezone.now()
        made = invitations.invite(
            tenant_id=self.tenant_id,
            actor=self.actor,
            email=wanted.email,
            role=wanted.role.value,
            ceiling=self.role,
            now=now,
            show_link=self.platform,
        )
        return self.changed(invitation_out(made.invitation, now, InvitationSent, link=made.link), status=201)


class InvitationItem(TenantView):
    """One invitation, by its id, or by the address while it is open."""

    permissions = {"GET": Permission.MEMBERS, "DELETE": Permission.MEMBERS}

    @describe("invitations_read", "Read an invitation", answers=InvitationOut, tag="members")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its state, and what became of its mail."""
        return self.answer(invitation_out(queries.invitation(self.tenant_id, reference), timezone.now()))

    @describe("invitations_revoke", "Revoke an invitation", answers=changed(InvitationOut), tag="members")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its link opens nothing any more."""
        now = timezone.now()
        row = queries.invitation(self.tenant_id, reference)
        row = invitations.revoke(tenant_id=self.tenant_id, actor=self.actor, invitation_id=row.id, ceiling=self.role, now=now)
        return self.changed(invitation_out(row, now))


class SignInRulesView(TenantView):
    """What signing in to this tenant takes."""

    permissions = {"GET": Permission.READ, "PUT": Permission.OWN}

    @describe("sign_in_rules_read", "Read the rules of signing in", answers=SignInRules, tag="members")
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """They hold for people in the console and for their sessions in this API, not for control tokens."""
        return self.answer(SignInRules(require_second_factor=self.tenant.require_second_factor))

    @describe("sign_in_rules_set", "Set the rules of signing in", body=SignInRules, answers=changed(SignInRules), tag="members")
    def put(self, request: Request) -> Response:
        """For owners. Members without a second factor are led to set one up at their next page. A person who asks for it has one."""
        wanted = parse(request, SignInRules)
        row = provisioning.require_second_factor(tenant_id=self.tenant_id, actor=self.actor, required=wanted.require_second_factor)
        return self.changed(SignInRules(require_second_factor=row.require_second_factor))
