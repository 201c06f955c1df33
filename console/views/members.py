"""Members of a tenant: who they are, what they may do, whom an invitation waits for, and what signing in takes."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from console.reads import people
from tenants import queries
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, Unavailable
from tenants.core.roles import Permission, Role
from tenants.services import api_keys, invitations, members, provisioning
from tenants.services.api_keys import rank


class MembersPage(TenantPage):
    """Base: pages about members, for whoever may change them."""

    tab = "members"
    needs = {"GET": Permission.MEMBERS, "POST": Permission.MEMBERS}

    def back(self, request: HttpRequest, said: str) -> HttpResponse:
        """Say what was done, on the list."""
        messages.success(request, said)
        return HttpResponseRedirect(reverse("console:members", args=[self.caller.seat.slug]))

    @property
    def roles(self) -> list[str]:
        """The roles that the caller may give away, the least first."""
        return [role.value for role in Role if rank(role) <= rank(self.caller.seat.role)]


class Members(MembersPage):
    """The list."""

    needs = {"GET": Permission.MEMBERS}

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        context = {
            "members": people.members(self.tenant_id, self.caller.seat, self.caller.user),
            "invitations": people.invitations(self.tenant_id, timezone.now()),
        }
        return self.page("console/members.html", context)


class Invite(MembersPage):
    """Invite an address. A platform operator is shown the link, once."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self._form({})

    def post(self, request: HttpRequest) -> HttpResponse:
        typed = {"email": request.POST.get("email", "").strip()[:300], "role": request.POST.get("role", "")}
        try:
            with transaction.atomic():
                made = invitations.invite(
                    tenant_id=self.tenant_id,
                    actor=self.actor,
                    email=typed["email"],
                    role=typed["role"],
                    ceiling=self.caller.seat.role,
                    now=timezone.now(),
                    show_link=self.caller.seat.platform,
                )
        except (Invalid, Conflict, LimitReached, Unavailable, Forbidden) as refusal:
            return self._form(typed, error=refusal.message, status=refusal.http_status)
        if made.link is not None:
            return self.page("console/invited.html", {"invitation": made.invitation, "link": made.link})
        return self.back(request, f"An invitation goes to {made.invitation.email}.")

    def _form(self, typed: dict[str, str], *, error: str = "", status: int = 200) -> HttpResponse:
        return self.page("console/invite.html", {"roles": self.roles, "typed": typed, "error": error}, status=status)


class RevokeInvitation(MembersPage):
    """Make an invitation's link useless: GET asks, POST does."""

    def get(self, request: HttpRequest, invitation_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/invitation_revoke.html", {"invitation": queries.invitation(self.tenant_id, str(invitation_id))})

    def post(self, request: HttpRequest, invitation_id: UUID) -> HttpResponse:
        row = invitations.revoke(
            tenant_id=self.tenant_id,
            actor=self.actor,
            invitation_id=invitation_id,
            ceiling=self.caller.seat.role,
            now=timezone.now(),
        )
        return self.back(request, f"The invitation of {row.email} is revoked: its link opens nothing.")


class ChangeRole(MembersPage):
    """Give a member another role: GET asks, POST does."""

    def get(self, request: HttpRequest, member_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/member_role.html", {"member": queries.member(self.tenant_id, str(member_id)), "roles": self.roles})

    def post(self, request: HttpRequest, member_id: UUID) -> HttpResponse:
        row = members.change_role(
            tenant_id=self.tenant_id,
            actor=self.actor,
            membership_id=member_id,
            role=request.POST.get("role", ""),
            ceiling=self.caller.seat.role,
        )
        return self.back(request, f"{row.user.email} is {row.role} from the next page on.")


class RemoveMember(MembersPage):
    """Remove a member, and the control tokens that they issued where asked: GET asks, POST does."""

    def get(self, request: HttpRequest, member_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        member = queries.member(self.tenant_id, str(member_id))
        return self.page("console/member_remove.html", {"member": member, "tokens": members.tokens_of(member)})

    def post(self, request: HttpRequest, member_id: UUID) -> HttpResponse:
        member = queries.member(self.tenant_id, str(member_id))
        if request.POST.get("tokens") == "revoke":
            for token in members.tokens_of(member):
                api_keys.revoke(
                    tenant_id=self.tenant_id,
                    actor=self.actor,
                    kind=Kind.CONTROL,
                    key_id=token.id,
                    ceiling=self.caller.seat.role,
                    reason=f"{member.user.email} was removed"[:500],
                    now=timezone.now(),
                )
        members.remove(tenant_id=self.tenant_id, actor=self.actor, membership_id=member_id, ceiling=self.caller.seat.role)
        if member.user_id == self.caller.user.id and not self.caller.seat.platform:
            messages.success(request, f"You are no member of {self.caller.seat.slug} any more.")
            return HttpResponseRedirect(reverse("console:home"))
        return self.back(request, f"{member.user.email} is no member any more.")


class RequireSecondFactor(MembersPage):
    """Ask a second factor of everybody in this tenant's console, or no longer: GET asks, POST does."""

    needs = {"GET": Permission.OWN, "POST": Permission.OWN}

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        rows = [one.row for one in people.members(self.tenant_id, self.caller.seat, self.caller.user)]
        without = [row for row in rows if row.entered_at is not None and row.user.second_factor_at is None]
        return self.page("console/require_second_factor.html", {"without": without})

    def post(self, request: HttpRequest) -> HttpResponse:
        required = request.POST.get("required") == "yes"
        provisioning.require_second_factor(tenant_id=self.tenant_id, actor=self.actor, required=required)
        return self.back(request, "A second factor is required now." if required else "A second factor is no longer required.")
