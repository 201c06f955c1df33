"""A new password by mail. The answer is the same whether or not an address has an account, and so is the work: a worker looks, not the web."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.tokens import default_token_generator
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlsafe_base64_decode
from django.views.decorators.debug import sensitive_post_parameters

from console import throttle
from console.access import actor_of
from console.views.sign_in import chosen_password, too_many, waiting
from tenants.api.authentication import peer_address
from tenants.core.errors import Invalid
from tenants.models import User
from tenants.queries import parse_uuid
from tenants.services import accounts, mail, sign_ins
from tenants.services.sign_ins import Kind

RESET = "reset"  # in the session: the link that was opened


def ask(request: HttpRequest) -> HttpResponse:
    """Show the form, or queue the wish."""
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "POST"])
    if request.method != "POST" or not mail.configured():
        return _ask(request)
    try:
        address = accounts.normal_email(request.POST.get("email", ""))
    except Invalid as refusal:
        return _ask(request, error=refusal.message, status=400)
    wait_s = throttle.take_reset(email=address, peer_address=peer_address(request), now=timezone.now())
    if wait_s:
        return too_many(_ask(request, error=waiting(wait_s), status=429), wait_s)
    mail.queue(kind=mail.RESET, address=address)
    sign_ins.tried(Kind.RESET_ASKED, email=address, peer_address=peer_address(request), now=timezone.now())
    return _ask(request, sent_to=address)


def opened(request: HttpRequest) -> HttpResponse:
    """The mailed link: moves what it holds into the session, so that no page with it in its address stays open."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET"])
    link = {"u": request.GET.get("u", "")[:100], "t": request.GET.get("t", "")[:100]}
    if _person(link) is None:
        return _gone(request)
    request.session.flush()
    request.session[RESET] = link
    return HttpResponseRedirect(reverse("console:reset_new"))


@sensitive_post_parameters("password", "again")
def new(request: HttpRequest) -> HttpResponse:
    """Choose the new password. It ends every session; signing in, with a code where there is a second factor, comes next."""
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "POST"])
    user = _person(request.session.get(RESET))
    if user is None:
        return _gone(request)
    if request.method != "POST":
        return _new(request, user)
    try:
        accounts.set_password(user=user, password=chosen_password(request), actor=actor_of(request, user))
    except Invalid as refusal:
        return _new(request, user, error=refusal.message, status=400)
    throttle.forgive(email=user.email, peer_address=peer_address(request))
    sign_ins.done(Kind.RESET_USED, user=user, actor=actor_of(request, user), now=timezone.now())
    request.session.flush()
    messages.success(request, "Your password is changed and all your sessions have ended. Sign in with the new one.")
    return HttpResponseRedirect(reverse("console:sign_in"))


def _person(link: object) -> User | None:
    """Whose link this is, while it is good: it is no more once the password has changed or the person has signed in."""
    if not isinstance(link, dict):
        return None
    try:
        user_id = parse_uuid(urlsafe_base64_decode(link["u"]).decode())
    except (ValueError, KeyError):
        return None
    user = User.objects.filter(id=user_id, is_active=True).first() if user_id else None
    return user if user is not None and default_token_generator.check_token(user, link["t"]) else None


def _ask(request: HttpRequest, *, sent_to: str = "", error: str = "", status: int = 200) -> HttpResponse:
    context = {"sent_to": sent_to, "error": error, "mails": mail.configured()}
    return render(request, "console/reset_ask.html", context, status=status)


def _new(request: HttpRequest, user: User, *, error: str = "", status: int = 200) -> HttpResponse:
    return render(request, "console/reset_new.html", {"email": user.email, "error": error}, status=status)


def _gone(request: HttpRequest) -> HttpResponse:
    return render(request, "console/link_gone.html", {"what": "link"}, status=404)
