"""Signing in, with a code where the person has a second factor, and out; choosing a tenant."""

from __future__ import annotations

import time

from django import forms
from django.contrib.auth import authenticate, login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters

from console import throttle
from console.access import LAST_TENANT, actor_of, signed_in, to_enrolment, to_sign_in
from tenants import queries, sessions
from tenants.api.authentication import peer_address
from tenants.core.errors import Invalid, Unavailable
from tenants.models import User
from tenants.services import mail, second_factors, sign_ins
from tenants.services.sign_ins import Kind

MAX_PASSWORD_CHARACTERS = 1024
# One answer for an unknown address, a wrong password and a person who may no longer sign in.
_REFUSED = "E-mail or password is not right."
_WRONG_CODE = "This code is not right, or was used before."
PENDING = "pending"  # in the session: who gave a good password and owes a code
PENDING_S = 300  # for so long


class SignInForm(forms.Form):
    """E-mail and password; bounded, so that nobody makes us hash a book."""

    email = forms.CharField(max_length=254, strip=True)
    password = forms.CharField(max_length=MAX_PASSWORD_CHARACTERS, strip=False)


@sensitive_post_parameters("password")
def sign_in(request: HttpRequest) -> HttpResponse:
    """Show the form, or check it. Every attempt is counted before the password is looked at; an unknown address costs the same hashing."""
    wanted = next_of(request)
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "POST"])
    if request.method != "POST":
        return HttpResponseRedirect(wanted) if signed_in(request) else _form(request, wanted=wanted)
    form = SignInForm(request.POST)
    if not form.is_valid():
        return _form(request, wanted=wanted, error=_REFUSED, status=400)
    email, password = form.cleaned_data["email"], form.cleaned_data["password"]
    peer = peer_address(request)
    wait_s = throttle.take(email=email, peer_address=peer, now=timezone.now())
    if wait_s:
        return too_many(_form(request, wanted=wanted, email=email, error=waiting(wait_s), status=429), wait_s)
    user = authenticate(request, username=email, password=password)
    if not isinstance(user, User):
        sign_ins.tried(Kind.FAILED, email=email, peer_address=peer, now=timezone.now())
        return _form(request, wanted=wanted, email=email, error=_REFUSED, status=400)
    throttle.forgive(email=email, peer_address=peer)
    if user.second_factor_at is None:
        return enter(request, user, wanted)
    request.session.flush()  # whoever was signed in here is not any more, and the code is owed under a new key
    request.session[PENDING] = {"user": str(user.id), "at": time.time(), "hash": user.get_session_auth_hash(), "next": wanted}
    return HttpResponseRedirect(reverse("console:sign_in_code"))


@sensitive_post_parameters("code")
def sign_in_code(request: HttpRequest) -> HttpResponse:
    """The second step: a code of the authenticator, or a recovery code. Counted before it is looked at, by person and by peer."""
    if request.method not in ("GET", "HEAD", "POST"):
        return HttpResponseNotAllowed(["GET", "POST"])
    user = _owing(request)
    if user is None:
        request.session.pop(PENDING, None)
        return HttpResponseRedirect(reverse("console:sign_in"))
    if request.method != "POST":
        return _code_form(request)
    peer, now = peer_address(request), timezone.now()
    wait_s = throttle.take_code(user_id=user.id, peer_address=peer, now=now)
    if wait_s:
        return too_many(_code_form(request, error=waiting(wait_s), status=429), wait_s)
    try:
        good = second_factors.check(user=user, code=request.POST.get("code", "")[:64], now=now)
    except Unavailable as away:
        return _code_form(request, error=away.message, status=503)
    if not good:
        sign_ins.done(Kind.CODE_REFUSED, user=user, actor=actor_of(request, user), now=now)
        return _code_form(request, error=_WRONG_CODE, status=400)
    throttle.forgive_code(user_id=user.id, peer_address=peer)
    wanted = str(request.session.pop(PENDING)["next"])
    return enter(request, user, wanted)


def enter(request: HttpRequest, user: User, wanted: str) -> HttpResponse:
    """Begin a session of a person who has proven everything that is asked, under a new key."""
    login(request, user)
    request.session[sessions.PEER] = peer_address(request)
    request.session[sessions.BROWSER] = request.headers.get("User-Agent", "")[: sessions.BROWSER_MAX]
    sessions.purge()
    after = {"second_factor": user.second_factor_at is not None}
    sign_ins.done(Kind.SUCCESS, user=user, actor=actor_of(request, user), now=timezone.now(), after=after)
    return HttpResponseRedirect(wanted)


def _owing(request: HttpRequest) -> User | None:
    """Who owes a code in this session: nobody when it took too long, or when the password or the factor has changed meanwhile."""
    pending = request.session.get(PENDING)
    if not isinstance(pending, dict) or not 0 <= time.time() - pending["at"] <= PENDING_S:
        return None
    user = User.objects.filter(id=pending["user"], is_active=True).exclude(second_factor_at=None).first()
    return user if user is not None and user.get_session_auth_hash() == pending["hash"] else None


def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session. Only by POST, so that no foreign page can sign a person out with a link."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    user = signed_in(request)
    logout(request)
    if user is not None:
        sign_ins.done(Kind.SESSION_ENDED, user=user, actor=actor_of(request, user), now=timezone.now(), after={"by": "signing out"})
    return HttpResponseRedirect(reverse("console:sign_in"))


def home(request: HttpRequest) -> HttpResponse:
    """Go to the person's tenant: the only one, or the one they looked at last; else to the choice of tenants."""
    user = signed_in(request)
    if user is None:
        return HttpResponseRedirect(reverse("console:sign_in"))
    slugs = [seat.slug for seat in queries.tenants_of_user(user)]
    last = request.session.get(LAST_TENANT)
    if len(slugs) == 1 or last in slugs:
        return HttpResponseRedirect(reverse("console:overview", args=[last if last in slugs else slugs[0]]))
    return HttpResponseRedirect(reverse("console:tenants"))


def tenants(request: HttpRequest) -> HttpResponse:
    """The tenants a person may open; a platform operator sees all of them."""
    user = signed_in(request)
    if user is None:
        return to_sign_in(request)
    if user.second_factor_at is None and second_factors.operator_needs_one(user):
        return to_enrolment(request)
    wanted = request.GET.get("q", "").strip().lower()
    seats = queries.tenants_of_user(user)
    shown = [seat for seat in seats if wanted in seat.slug or wanted in seat.name.lower()]
    context = {"person": user, "seats": shown, "total": len(seats), "wanted": wanted, "last": request.session.get(LAST_TENANT)}
    return render(request, "console/tenants.html", context)


def chosen_password(request: HttpRequest) -> str:
    """The new password of a form that asks for it twice; longer than any may be, so that a cut one is refused and not taken.

    Raises:
        Invalid: the two differ.
    """
    password = request.POST.get("password", "")
    if password != request.POST.get("again", ""):
        raise Invalid("The two passwords differ.", field="again")
    return password[: MAX_PASSWORD_CHARACTERS + 1]


def waiting(wait_s: int) -> str:
    """What is said to somebody who tried too often."""
    return f"Too many attempts. Try again in {-(-wait_s // 60)} min."


def too_many(response: HttpResponse, wait_s: int) -> HttpResponse:
    """Name the seconds to wait in the answer's header."""
    response.headers["Retry-After"] = str(wait_s)
    return response


def next_of(request: HttpRequest) -> str:
    """Where to go afterwards: a path of this site alone."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    return wanted if url_has_allowed_host_and_scheme(wanted, allowed_hosts=None) and wanted.startswith("/") else reverse("console:home")


def _form(request: HttpRequest, *, wanted: str, email: str = "", error: str = "", status: int = 200) -> HttpResponse:
    context = {"wanted": wanted, "email": email, "error": error, "mails": mail.configured()}
    return render(request, "console/sign_in.html", context, status=status)


def _code_form(request: HttpRequest, *, error: str = "", status: int = 200) -> HttpResponse:
    return render(request, "console/sign_in_code.html", {"error": error}, status=status)
