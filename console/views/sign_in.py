"""Signing in and out, and choosing a tenant."""

from __future__ import annotations

from django import forms
from django.contrib.auth import authenticate, login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters

from console import throttle
from console.access import signed_in, to_sign_in
from tenants import queries
from tenants.api.authentication import peer_address

MAX_PASSWORD_CHARACTERS = 1024
# One answer for an unknown address, a wrong password and a person who may no longer sign in.
_REFUSED = "E-mail or password is not right."


class SignInForm(forms.Form):
    """E-mail and password; bounded, so that nobody makes us hash a book."""

    email = forms.CharField(max_length=254, strip=True)
    password = forms.CharField(max_length=MAX_PASSWORD_CHARACTERS, strip=False)


@sensitive_post_parameters("password")
def sign_in(request: HttpRequest) -> HttpResponse:
    """Show the form, or check it. Every attempt is counted before the password is looked at; an unknown address costs the same hashing."""
    wanted = _next(request)
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
        response = _form(request, wanted=wanted, email=email, error=f"Too many attempts. Try again in {-(-wait_s // 60)} min.", status=429)
        response.headers["Retry-After"] = str(wait_s)
        return response
    user = authenticate(request, username=email, password=password)
    if user is None:
        return _form(request, wanted=wanted, email=email, error=_REFUSED, status=400)
    throttle.forgive(email=email, peer_address=peer)
    login(request, user)
    return HttpResponseRedirect(wanted)


def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session. Only by POST, so that no foreign page can sign a person out with a link."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    logout(request)
    return HttpResponseRedirect(reverse("console:sign_in"))


def home(request: HttpRequest) -> HttpResponse:
    """Go to the person's tenant, or to the choice of tenants when there is not exactly one."""
    user = signed_in(request)
    if user is None:
        return HttpResponseRedirect(reverse("console:sign_in"))
    seats = queries.tenants_of_user(user)
    if len(seats) == 1:
        return HttpResponseRedirect(reverse("console:overview", args=[seats[0].slug]))
    return HttpResponseRedirect(reverse("console:tenants"))


def tenants(request: HttpRequest) -> HttpResponse:
    """The tenants a person may open; a platform operator sees all of them."""
    user = signed_in(request)
    if user is None:
        return to_sign_in(request)
    wanted = request.GET.get("q", "").strip().lower()
    seats = queries.tenants_of_user(user)
    shown = [seat for seat in seats if wanted in seat.slug or wanted in seat.name.lower()]
    context = {"person": user, "seats": shown, "total": len(seats), "wanted": wanted}
    return render(request, "console/tenants.html", context)


def _form(request: HttpRequest, *, wanted: str, email: str = "", error: str = "", status: int = 200) -> HttpResponse:
    return render(request, "console/sign_in.html", {"wanted": wanted, "email": email, "error": error}, status=status)


def _next(request: HttpRequest) -> str:
    """Where to go afterwards: a path of this site alone."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    return wanted if url_has_allowed_host_and_scheme(wanted, allowed_hosts=None) and wanted.startswith("/") else reverse("console:home")
