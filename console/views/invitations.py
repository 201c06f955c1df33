"""Accepting an invitation: with an account that is signed in, or with one that is made here."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters

from console.access import signed_in
from console.views.sign_in import chosen_password, enter
from tenants.api.authentication import peer_address
from tenants.core.errors import NotFound, Refusal
from tenants.models import User
from tenants.services import invitations
from tenants.services.invitations import Offer

INVITATION = "invitation"  # in the session: the token of the link that was opened


def opened(request: HttpRequest) -> HttpResponse:
    """The mailed link: moves its token into the session, so that no page with it in its address stays open."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET"])
    token = request.GET.get("t", "")[:100]
    if _offer(token) is None:
        return _gone(request)
    request.session[INVITATION] = token
    return HttpResponseRedirect(reverse("console:invitation_accept"))


@sensitive_post_parameters("password", "again")
def accept(request: HttpRequest) -> HttpResponse:
    """Say what is offered, and take it."""
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "POST"])
    token = str(request.session.get(INVITATION, ""))
    offered = _offer(token)
    if offered is None:
        request.session.pop(INVITATION, None)
        return _gone(request)
    user = signed_in(request)
    if request.method != "POST":
        return _page(request, offered, user)
    try:
        return _join(request, token, user)
    except NotFound:
        return _gone(request)
    except Refusal as refusal:
        return _page(request, offered, user, error=refusal.message, name=request.POST.get("name", "")[:200], status=refusal.http_status)


def _join(request: HttpRequest, token: str, user: User | None) -> HttpResponse:
    now, peer = timezone.now(), peer_address(request)
    if user is not None:
        joined = invitations.accept(token=token, user=user, peer_address=peer, now=now)
        request.session.pop(INVITATION, None)
        request.session.cycle_key()  # the session may do more than before
    else:
        password = chosen_password(request)
        name = request.POST.get("name", "").strip()[:201]
        joined = invitations.accept_new(token=token, name=name, password=password, peer_address=peer, now=now)
        request.session.flush()
        enter(request, User.objects.get(id=joined.user_id), "")
    slug = joined.tenant.slug
    messages.success(request, f"You are a member of {slug} now, as {joined.role}.")
    return HttpResponseRedirect(reverse("console:overview", args=[slug]))


def _offer(token: str) -> Offer | None:
    try:
        return invitations.offer(token=token, now=timezone.now())
    except NotFound:
        return None


def _page(request: HttpRequest, offered: Offer, user: User | None, *, error: str = "", name: str = "", status: int = 200) -> HttpResponse:
    context = {"offered": offered, "invitation": offered.invitation, "person": user, "error": error, "name": name}
    return render(request, "console/invitation.html", context, status=status)


def _gone(request: HttpRequest) -> HttpResponse:
    return render(request, "console/link_gone.html", {"what": "invitation"}, status=404)
