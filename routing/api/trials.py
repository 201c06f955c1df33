"""Trials of candidate policies on an endpoint, and the ways on and back."""

from __future__ import annotations

import msgspec
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import rows, shapes, trial_shapes
from routing.models import Endpoint
from routing.services import dry_run, trials
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.schema import changed
from tenants.core.roles import Permission
from tenants.models import Tenant


class TrialView(TenantView):
    """Base of what is done with an endpoint's trial."""

    def whole(self, endpoint: Endpoint) -> bool:
        """Whether the caller may read the load of the endpoint's pool."""
        return trials.may_read_load(self.tenant_id, endpoint, platform=self.may(Permission.PLATFORM))

    def shown(self, endpoint: Endpoint) -> trial_shapes.TrialOut:
        """The trial as answered, with its report."""
        found = trials.report(tenant_id=self.tenant_id, endpoint=endpoint, whole=self.whole(endpoint), now=timezone.now())
        version = Tenant.objects.values_list("config_version", flat=True).get(id=self.tenant_id)
        return trial_shapes.TrialOut(
            endpoint=endpoint.name,
            endpoint_id=endpoint.id,
            live=rows.use(endpoint.routing_policy),
            candidate=rows.use(endpoint.candidate_policy) if endpoint.candidate_policy else None,
            share=endpoint.canary_share,
            since=endpoint.trial_since,
            back_to=rows.use(endpoint.previous_policy) if endpoint.previous_policy else None,
            applied=queries.routers(self.tenant_id, version).summary,
            report=None if found is None else msgspec.convert(found, trial_shapes.ReportOut, from_attributes=True),
        )


class EndpointTrial(TrialView):
    """The candidate policy of an endpoint."""

    permissions = {"GET": Permission.READ, "PUT": Permission.OPERATE, "DELETE": Permission.OPERATE}

    @describe("endpoints_trial", "Read an endpoint's trial and its report", answers=trial_shapes.TrialOut, tag="policies")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """From the newest 5,000 decisions of the last 24 hours at most. Without a trial: what is live, and what a roll-back would return to."""
        return self.answer(self.shown(queries.endpoint(self.tenant_id, reference)))

    @describe("endpoints_try", "Try a policy on an endpoint", body=trial_shapes.TrialWanted, answers=changed(trial_shapes.TrialOut), tag="policies")
    def put(self, request: Request, reference: str) -> Response:
        """In the shadow with share 0, else placing that share of the endpoint's prompts. The same again changes nothing."""
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        wanted = parse(request, trial_shapes.TrialWanted)
        row = trials.start(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, policy=wanted.policy, share=wanted.share)
        return self.changed(self.shown(row))

    @describe("endpoints_end_trial", "End an endpoint's trial", answers=changed(trial_shapes.TrialOut), tag="policies")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """The live policy decides alone again. Without a trial nothing changes."""
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        return self.changed(self.shown(trials.end(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id)))


class EndpointPromote(TrialView):
    """The candidate becomes the live policy."""

    permissions = {"POST": Permission.OPERATE}

    @describe(
        "endpoints_promote",
        "Promote the policy that is tried on an endpoint",
        body=trial_shapes.Promotion,
        answers=changed(trial_shapes.TrialOut),
        tag="policies",
    )
    def post(self, request: Request, reference: str) -> Response:
        """What was live is what a roll-back returns to."""
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        wanted = parse(request, trial_shapes.Promotion)
        row = trials.promote(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, version=wanted.version, reason=wanted.reason)
        return self.changed(self.shown(row))


class EndpointRollback(TrialView):
    """The way back."""

    permissions = {"POST": Permission.OPERATE}

    @describe(
        "endpoints_rollback",
        "Roll back an endpoint's routing policy",
        body=shapes.ReasonMaybe,
        answers=changed(trial_shapes.TrialOut),
        tag="policies",
    )
    def post(self, request: Request, reference: str) -> Response:
        """A running trial ends; else the routing policy before the present one decides again. Safe to repeat: a second call changes nothing."""
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        reason = parse(request, shapes.ReasonMaybe).reason
        return self.changed(self.shown(trials.roll_back(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, reason=reason)))


class EndpointDryRun(TrialView):
    """A policy against the past."""

    permissions = {"POST": Permission.READ}

    @describe(
        "endpoints_dry_run",
        "Hold a policy against an endpoint's past decisions",
        body=trial_shapes.DryRunWanted,
        answers=trial_shapes.DryRunOut,
        tag="policies",
    )
    def post(self, request: Request, reference: str) -> Response:
        """From the newest 2,000 decisions with their candidates of the last 7 days at most, one step ahead. Stores nothing."""
        endpoint = queries.endpoint(self.tenant_id, reference)
        wanted = parse(request, trial_shapes.DryRunWanted).policy
        policy = dry_run.version_or_document(tenant_id=self.tenant_id, endpoint=endpoint, wanted=wanted, field="policy")
        found = dry_run.run(
            tenant_id=self.tenant_id,
            endpoint=endpoint,
            policy=policy,
            whole=self.whole(endpoint),
            own_replica_ids=None if self.may(Permission.PLATFORM) else queries.own_replica_ids(self.tenant_id),
            now=timezone.now(),
        )
        return self.answer(msgspec.convert(found, trial_shapes.DryRunOut, from_attributes=True))
