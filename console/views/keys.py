"""Inference keys: the list, issuing or rotating one (shown once), revoking one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from console.reads import endpoints, keys, routers
from tenants import queries
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, Invalid, LimitReached
from tenants.core.roles import Permission
from tenants.services import api_keys

_EXPIRY_DAYS = {"": None, "1": 1, "30": 30, "90": 90, "365": 365}


class IssueForm(forms.Form):
    """What a new key is called, where it may act and for how long."""

    name = forms.CharField(max_length=100, strip=True)
    scope = forms.CharField(max_length=520, required=False)
    expires = forms.ChoiceField(choices=[(value, value) for value in _EXPIRY_DAYS], required=False)


class Keys(TenantPage):
    """The inference keys in force; with ``ended=1`` also those that were revoked or have expired."""

    tab = "keys"

    def get(self, request: HttpRequest) -> HttpResponse:
        now = timezone.now()
        with_ended = request.GET.get("ended") == "1"
        found = keys.listed(self.tenant_id) if with_ended else keys.in_force(self.tenant_id, now)
        rows = [(key, keys.state(key, now)) for key in found]
        context = {
            "rows": rows,
            "ended": keys.count_ended(self.tenant_id, now),
            "with_ended": with_ended,
            "expiring": [key for key, state in rows if state == "expiring"],
            "days": keys.EXPIRES_SOON.days,
        }
        if request.GET.get("changed"):  # somebody waits for routers to have it
            context["badge"] = routers.badge(routers.status(self.tenant_id))
        return self.page("console/keys.html", context)


class IssueKey(TenantPage):
    """The form, and the one page that shows the key. It is answered directly and never stored: to load it again would need a second POST."""

    tab = "keys"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self._form(IssueForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        form = IssueForm(request.POST)
        if not form.is_valid():
            return self._form(form, status=400)
        now = timezone.now()
        days = _EXPIRY_DAYS[form.cleaned_data["expires"]]
        expires_at = None if days is None else now + timedelta(days=days)
        try:
            with transaction.atomic():
                issued = api_keys.issue_inference(
                    tenant_id=self.tenant_id,
                    actor=self.actor,
                    name=form.cleaned_data["name"],
                    scope_path=form.cleaned_data["scope"],
                    expires_at=expires_at,
                    now=now,
                )
        except (Invalid, Conflict, LimitReached) as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
            return self._form(form, status=refusal.http_status)
        return _shown_once(self, issued, rotated=False)

    def _form(self, form: IssueForm, *, status: int = 200) -> HttpResponse:
        return self.page("console/key_issue.html", {"form": form, "scopes": queries.scopes(self.tenant_id).order_by("path")}, status=status)


def _shown_once(view: TenantPage, issued: api_keys.Issued, *, rotated: bool) -> HttpResponse:
    """The one page that shows a key."""
    name = next(iter(endpoints.names(view.tenant_id).values()), "MODEL")
    context = {"key": issued.key, "secret": issued.secret, "rotated": rotated, "model": name, "router_url": settings.ROUTER_PUBLIC_URL}
    return view.page("console/key_issued.html", context)


class RotateKey(TenantPage):
    """Give a key a new text: GET asks, POST does it and shows the new one once. With another end where one is chosen."""

    tab = "keys"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest, key_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/key_rotate.html", {"key": queries.key(self.tenant_id, Kind.INFERENCE, str(key_id))})

    def post(self, request: HttpRequest, key_id: UUID) -> HttpResponse:
        now, ends = timezone.now(), request.POST.get("expires", "keep")
        if ends != "keep" and ends not in _EXPIRY_DAYS:
            raise Invalid("Choose one of these.", field="expires")
        which: dict[str, Any] = {"tenant_id": self.tenant_id, "actor": self.actor, "kind": Kind.INFERENCE, "key_id": key_id}
        which |= {"ceiling": self.caller.seat.role, "now": now}
        with transaction.atomic():
            issued = api_keys.rotate(**which)
            if ends != "keep":
                days = _EXPIRY_DAYS[ends]
                api_keys.update(**which, fields={"expires_at": None if days is None else now + timedelta(days=days)})
                issued.key.refresh_from_db(fields=["expires_at"])
        return _shown_once(self, issued, rotated=True)


class RevokeKey(TenantPage):
    """Revoke a key: GET asks, POST does."""

    tab = "keys"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest, key_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/key_revoke.html", {"key": queries.key(self.tenant_id, Kind.INFERENCE, str(key_id))})

    def post(self, request: HttpRequest, key_id: UUID) -> HttpResponse:
        key = api_keys.revoke(
            tenant_id=self.tenant_id,
            actor=self.actor,
            kind=Kind.INFERENCE,
            key_id=key_id,
            ceiling=self.caller.seat.role,
            reason=request.POST.get("reason", "").strip(),
            now=timezone.now(),
        )
        messages.success(request, f"Key {key.name} is revoked. Routers refuse it as soon as they have applied the change, within a second.")
        return HttpResponseRedirect(reverse("console:keys", args=[self.caller.seat.slug]) + "?changed=1")
