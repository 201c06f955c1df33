"""The platform's pages: tenants, shared pools and their grants, routers, isolation over the installation. For platform operators alone."""

from __future__ import annotations

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import PlatformPage
from console.reads import platform
from tenants import queries
from tenants.core.errors import NotFound, Refusal
from tenants.core.roles import Role
from tenants.scoping import tenant_scope
from tenants.services import invitations, provisioning


class Tenants(PlatformPage):
    """Every tenant; POST makes one."""

    tab = "tenants"

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._list(request)

    def post(self, request: HttpRequest) -> HttpResponse:
        """A new tenant, with an invitation for its first owner where an address is given."""
        typed = {name: request.POST.get(name, "").strip()[:300] for name in ("slug", "name", "owner")}
        try:
            with transaction.atomic():
                made = provisioning.create(actor=self.actor, slug=typed["slug"], name=typed["name"] or typed["slug"])
                link = self._invite(made.id, typed["owner"]) if typed["owner"] else None
        except Refusal as refusal:
            return self._list(request, typed=typed, error=refusal.message, status=refusal.http_status)
        if link is not None:
            return self.page("console/platform_made.html", {"slug": made.slug, "owner": typed["owner"], "link": link})
        messages.success(request, f"The tenant {made.slug} is made.")
        return HttpResponseRedirect(reverse("console:platform"))

    def _invite(self, tenant_id: object, owner: str) -> str | None:
        seat = next(seat for seat in queries.tenants_of_user(self.person) if seat.tenant_id == tenant_id)
        with tenant_scope(seat.tenant_id):
            return invitations.invite(
                tenant_id=seat.tenant_id,
                actor=self.actor,
                email=owner,
                role=Role.OWNER.value,
                ceiling=Role.OWNER,
                now=timezone.now(),
                show_link=True,
            ).link

    def _list(self, request: HttpRequest, *, typed: dict[str, str] | None = None, error: str = "", status: int = 200) -> HttpResponse:
        wanted = request.GET.get("q", "").strip().lower()
        seats = [seat for seat in queries.tenants_of_user(self.person) if wanted in seat.slug or wanted in seat.name.lower()]
        after = request.GET.get("after", "")
        shown = [seat for seat in seats if seat.slug > after][: platform.MAX_TENANTS]
        more = shown[-1].slug if shown and shown[-1] != seats[-1] else ""
        context = {"seats": shown, "total": len(seats), "wanted": wanted, "more": more, "typed": typed or {}, "error": error}
        return self.page("console/platform_tenants.html", context, status=status)


class Suspension(PlatformPage):
    """Suspend or resume a tenant: GET asks, POST does."""

    tab = "tenants"

    def get(self, request: HttpRequest, slug: str, verb: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/platform_suspend.html", {"tenant": self._seat(slug), "verb": verb})

    def post(self, request: HttpRequest, slug: str, verb: str) -> HttpResponse:
        seat, reason = self._seat(slug), request.POST.get("reason", "").strip()
        with tenant_scope(seat.tenant_id):
            provisioning.suspend(tenant_id=seat.tenant_id, actor=self.actor, suspended=verb == "suspend", reason=reason)
        messages.success(request, f"The tenant {slug} is {'suspended' if verb == 'suspend' else 'active'}.")
        return HttpResponseRedirect(reverse("console:platform"))

    def _seat(self, slug: str) -> queries.Seat:
        for seat in queries.tenants_of_user(self.person):
            if seat.slug == slug:
                return seat
        raise NotFound


class Pools(PlatformPage):
    """The platform's pools and who may use them."""

    tab = "pools"

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/platform_pools.html", {"pools": platform.shared_pools()})


class Routers(PlatformPage):
    """Routers that report."""

    tab = "routers"

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/platform_routers.html", {"found": platform.routers()})


class Isolation(PlatformPage):
    """Isolation states of every tenant's engines, counted."""

    tab = "isolation"

    def get(self, request: HttpRequest) -> HttpResponse:
        walls, more = platform.walls(request.GET.get("after", ""))
        return self.page("console/platform_isolation.html", {"walls": walls, "states": platform.STATES, "more": more})
