"""Quotas: what of each limit is used, setting and removing them."""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from console.reads import endpoints
from console.reads.quotas import listed
from routing import queries
from routing.core.quota import MAX_LIMIT, MEASURES
from routing.services import quotas
from tenants import queries as tenant_queries
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, Invalid, LimitReached
from tenants.core.roles import Permission


def _limit() -> forms.IntegerField:
    return forms.IntegerField(min_value=1, max_value=MAX_LIMIT, required=False)


class QuotaForm(forms.Form):
    """Whose quota, and its limits. ``subject`` is ``of`` and the name behind a colon."""

    subject = forms.CharField(max_length=600)
    requests_per_minute = _limit()
    tokens_per_minute = _limit()
    tokens_per_month = _limit()


class Quotas(TenantPage):
    """All quotas with what is used of them, those near a limit first; and the form that sets one."""

    tab = "quotas"
    needs = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._shown(QuotaForm(initial={"subject": request.GET.get("of", "tenant:")}))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = QuotaForm(request.POST)
        if not form.is_valid():
            return self._shown(form, status=400)
        of, _, name = form.cleaned_data["subject"].partition(":")
        limits = {measure: form.cleaned_data[measure] for measure in MEASURES}
        platform = Permission.PLATFORM in self.caller.permissions
        try:
            row = quotas.put(tenant_id=self.tenant_id, actor=self.actor, of=of, name=name, platform=platform, **limits)
        except (Invalid, Conflict, LimitReached) as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else "subject", refusal.message)
            return self._shown(form, status=refusal.http_status)
        messages.success(request, f"The quota of {row} is set. Routers keep it as soon as they have applied the change, within a second.")
        return HttpResponseRedirect(reverse("console:quotas", args=[self.caller.seat.slug]))

    def _shown(self, form: QuotaForm, *, status: int = 200) -> HttpResponse:
        held = listed(self.tenant_id, timezone.now())
        context = {
            "held": held,
            "near": [one for one in held if one.near],
            "form": form,
            "fields": [(form[name], name) for name in MEASURES],
            "subjects": self._subjects() if self.caller.can_configure else [],
            "chosen": form["subject"].value(),
            "warns_at": quotas.NEAR,
        }
        return self.page("console/quotas.html", context, status=status)

    def _subjects(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """What a quota may be of, in groups: (value, text)."""
        whole = [("tenant:", "the whole tenant")]
        if Permission.PLATFORM in self.caller.permissions:
            whole.append(("platform:", "the whole tenant, set by the platform"))
        keys = tenant_queries.keys(self.tenant_id, Kind.INFERENCE).filter(tenant_queries.lasting(), revoked_at=None).order_by("name")
        return [
            ("Tenant", whole),
            ("Scopes, with those below", [(f"scope:{one.path}", str(one)) for one in tenant_queries.scopes(self.tenant_id).order_by("path")]),
            ("Keys", [(f"key:{one.name}", one.name) for one in keys]),
            ("Endpoints", [(f"endpoint:{name}", name) for name in sorted(endpoints.names(self.tenant_id).values())]),
        ]


class RemoveQuota(TenantPage):
    """Remove a quota: GET asks, POST does."""

    tab = "quotas"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest, quota_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/quota_remove.html", {"quota": queries.quota(self.tenant_id, str(quota_id))})

    def post(self, request: HttpRequest, quota_id: UUID) -> HttpResponse:
        platform = Permission.PLATFORM in self.caller.permissions
        row = quotas.remove(tenant_id=self.tenant_id, actor=self.actor, quota_id=quota_id, platform=platform)
        messages.success(request, f"The quota of {row} is removed.")
        return HttpResponseRedirect(reverse("console:quotas", args=[self.caller.seat.slug]))
