"""Writing a policy for one endpoint: held against its past, tried beside what runs, or activated, all from one form."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.reads import policies as reads
from console.views.trials import TrialPage, share_of
from console.written import TURNS, Written, way_of
from routing import queries
from routing.models import Endpoint, PolicyVersion
from routing.services import dry_run, endpoints, policies, trials
from tenants.core.errors import Conflict, Invalid, LimitReached


class WritePolicy(TrialPage):
    """The form begins with the document that runs, or with the version ``?policy=``. ``dry`` stores nothing, ``try`` stores a version and begins a
    trial of it, ``activate`` stores it and lets it place every prompt."""

    def get(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        endpoint = self.endpoint(endpoint_id)
        base = reads.routing_version(self.tenant_id, request.GET.get("policy", "")) or endpoint.routing_policy
        return self._form(endpoint, Written.of("routing", base.spec, way_of(request)), name=base.policy.name, percent="0")

    def post(self, request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
        endpoint, written, do = self.endpoint(endpoint_id), Written.posted("routing", request.POST), request.POST.get("do", "")
        name, percent = request.POST.get("name", ""), request.POST.get("percent", "")
        if do in TURNS:
            return self._form(endpoint, written.turned(TURNS[do]), name=name, percent=percent)
        try:
            spec = written.document()
            if do not in ("try", "activate"):
                return self._form(endpoint, written, name=name, percent=percent, found=self._dry_run(endpoint, spec))
            with transaction.atomic():
                version = self._store(endpoint, name.strip(), spec, None if do == "activate" else share_of(percent))
        except (Invalid, Conflict, LimitReached) as refusal:
            # A dry run changes nothing, so what is wrong with the document is its answer, and no refusal.
            return self._form(
                endpoint, written.refused(refusal), name=name, percent=percent, status=refusal.http_status if do in ("try", "activate") else 200
            )
        said = f"{version.policy.name} v{version.version}"
        told = f"{endpoint.name} runs {said} for every prompt." if do == "activate" else f"{said} is tried on {endpoint.name}."
        return self.back(endpoint_id, told)

    def _store(self, endpoint: Endpoint, name: str, spec: dict[str, Any], share: float | None) -> PolicyVersion:
        """Store a version; ``share`` None activates it, else it is tried. One transaction: what cannot be tried is not stored either."""
        version = policies.store(tenant_id=self.tenant_id, actor=self.actor, kind="routing", name=name, spec=spec)
        wanted = {"name": name, "version": version.version}
        if share is None:
            endpoints.update(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint.id, routing_policy=wanted)
        else:
            trials.start(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint.id, policy=wanted, share=share)
        return version

    def _dry_run(self, endpoint: Endpoint, spec: dict[str, Any]) -> dry_run.DryRun:
        policy = dry_run.version_or_document(tenant_id=self.tenant_id, endpoint=endpoint, wanted=spec, field="spec")
        own = None if self.caller.seat.platform else queries.own_replica_ids(self.tenant_id)
        return dry_run.run(
            tenant_id=self.tenant_id, endpoint=endpoint, policy=policy, whole=self.whole(endpoint), own_replica_ids=own, now=timezone.now()
        )

    def _form(
        self, endpoint: Endpoint, written: Written, *, name: str, percent: str, found: dry_run.DryRun | None = None, status: int = 200
    ) -> HttpResponse:
        context = {
            "endpoint": endpoint,
            "name": name,
            "percent": percent,
            "found": found,
            "asked_dry": self.request.POST.get("do") == "dry",
            "against": endpoint.routing_policy,
            "wrong_name": written.wrong("name"),
            "wrong_share": written.wrong("share"),
        }
        return self.page("console/trial_write.html", {**context, **written.shown()}, status=status)
