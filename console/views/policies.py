"""Policies: the list, one with its versions and what changed between them, the form that writes the next version, and moving endpoints to one."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.access import TenantPage
from console.reads import policies as reads
from console.written import TURNS, Written, way_of
from routing import queries
from routing.models import Endpoint, Policy, PolicyVersion
from routing.services import endpoints, policies, policy_text
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.core.roles import Permission

_FIRST: dict[policies.Kind, dict[str, Any]] = {"routing": {"policy": "ettft"}, "slo": {"ttft_p95_ms": 2000}}


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


class PolicyForm(PolicyPages):
    """Base of the form, as fields or as YAML, with the same document in both."""

    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def form(self, written: Written, *, policy: Policy | None, name: str = "", activate: bool = False, status: int = 200) -> HttpResponse:
        uses = reads.uses(self.tenant_id, policy) if policy is not None else []
        against = policies.latest(policy) if policy is not None else None
        context = {"policy": policy, "name": name, "wrong_name": written.wrong("name"), "activate": activate, "uses": uses, "against": against}
        return self.page("console/policy_edit.html", {**context, **written.shown()}, status=status)


class NewPolicy(PolicyForm):
    """A policy with its version 1."""

    def get(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        return self.form(Written.of(kind, _FIRST[kind], way_of(request)), policy=None)

    def post(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        name, written = request.POST.get("name", ""), Written.posted(kind, request.POST)
        if (turn := TURNS.get(request.POST.get("do", ""))) is not None:
            return self.form(written.turned(turn), policy=None, name=name)
        try:
            spec = written.document()
            with transaction.atomic():
                version = policies.create(tenant_id=self.tenant_id, actor=self.actor, kind=kind, name=name, spec=spec)
        except (Invalid, Conflict, LimitReached) as refusal:
            return self.form(written.refused(refusal), policy=None, name=name, status=refusal.http_status)
        messages.success(request, f"Policy {name} is stored as version 1. No endpoint uses it yet.")
        return HttpResponseRedirect(reverse("console:policy", args=[self.caller.seat.slug, version.policy_id]))


class EditPolicy(PolicyForm):
    """The next version of a policy: the newest document to begin with, compiled as routers do before it is stored."""

    def get(self, request: HttpRequest, policy_id: UUID) -> HttpResponse:
        policy = self.policy(policy_id)
        return self.form(Written.of(cast(policies.Kind, policy.kind), policies.latest(policy).spec, way_of(request)), policy=policy)

    def post(self, request: HttpRequest, policy_id: UUID) -> HttpResponse:
        policy = self.policy(policy_id)
        kind, activate = cast(policies.Kind, policy.kind), request.POST.get("activate") == "on"
        written = Written.posted(kind, request.POST)
        if (turn := TURNS.get(request.POST.get("do", ""))) is not None:
            return self.form(written.turned(turn), policy=policy, activate=activate)
        before = policies.latest(policy).version
        try:
            spec = written.document()
            with transaction.atomic():
                version = policies.add_version(
                    tenant_id=self.tenant_id, actor=self.actor, policy_id=policy.id, kind=kind, spec=spec, activate=activate
                )
        except (Invalid, LimitReached) as refusal:
            return self.form(written.refused(refusal), policy=policy, activate=activate, status=refusal.http_status)
        stored = f"stored as version {version.version}" if version.version != before else f"what version {before} says already"
        moved = " Endpoints that use the policy run it from now on." if activate else ""
        messages.success(request, f"The document is {stored}.{moved}")
        return HttpResponseRedirect(reverse("console:policy", args=[self.caller.seat.slug, policy.id]))


class CheckPolicy(PolicyPages):
    """What is typed so far, compiled: a fragment that says whether routers would take it, and what would change. Stores nothing.

    ``against`` is the id of the version that it is held against.
    """

    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:  # noqa: ARG002 - the port of a view
        """The fragment before anything is typed."""
        return self.page("console/_policy_checked.html", {})

    def post(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        written = Written.posted(kind, request.POST)
        against = reads.version(self.tenant_id, kind, request.POST.get("against", ""))
        differences = None
        try:
            spec = written.document()
            differences = policies.diff(kind, against.spec, spec) if against is not None else None
        except Invalid as refusal:
            written = written.refused(refusal)
        context = {"checked": True, "problems": written.problems, "against": against, "differences": differences}
        return self.page("console/_policy_checked.html", context)


class ActivateVersion(PolicyPages):
    """Move endpoints to a version, a newer or an older one: GET asks which, with what changes for routers; POST does it, or leads to a trial."""

    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, policy_id: UUID, version: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        return self._ask(*self._version(policy_id, version))

    def post(self, request: HttpRequest, policy_id: UUID, version: str) -> HttpResponse:
        policy, to = self._version(policy_id, version)
        chosen, other = set(request.POST.getlist("endpoint")), request.POST.get("other", "").strip()
        targets = [use.endpoint for use in reads.moving(self.tenant_id, to)[0] if str(use.endpoint.id) in chosen]
        if other:
            try:
                targets.append(queries.endpoint(self.tenant_id, other))
            except NotFound:
                return self._ask(policy, to, other=other, wrong="There is no endpoint of this name.")
        if request.POST.get("do") == "try":
            return self._to_trial(policy, to, targets, other)
        if not targets:
            return self._ask(policy, to, wrong="Choose at least one endpoint, or name another one.")
        try:
            with transaction.atomic():
                moved = {endpoint.id: self._move(policy, to, endpoint) for endpoint in targets}
        except Invalid as refusal:  # such as a target that spills to where an endpoint could not be served
            return self._ask(policy, to, other=other, wrong=refusal.message)
        messages.success(request, f"{', '.join(moved.values())} run{'s' if len(moved) == 1 else ''} {policy.name} v{to.version}.")
        return HttpResponseRedirect(reverse("console:policy", args=[self.caller.seat.slug, policy.id]))

    def _move(self, policy: Policy, to: PolicyVersion, endpoint: Endpoint) -> str:
        wanted = {"routing_policy" if policy.kind == "routing" else "slo": {"name": policy.name, "version": to.version}}
        fields = cast(endpoints.EndpointFields, wanted)
        return endpoints.update(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint.id, **fields).name

    def _to_trial(self, policy: Policy, to: PolicyVersion, targets: list[Endpoint], other: str) -> HttpResponse:
        if policy.kind != "routing":
            return self._ask(policy, to, other=other, wrong="A latency target is not tried: it moves no request by itself. Activate it.")
        if len(targets) != 1:
            return self._ask(policy, to, other=other, wrong="Choose the one endpoint that it is tried on.")
        if targets[0].routing_policy_id == to.id:
            return self._ask(policy, to, other=other, wrong=f"{targets[0].name} runs this version already.")
        return HttpResponseRedirect(reverse("console:endpoint_try", args=[self.caller.seat.slug, targets[0].id]) + f"?policy={to.id}")

    def _ask(self, policy: Policy, to: PolicyVersion, *, other: str = "", wrong: str = "") -> HttpResponse:
        uses, more = reads.moving(self.tenant_id, to)
        old = queries.policy_versions(self.tenant_id, policy.id).filter(version__in={use.version for use in uses})
        changes = {one.version: policies.diff(cast(policies.Kind, policy.kind), one.spec, to.spec) for one in old}
        context = {
            "policy": policy,
            "to": to,
            "moves": [(use, changes[use.version]) for use in uses],
            "more": more,
            "used": bool(uses) or any(use.how == "runs" for use in reads.uses(self.tenant_id, policy)),
            "names": [name for _, name in reads.endpoint_names(self.tenant_id)],
            "other": other,
            "wrong": wrong,
        }
        return self.page("console/policy_activate.html", context, status=400 if wrong else 200)

    def _version(self, policy_id: UUID, version: str) -> tuple[Policy, PolicyVersion]:
        policy = self.policy(policy_id)
        found = PolicyVersion.objects.filter(tenant_id=self.tenant_id, policy=policy, version=_number(version)).select_related("policy").first()
        if found is None:
            raise NotFound
        return policy, found
