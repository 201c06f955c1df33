"""Policies: the list, one with its versions and what changed between them, the form that writes the next version, and moving endpoints to one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse

from console.access import TenantPage
from console.reads import policies as reads
from routing.core import policy_form
from routing.core.policy import SCORERS
from routing.models import Policy, PolicyVersion
from routing.services import endpoints, policies, policy_text
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound, Refusal
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


@dataclass(frozen=True, slots=True)
class Written:
    """A document as it stands in the form: as fields (``way`` form) or as YAML. ``spec`` is None where it cannot be read as a document at all."""

    kind: policies.Kind
    way: str
    texts: dict[str, str]
    yaml: str
    problems: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, kind: policies.Kind, spec: dict[str, Any], way: str) -> Written:
        """A stored document."""
        return cls(kind, way, policy_form.values(kind, spec), policy_text.write(spec))

    @classmethod
    def posted(cls, kind: policies.Kind, post: QueryDict) -> Written:
        """What was sent. Whoever sends no ``way`` sends YAML."""
        texts = {name: str(post.get(name, ""))[: policy_form.MAX_CHARACTERS] for name in post if name in _FORM_NAMES}
        return cls(kind, "form" if post.get("way") == "form" else "yaml", texts, post.get("spec", ""))

    def document(self) -> dict[str, Any]:
        """The document, compiled.

        Raises:
            Invalid: it cannot run.
        """
        return policy_text.fill(self.texts, self.kind) if self.way == "form" else policy_text.parse(self.yaml, self.kind)

    def refused(self, refusal: Refusal) -> Written:
        """With what is wrong, each by its field."""
        return replace(self, problems=((refusal.field or "", refusal.message), *refusal.others))

    def turned(self, way: str) -> Written:
        """The same document the other way; where YAML cannot be read it stays, with what is wrong."""
        if way == self.way:
            return self
        if way == "yaml":
            return replace(self, way=way, yaml=policy_text.write(policy_form.document(self.kind, self.texts)))
        try:
            return replace(self, way=way, texts=policy_form.values(self.kind, policy_text.parse(self.yaml, self.kind)))
        except Invalid as refusal:
            return self.refused(refusal)

    def shown(self) -> dict[str, Any]:
        """For the templates."""
        wrong = {field.removeprefix("spec."): message for field, message in self.problems}
        named = self.texts.get("policy", "ettft")
        rows = [(field, self.texts.get(field.name, ""), wrong.get(field.name, "")) for field in policy_form.form_fields(self.kind, named)]
        return {"written": self, "rows": rows, "policy_name": named, "policy_names": policy_form.POLICIES, "problems": self.problems}


_FORM_NAMES = frozenset({"policy", *policy_form.ROUTING_DEFAULTS, *policy_form.SLO_DEFAULTS, *(f"weights.{name}" for name in SCORERS)})
_TURNS = {"yaml": "yaml", "form": "form", "fields": "form"}  # a button that stores nothing -> how the form comes back


class PolicyForm(PolicyPages):
    """Base of the form, as fields or as YAML, with the same document in both."""

    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def form(self, written: Written, *, policy: Policy | None, name: str = "", activate: bool = False, status: int = 200) -> HttpResponse:
        uses = reads.uses(self.tenant_id, policy) if policy is not None else []
        wrong_name = next((message for field, message in written.problems if field == "name"), "")
        context = {"kind": written.kind, "policy": policy, "name": name, "wrong_name": wrong_name, "activate": activate, "uses": uses}
        return self.page("console/policy_edit.html", {**context, **written.shown()}, status=status)


class NewPolicy(PolicyForm):
    """A policy with its version 1."""

    def get(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        return self.form(Written.of(kind, _FIRST[kind], _way(request)), policy=None)

    def post(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        name, written = request.POST.get("name", ""), Written.posted(kind, request.POST)
        if (turn := _TURNS.get(request.POST.get("do", ""))) is not None:
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
        return self.form(Written.of(cast(policies.Kind, policy.kind), policies.latest(policy).spec, _way(request)), policy=policy)

    def post(self, request: HttpRequest, policy_id: UUID) -> HttpResponse:
        policy = self.policy(policy_id)
        kind, activate = cast(policies.Kind, policy.kind), request.POST.get("activate") == "on"
        written = Written.posted(kind, request.POST)
        if (turn := _TURNS.get(request.POST.get("do", ""))) is not None:
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


def _way(request: HttpRequest) -> str:
    return "yaml" if request.GET.get("way") == "yaml" else "form"


class CheckPolicy(PolicyPages):
    """What is typed so far, compiled: a fragment that says whether routers would take it. Stores nothing."""

    needs = {"GET": Permission.READ, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:  # noqa: ARG002 - the port of a view
        """The fragment before anything is typed."""
        return self.page("console/_policy_checked.html", {})

    def post(self, request: HttpRequest, kind: policies.Kind) -> HttpResponse:
        written = Written.posted(kind, request.POST)
        try:
            written.document()
        except Invalid as refusal:
            written = written.refused(refusal)
        return self.page("console/_policy_checked.html", {"checked": True, "problems": written.problems})


class ActivateVersion(PolicyPages):
    """Move endpoints to a version, a newer or an older one: GET asks which, with what changes for routers; POST does it."""

    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, policy_id: UUID, version: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        policy, to = self._version(policy_id, version)
        running = [use for use in reads.uses(self.tenant_id, policy) if use.how == "runs"]
        specs = {one.version: one.spec for one in reads.versions(self.tenant_id, policy)}
        kind = cast(policies.Kind, policy.kind)
        moves = [(use, policies.diff(kind, specs[use.version], to.spec)) for use in running if use.version != to.version and use.version in specs]
        return self.page("console/policy_activate.html", {"policy": policy, "to": to, "moves": moves, "running": running})

    def post(self, request: HttpRequest, policy_id: UUID, version: str) -> HttpResponse:
        policy, to = self._version(policy_id, version)
        chosen = set(request.POST.getlist("endpoint"))
        wanted = {"routing_policy" if policy.kind == "routing" else "slo": {"name": policy.name, "version": to.version}}
        moved = []
        for use in reads.uses(self.tenant_id, policy):
            if use.how == "runs" and str(use.endpoint.id) in chosen:
                fields = cast(endpoints.EndpointFields, wanted)
                moved.append(endpoints.update(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=use.endpoint.id, **fields).name)
        if not moved:
            raise Invalid("Choose at least one endpoint that uses this policy.", field="endpoint")
        messages.success(request, f"{', '.join(moved)} run{'s' if len(moved) == 1 else ''} {policy.name} v{to.version}.")
        return HttpResponseRedirect(reverse("console:policy", args=[self.caller.seat.slug, policy.id]))

    def _version(self, policy_id: UUID, version: str) -> tuple[Policy, PolicyVersion]:
        policy = self.policy(policy_id)
        found = PolicyVersion.objects.filter(tenant_id=self.tenant_id, policy=policy, version=_number(version)).first()
        if found is None:
            raise NotFound
        return policy, found
