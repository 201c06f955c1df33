"""The door of every tenant page: who asks, for which tenant, with which rights, inside which tenant scope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views import View

from tenants import queries
from tenants.actor import Actor
from tenants.api.authentication import peer_address
from tenants.core.errors import Forbidden, NotFound, Refusal
from tenants.core.roles import Permission
from tenants.models import PLATFORM_SLUG, User
from tenants.queries import Seat
from tenants.scoping import tenant_scope
from tenants.services import denials, members, second_factors

ERROR_TEMPLATE = "console/refusal.html"
SWITCHER_TENANTS = 12  # beyond, the list of all has a search
LAST_TENANT = "last_tenant"  # in the session: where the brand leads


@dataclass(frozen=True, slots=True)
class Caller:
    """A signed-in person on a page of one tenant."""

    user: User
    seat: Seat
    seats: list[Seat]

    @property
    def permissions(self) -> frozenset[Permission]:
        return self.seat.permissions

    @property
    def is_platform_tenant(self) -> bool:
        """Whether this is the tenant that owns the platform's pools and has no requests of its own."""
        return self.seat.slug == PLATFORM_SLUG

    @property
    def can_operate(self) -> bool:
        return Permission.OPERATE in self.permissions

    @property
    def can_configure(self) -> bool:
        return Permission.CONFIGURE in self.permissions

    @property
    def can_see_audit(self) -> bool:
        return Permission.MEMBERS in self.permissions

    @property
    def owns(self) -> bool:
        return Permission.OWN in self.permissions

    @property
    def offered(self) -> list[Seat]:
        """The tenants of the switcher, this one among them: the first few by slug."""
        shown = self.seats[:SWITCHER_TENANTS]
        return shown if self.seat in shown else [self.seat, *shown[:-1]]


def signed_in(request: HttpRequest) -> User | None:
    """The person of this session, or None."""
    return request.user if isinstance(request.user, User) and request.user.is_active else None


def to_sign_in(request: HttpRequest) -> HttpResponse:
    """Send a caller without a session to the sign-in page, and back here afterwards. A fragment request moves the whole page."""
    wanted = request.get_full_path() if request.method == "GET" and not is_fragment(request) else ""
    target = settings.LOGIN_URL + (f"?{urlencode({'next': wanted})}" if wanted else "")
    if is_fragment(request):
        return HttpResponse(status=401, headers={"HX-Redirect": target})
    return HttpResponseRedirect(target)


def to_enrolment(request: HttpRequest) -> HttpResponse:
    """Send a person to set up the second factor that is asked of them, and back here afterwards."""
    wanted = request.get_full_path() if request.method == "GET" and not is_fragment(request) else ""
    target = reverse("console:second_factor") + (f"?{urlencode({'next': wanted})}" if wanted else "")
    if is_fragment(request):
        return HttpResponse(status=403, headers={"HX-Redirect": target})
    return HttpResponseRedirect(target)


def actor_of(request: HttpRequest, user: User) -> Actor:
    """A person for services and the audit log. The address is the socket's; no header is believed."""
    return Actor(kind="user", id=user.id, label=user.email, peer_address=peer_address(request))


class PersonPage(View):
    """Base of pages that belong to a person and to no tenant."""

    person: User

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = signed_in(request)
        if user is None:
            return to_sign_in(request)
        self.person = user
        try:
            return self.enter(request, *args, **kwargs)
        except NotFound as absent:
            raise Http404 from absent
        except Refusal as refusal:
            return self.page("console/account_refusal.html", {"refusal": refusal}, status=refusal.http_status)

    def enter(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """What is done once the person is known."""
        return super().dispatch(request, *args, **kwargs)

    @property
    def actor(self) -> Actor:
        return actor_of(self.request, self.person)

    def page(self, template: str, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
        """Render a page with what its frame needs."""
        return render(self.request, template, {"person": self.person, "fragment": is_fragment(self.request), **context}, status=status)


class PlatformPage(PersonPage):
    """Base of every page under ``/platform/``: for platform operators alone. To anybody else there is no such page."""

    tab: ClassVar[str] = ""

    def enter(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not self.person.is_platform_operator:
            raise NotFound
        if self.person.second_factor_at is None and second_factors.operator_needs_one(self.person):
            return to_enrolment(request)
        return super().enter(request, *args, **kwargs)

    def page(self, template: str, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
        return super().page(template, {"tab": self.tab, **context}, status=status)


def is_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks for part of a page."""
    return request.headers.get("HX-Request") == "true"


class TenantPage(View):
    """Base of every page under ``/t/<slug>/``.

    ``needs`` names one permission for each method. The whole answer is made inside the tenant scope, in one transaction; a refusal that reaches
    this class rolls it back. A tenant that is absent and one that is not the caller's end in the same 404.
    """

    needs: ClassVar[Mapping[str, Permission]] = {"GET": Permission.READ}
    tab: ClassVar[str] = ""
    caller: Caller

    def dispatch(self, request: HttpRequest, *args: Any, slug: str, **kwargs: Any) -> HttpResponseBase:
        user = signed_in(request)
        if user is None:
            return to_sign_in(request)
        seats = queries.tenants_of_user(user)
        seat = next((one for one in seats if one.slug == slug), None)
        if seat is None:
            raise Http404
        if second_factors.missing(user, seat):
            return to_enrolment(request)
        self.caller = Caller(user=user, seat=seat, seats=seats)
        try:
            with tenant_scope(seat.tenant_id):
                self._arrive(request)
                self._permit(request)
                return super().dispatch(request, *args, **kwargs)
        except NotFound as absent:
            self._note(request, absent)
            raise Http404 from absent
        except Refusal as refusal:
            self._note(request, refusal)
            return self.refuse(refusal, status=refusal.http_status)

    def _arrive(self, request: HttpRequest) -> None:
        """Remember the tenant that was looked at last, and that a member has been here."""
        if request.method == "GET" and request.session.get(LAST_TENANT) != self.caller.seat.slug:
            request.session[LAST_TENANT] = self.caller.seat.slug
            members.note_entry(tenant_id=self.tenant_id, user=self.caller.user, now=timezone.now())

    def _permit(self, request: HttpRequest) -> None:
        """Ask the method's permission. A method the page does not have needs none: it is answered 405."""
        method = "GET" if request.method == "HEAD" else str(request.method)
        needed = self.needs.get(method)
        if needed is not None and needed not in self.caller.permissions:
            raise Forbidden("Your role in this tenant does not allow this. Ask an owner or admin of the tenant.")
        if method != "GET" and self.caller.seat.suspended and not self.caller.seat.platform:
            raise Forbidden("This tenant is suspended: it can be read, not changed.")

    def _note(self, request: HttpRequest, refusal: Refusal) -> None:
        """Write a refused change into the audit log, as the API does."""
        if request.method not in ("GET", "HEAD") and isinstance(refusal, Forbidden | NotFound):
            denials.record(tenant_id=self.tenant_id, actor=self.actor, method=str(request.method), path=request.path, code=refusal.code)

    @property
    def tenant_id(self) -> UUID:
        return self.caller.seat.tenant_id

    @property
    def actor(self) -> Actor:
        """Who does it, for services and the audit log."""
        return replace(actor_of(self.request, self.caller.user), permissions=self.caller.permissions)

    def page(self, template: str, context: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
        """Render a page with what its frame needs."""
        frame = {"caller": self.caller, "tenant": self.caller.seat, "tab": self.tab, "fragment": is_fragment(self.request)}
        return render(self.request, template, {**frame, **context}, status=status)

    def refuse(self, refusal: Refusal, *, status: int) -> HttpResponse:
        """A page that says what was refused and why."""
        return self.page(ERROR_TEMPLATE, {"refusal": refusal}, status=status)
