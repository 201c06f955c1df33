"""Policies: the list, one with its versions and what changed between them, and the form that writes the next version."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.access import TenantPage
from console.reads import policies as reads
from routing.models import Policy
from routing.services import policies, policy_text
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.core.roles import Permission

_FIRST: dict[policies.Kind, str] = {"routing": "policy: ettft\n", "slo": "ttft_p95_ms: 2000\n"}


class PolicyPages(TenantPage):
    """Base of the pages about policies."""

    tab = "policies"

    def policy(self, policy_id: UUID) -> Policy:
        found = Policy.objects.filter(tenant_id=self.tenant_id, id=policy_id).first()
        if found is None:
            raise NotFound
        return found


class Policies(PolicyPages):
    """Both kinds."""

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        sections = [(kind, title, reads.listed(self.tenant_id, kind)) for kind, title in reads.KINDS.items()]
        return self.page("console/policies.html", {"sections": sections})


class PolicyPage(PolicyPages):
    """One policy: its versions, and the difference of two of them as routers read it."""

    def get(self, request: HttpRequest, policy_id: UUID) -> HttpResponse:
        policy = self.policy(policy_id)
        versions = reads.versions(self.tenant_id, policy)
        by_number = {version.version: version for version in versions}
        to = by_number.get(_number(request.GET.get("to")), versions[0])
        start = by_number.get(_number(request.GET.get("from")), by_number.get(to.version - 1, to))
        context: dict[str, Any] = {
            "policy": policy,
            "versions": [(version, policy_text.write(version.spec)) for version in versions],
            "to": to,
            "start": start,
            "differences": policies.diff(cast(policies.Kind, policy.kind), start.spec, to.spec),
            "uses": reads.uses(self.tenant_id, policy),
        }
        return self.page("console/policy.html", context)


def _number(raw: str | None) -> int:
    return int(raw) if raw is not None and raw.isascii() and raw.isdigit() and len(raw) < 9 else 0


class NewPolicy(PolicyPages):
    """A policy with its version 1."""

    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self._form(kind, "", _FIRST[kind])

    def post(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        name, text = request.POST.get("name", ""), request.POST.get("spec", "")
        try:
            spec = policy_text.parse(text, kind)
            with transaction.atomic():
                version = policies.create(tenant_id=self.tenant_id, actor=self.actor, kind=kind, name=name, spec=spec)
        except (Invalid, Conflict, LimitReached) as refusal:
            return self._form(kind, name, text, field=refusal.field or "", wrong=refusal.message, status=refusal.http_status)
        messages.success(request, f"Policy {name} is stored as version 1. No endpoint uses it yet.")
        return HttpResponseRedirect(reverse("console:policy", args=[self.caller.seat.slug, version.policy_id]))

    def _form(self, kind: policies.Kind, name: str, text: str, *, field: str = "", wrong: str = "", status: int = 200) -> HttpResponse:
        context = {"kind": kind, "name": name, "text": text, "field": field, "wrong": wrong, "policy": None}
        return self.page("console/policy_edit.html", context, status=status)


class EditPolicy(PolicyPages):
    """The next version of a policy: the newest document to begin with, compiled as routers do before it is stored."""

    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, policy_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        policy = self.policy(policy_id)
        return self._form(policy, policy_text.write(policies.latest(policy).spec))

    def post(self, request: HttpRequest, policy_id: UUID) -> HttpResponse:
        policy, text = self.policy(policy_id), request.POST.get("spec", "")
        kind, activate = cast(policies.Kind, policy.kind), request.POST.get("activate") == "on"
        before = policies.latest(policy).version
        try:
            spec = policy_text.parse(text, kind)
            with transaction.atomic():
                version = policies.add_version(
                    tenant_id=self.tenant_id, actor=self.actor, policy_id=policy.id, kind=kind, spec=spec, activate=activate
                )
        except (Invalid, LimitReached) as refusal:
            return self._form(policy, text, activate=activate, field=refusal.field or "", wrong=refusal.message, status=refusal.http_status)
        stored = f"stored as version {version.version}" if version.version != before else f"what version {before} says already"
        moved = " Endpoints that use the policy run it from now on." if activate else ""
        messages.success(request, f"The document is {stored}.{moved}")
        return HttpResponseRedirect(reverse("console:policy", args=[self.caller.seat.slug, policy.id]))

    def _form(self, policy: Policy, text: str, *, activate: bool = False, field: str = "", wrong: str = "", status: int = 200) -> HttpResponse:
        context = {
            "kind": policy.kind,
            "policy": policy,
            "text": text,
            "activate": activate,
            "field": field,
            "wrong": wrong,
            "uses": reads.uses(self.tenant_id, policy),
        }
        return self.page("console/policy_edit.html", context, status=status)


class CheckPolicy(PolicyPages):
    """What is typed so far, compiled: a fragment that says whether routers would take it. Stores nothing."""

    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:  # noqa: ARG002 - the port of a view
        """The fragment before anything is typed."""
        return self.page("console/_policy_checked.html", {})

    def post(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        context: dict[str, Any] = {"checked": True}
        try:
            policy_text.parse(request.POST.get("spec", ""), kind)
        except Invalid as refusal:
            context |= {"field": refusal.field, "wrong": refusal.message}
        return self.page("console/_policy_checked.html", context)
