"""Trials on an endpoint's page: begin one or change its share, promote, roll back, and hold a policy against the past."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from console.reads import policies as reads
from routing import queries
from routing.core.policy import PolicyError, compile_routing
from routing.models import Endpoint
from routing.services import dry_run, trials
from tenants.core.errors import Conflict, Invalid
from tenants.core.roles import Permission


class TrialPage(TenantPage):
    """Base: an endpoint, and back to its page."""

    tab = "endpoints"
    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def endpoint(self, endpoint_id: UUID) -> Endpoint:
        return queries.endpoint(self.tenant_id, str(endpoint_id))

    def back(self, endpoint_id: UUID, said: str) -> HttpResponse:
        """To the panel of trials, where what was done is said and has the focus: at the page's top it would be out of view."""
        messages.success(self.request, said, extra_tags="trial")
        return HttpResponseRedirect(reverse("console:endpoint", args=[self.caller.seat.slug, endpoint_id]) + "#trial-said")

    def whole(self, endpoint: Endpoint) -> bool:
        return trials.may_read_load(self.tenant_id, endpoint, platform=self.caller.seat.platform)


class TryPolicy(TrialPage):
    """Which policy, and what share of the prompts it places."""

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        endpoint = self.endpoint(endpoint_id)
        chosen = str(endpoint.candidate_policy_id) if endpoint.candidate_policy_id else request.GET.get("policy", "")
        return self._form(endpoint, chosen, f"{endpoint.canary_share * 100:g}")

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        endpoint, chosen, percent = self.endpoint(endpoint_id), request.POST.get("policy", ""), request.POST.get("percent", "")
        version = reads.routing_version(self.tenant_id, chosen)
        if version is None:
            return self._form(endpoint, chosen, percent, field="policy", wrong="Choose a policy.")
        wanted = {"name": version.policy.name, "version": version.version}
        try:
            with transaction.atomic():
                endpoint = trials.start(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, policy=wanted, share=share_of(percent))
        except Invalid as refusal:
            return self._form(endpoint, chosen, percent, field=refusal.field or "", wrong=refusal.message)
        where = f"It places {percent} % of the prompts." if endpoint.canary_share else "It decides in the shadow and moves nothing."
        return self.back(endpoint_id, f"{version.policy.name} v{version.version} is tried on {endpoint.name}. {where}")

    def _form(self, endpoint: Endpoint, chosen: str, percent: str, *, field: str = "", wrong: str = "") -> HttpResponse:
        context = {
            "endpoint": endpoint,
            "versions": [one for one in reads.routing_versions(self.tenant_id) if one.id != endpoint.routing_policy_id],
            "chosen": chosen,
            "percent": percent,
            "field": field,
            "wrong": wrong,
        }
        return self.page("console/trial_edit.html", context, status=400 if wrong else 200)


def share_of(percent: str) -> float:
    """A share from a percentage as typed.

    Raises:
        Invalid: no number.
    """
    try:
        return float(percent) / 100
    except ValueError:
        raise Invalid("Give a number from 0 to 100.", field="share") from None


class Promote(TrialPage):
    """GET asks with the report's figures, POST does it."""

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        endpoint = self.endpoint(endpoint_id)
        report = trials.report(tenant_id=self.tenant_id, endpoint=endpoint, whole=self.whole(endpoint), now=timezone.now())
        return self.page("console/trial_promote.html", {"endpoint": endpoint, "report": report})

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        raw, reason = request.POST.get("version", ""), request.POST.get("reason", "").strip()
        if not (raw.isascii() and raw.isdigit() and len(raw) < 9):
            raise Conflict("No candidate is tried on this endpoint.")
        row = trials.promote(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, version=int(raw), reason=reason)
        return self.back(endpoint_id, f"{row.name} runs {row.routing_policy.policy.name} v{row.routing_policy.version} for every prompt.")


class RollBack(TrialPage):
    """GET says what it returns to, POST does it."""

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self.page("console/trial_rollback.html", {"endpoint": self.endpoint(endpoint_id)})

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        reason = request.POST.get("reason", "").strip()
        row = trials.roll_back(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, reason=reason)
        return self.back(endpoint_id, f"{row.name} runs {row.routing_policy.policy.name} v{row.routing_policy.version}, and nothing is tried.")


class DryRun(TrialPage):
    """A version against what the endpoint decided lately."""

    needs = {"GET": Permission.READ}

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        endpoint = self.endpoint(endpoint_id)
        version = reads.routing_version(self.tenant_id, request.GET.get("policy", "")) or endpoint.candidate_policy or endpoint.routing_policy
        context: dict[str, Any] = {"endpoint": endpoint, "version": version, "versions": reads.routing_versions(self.tenant_id)}
        try:
            policy = compile_routing(version.spec)
        except PolicyError as error:
            raise Invalid(f"This version cannot run: {error.message}.", field=error.field) from None
        own = None if self.caller.seat.platform else queries.own_replica_ids(self.tenant_id)
        context["found"] = dry_run.run(
            tenant_id=self.tenant_id, endpoint=endpoint, policy=policy, whole=self.whole(endpoint), own_replica_ids=own, now=timezone.now()
        )
        return self.page("console/dry_run.html", context)
