"""A person's own page: name, password, second factor, sessions, and the control tokens that they issued."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import segno
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from console import throttle
from console.access import PersonPage
from console.reads import people
from console.views.sign_in import MAX_PASSWORD_CHARACTERS, chosen_password, next_of, too_many, waiting
from tenants import queries, sessions
from tenants.api.authentication import peer_address
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid, NotFound, Refusal
from tenants.core.roles import Role
from tenants.scoping import tenant_scope
from tenants.services import accounts, api_keys, second_factors, sign_ins
from tenants.services.sign_ins import Kind as SignIn

_MAX = MAX_PASSWORD_CHARACTERS
ENROLLING = "enrolling"  # in the session: the mark of the secret that it was shown
FRESH = timedelta(minutes=10)  # since signing in, within which setting up a second factor asks for no password again


class AccountPage(PersonPage):
    """Base: counts attempts at the password and the code of a session that may be stolen, as at sign-in."""

    def too_often(self, request: HttpRequest, *, password: bool, code: bool) -> HttpResponse | None:
        """The answer to somebody who tried too often; None while they may."""
        peer, now, waits = peer_address(request), timezone.now(), [0]
        if password:
            waits.append(throttle.take(email=self.person.email, peer_address=peer, now=now))
        if code:
            waits.append(throttle.take_code(user_id=self.person.id, peer_address=peer, now=now))
        if not max(waits):
            return None
        refusal = Refusal(waiting(max(waits)))
        return too_many(self.page("console/account_refusal.html", {"refusal": refusal}, status=429), max(waits))

    def proven(self, request: HttpRequest, *, password: bool, code: bool) -> None:
        """What was asked was right: give the attempts back."""
        peer = peer_address(request)
        if password:
            throttle.forgive(email=self.person.email, peer_address=peer)
        if code:
            throttle.forgive_code(user_id=self.person.id, peer_address=peer)

    def go_on(self, request: HttpRequest) -> None:
        """All sessions have ended with the change; this one goes on under a new key."""
        update_session_auth_hash(request, self.person)

    def account(self, *, refusal: Refusal | None = None) -> HttpResponse:
        """The page itself; with what was refused, in its place."""
        seats = queries.tenants_of_user(self.person)
        context = {
            "seats": seats,
            "sessions": people.own_sessions(self.person, self.request.session.session_key),
            "tokens": people.own_tokens(self.person, seats),
            "codes_left": second_factors.codes_left(self.person) if self.person.second_factor_at else 0,
            "required": second_factors.required_of(self.person, seats),
            "refusal": refusal,
        }
        return self.page("console/account.html", context, status=refusal.http_status if refusal else 200)

    def back(self, request: HttpRequest, said: str) -> HttpResponse:
        """Say what was done, on the account page."""
        messages.success(request, said)
        return HttpResponseRedirect(reverse("console:account"))


class Account(AccountPage):
    """The page; POST changes the name."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.account()

    def post(self, request: HttpRequest) -> HttpResponse:
        try:
            accounts.rename(user=self.person, name=request.POST.get("name", "").strip(), actor=self.actor)
        except Invalid as refusal:
            return self.account(refusal=refusal)
        return self.back(request, "Your name is changed.")


@method_decorator(sensitive_post_parameters("current", "password", "again"), name="dispatch")
class Password(AccountPage):
    """Change the password; every other session ends."""

    def post(self, request: HttpRequest) -> HttpResponse:
        if refused := self.too_often(request, password=True, code=False):
            return refused
        current = request.POST.get("current", "")[:_MAX]
        try:
            accounts.change_password(user=self.person, current=current, password=chosen_password(request), actor=self.actor)
        except Invalid as refusal:
            return self.account(refusal=refusal)
        self.proven(request, password=True, code=False)
        self.go_on(request)
        return self.back(request, "Your password is changed. Your other sessions have ended.")


@method_decorator(sensitive_post_parameters("password", "code"), name="dispatch")
class SecondFactor(AccountPage):
    """Set up a second factor: GET shows the secret as a picture and as text, POST confirms it with a code and shows the recovery codes once.

    A session that is not fresh proves the password too: in a thief's hands it would lock its owner out.
    """

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._form(request)

    def post(self, request: HttpRequest) -> HttpResponse:
        password = self._asks_password(request)
        if refused := self.too_often(request, password=password, code=True):
            return refused
        if password and not self.person.check_password(request.POST.get("password", "")[:_MAX]):
            return self._form(request, error="The password is not right.", status=400)
        mark, code = str(request.session.get(ENROLLING, "")), request.POST.get("code", "")[:64]
        try:
            codes = second_factors.confirm(user=self.person, mark=mark, code=code, actor=self.actor, now=timezone.now())
        except Invalid as refusal:
            return self._form(request, error=refusal.message, status=400)
        del request.session[ENROLLING]
        self.proven(request, password=password, code=True)
        self.go_on(request)
        return self.page("console/recovery_codes.html", {"codes": codes, "first": True, "next": next_of(request)})

    def _asks_password(self, request: HttpRequest) -> bool:
        row = request.session.row if isinstance(request.session, sessions.SessionStore) else None
        return row is None or timezone.now() - row.created_at > FRESH

    def _form(self, request: HttpRequest, *, error: str = "", status: int = 200) -> HttpResponse:
        if self.person.second_factor_at is not None:
            return HttpResponseRedirect(reverse("console:account"))
        enrolment = second_factors.enrol(user=self.person, mark=str(request.session.get(ENROLLING, "")))
        request.session[ENROLLING] = enrolment.mark
        picture = segno.make(enrolment.uri, error="m", micro=False).svg_data_uri(scale=5, dark="#000", light="#fff")
        required = second_factors.required_of(self.person, queries.tenants_of_user(self.person))
        text = " ".join(enrolment.text[at : at + 4] for at in range(0, len(enrolment.text), 4))
        context = {"picture": picture, "text": text, "error": error, "required": required, "next": next_of(request)}
        return self.page("console/second_factor.html", {**context, "password": self._asks_password(request)}, status=status)


@method_decorator(sensitive_post_parameters("password", "code"), name="dispatch")
class SecondFactorOff(AccountPage):
    """Take the second factor off: needs the password and a code."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/second_factor_off.html", {"error": ""})

    def post(self, request: HttpRequest) -> HttpResponse:
        if refused := self.too_often(request, password=True, code=True):
            return refused
        try:
            second_factors.take_off(
                user=self.person,
                password=request.POST.get("password", "")[:_MAX],
                code=request.POST.get("code", "")[:64],
                actor=self.actor,
                now=timezone.now(),
            )
        except Invalid as refusal:
            return self.page("console/second_factor_off.html", {"error": refusal.message}, status=400)
        self.proven(request, password=True, code=True)
        self.go_on(request)
        return self.back(request, "Your second factor is off. Your other sessions have ended.")


class RecoveryCodes(AccountPage):
    """New recovery codes in place of the old, shown once."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/recovery_codes_new.html", {"error": ""})

    def post(self, request: HttpRequest) -> HttpResponse:
        if refused := self.too_often(request, password=False, code=True):
            return refused
        try:
            codes = second_factors.renew_codes(user=self.person, code=request.POST.get("code", "")[:64], actor=self.actor, now=timezone.now())
        except Invalid as refusal:
            return self.page("console/recovery_codes_new.html", {"error": refusal.message}, status=400)
        self.proven(request, password=False, code=True)
        return self.page("console/recovery_codes.html", {"codes": codes, "first": False, "next": reverse("console:account")})


class EndSession(AccountPage):
    """End one of one's own sessions."""

    def post(self, request: HttpRequest, session_id: UUID) -> HttpResponse:
        if not sessions.end(user=self.person, session_id=session_id):
            raise NotFound
        sign_ins.done(SignIn.SESSION_ENDED, user=self.person, actor=self.actor, now=timezone.now(), after={"by": "its person, from another session"})
        return self.back(request, "The session has ended.")


class EndOtherSessions(AccountPage):
    """End every session but this one."""

    def post(self, request: HttpRequest) -> HttpResponse:
        ended = sessions.end_all(user=self.person, but=request.session.session_key)
        if ended:
            after = {"by": "its person, from another session", "sessions": ended}
            sign_ins.done(SignIn.SESSION_ENDED, user=self.person, actor=self.actor, now=timezone.now(), after=after)
        return self.back(request, f"{ended} other session{'' if ended == 1 else 's'} ended.")


class RevokeOwnToken(AccountPage):
    """Revoke a control token that one issued, whatever one's role is by now."""

    def post(self, request: HttpRequest, slug: str, token_id: UUID) -> HttpResponse:
        seat = next((one for one in queries.tenants_of_user(self.person) if one.slug == slug), None)
        if seat is None:
            raise NotFound
        with tenant_scope(seat.tenant_id):
            token = queries.key(seat.tenant_id, Kind.CONTROL, str(token_id))
            if token.created_by != self.person.email:
                raise NotFound
            api_keys.revoke(
                tenant_id=seat.tenant_id,
                actor=self.actor,
                kind=Kind.CONTROL,
                key_id=token.id,
                ceiling=Role.OWNER,
                reason="revoked by its issuer",
                now=timezone.now(),
            )
        return self.back(request, f"Token {token.name} is revoked: it is refused from now on.")
