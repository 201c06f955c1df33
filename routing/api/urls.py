"""URLs of the control API: this app's resources, those of the apps below, and the description of them all.

``reference`` is an id, or a name that is unique in the tenant; names may hold slashes, so actions stand before the items they act on.
"""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

from namespaces.api.urls import urlpatterns as namespace_urls
from routing.api import (
    alerts,
    audits,
    captures,
    catalogue,
    causes,
    decisions,
    endpoints,
    full_records,
    identity,
    policies,
    pools,
    quotas,
    reconciliation,
    replica_checks,
    traces,
    trials,
    usage,
)
from tenants.api.base import ApiView, both
from tenants.api.urls import urlpatterns as tenant_urls
from tenants.core.errors import NotFound


class NothingHere(ApiView):
    """Any other path: the answer for what is absent, in the shape of this API."""

    schema = None

    def _absent(self, request: Request, rest: str) -> Response:  # noqa: ARG002 - DRF's signature
        raise NotFound

    get = post = put = patch = delete = _absent


def _policies(route: str, views: policies.PolicyViews) -> list[URLPattern]:
    return [
        *both(route, views.collection, route),
        *both(f"{route}/<path:reference>/versions", views.versions, f"{route}-versions"),
        *both(f"{route}/<path:reference>/diff", views.difference, f"{route}-diff"),
        *both(f"{route}/<path:reference>", views.item, f"{route}-item"),
    ]


_resources: list[URLPattern | URLResolver] = [
    *tenant_urls,
    *namespace_urls,
    *both("artifacts", catalogue.ArtifactCollection, "artifacts"),
    *both("artifacts/<str:reference>", catalogue.ArtifactItem, "artifact"),
    *both("models", catalogue.ModelCollection, "models"),
    *both("models/<path:reference>", catalogue.ModelItem, "model"),
    *both("adapters", catalogue.AdapterCollection, "adapters"),
    *both("adapters/<path:reference>/reload", catalogue.AdapterReload, "adapter-reload"),
    *both("adapters/<path:reference>", catalogue.AdapterItem, "adapter"),
    *both("pools", pools.PoolCollection, "pools"),
    *both("pools/<path:reference>/grants", pools.GrantCollection, "pool-grants"),
    *both("pools/<path:reference>/grants/<slug:slug>", pools.GrantItem, "pool-grant"),
    *both("pools/<path:reference>", pools.PoolItem, "pool"),
    *both("replica-checks", replica_checks.ReplicaCheckCollection, "replica-checks"),
    *both("replica-checks/<str:reference>/add", replica_checks.ReplicaCheckAdd, "replica-check-add"),
    *both("replica-checks/<str:reference>", replica_checks.ReplicaCheckItem, "replica-check"),
    *both("replicas", pools.ReplicaCollection, "replicas"),
    *both("replicas/<path:reference>/drain", pools.ReplicaDrain, "replica-drain"),
    *both("replicas/<path:reference>/pause", pools.ReplicaPause, "replica-pause"),
    *both("replicas/<path:reference>/resume", pools.ReplicaResume, "replica-resume"),
    *both("replicas/<path:reference>/repaired", audits.ReplicaRepaired, "replica-repaired"),
    *both("replicas/<path:reference>", pools.ReplicaItem, "replica"),
    *both("endpoints", endpoints.EndpointCollection, "endpoints"),
    *both("endpoints/<path:reference>/explain", full_records.EndpointExplain, "endpoint-explain"),
    *both("endpoints/<path:reference>/capture/export", captures.EndpointCaptureExport, "endpoint-capture-export"),
    *both("endpoints/<path:reference>/capture/stop", captures.EndpointCaptureStop, "endpoint-capture-stop"),
    *both("endpoints/<path:reference>/capture", captures.EndpointCapture, "endpoint-capture"),
    *both("endpoints/<path:reference>/slo", alerts.EndpointSloView, "endpoint-slo"),
    *both("endpoints/<path:reference>/rotate-epoch", endpoints.EndpointRotateEpoch, "endpoint-rotate-epoch"),
    *both("endpoints/<path:reference>/trial/promote", trials.EndpointPromote, "endpoint-promote"),
    *both("endpoints/<path:reference>/trial", trials.EndpointTrial, "endpoint-trial"),
    *both("endpoints/<path:reference>/rollback", trials.EndpointRollback, "endpoint-rollback"),
    *both("endpoints/<path:reference>/dry-run", trials.EndpointDryRun, "endpoint-dry-run"),
    *both("endpoints/<path:reference>", endpoints.EndpointItem, "endpoint"),
    *_policies("routing-policies", policies.ROUTING),
    *_policies("slo-policies", policies.SLO),
    *both("causes", causes.CauseCollection, "causes"),
    *both("decisions", decisions.DecisionCollection, "decisions"),
    *both("decisions/<str:reference>", decisions.DecisionItem, "decision"),
    *both("records", usage.RecordsView, "records"),
    *both("quotas", quotas.QuotaCollection, "quotas"),
    *both("quotas/<path:reference>", quotas.QuotaItem, "quota"),
    *both("usage", usage.UsageCollection, "usage"),
    *both("usage/export", usage.UsageExport, "usage-export"),
    *both("alerts", alerts.AlertCollection, "alerts"),
    *both("alerts/<str:reference>", alerts.AlertItem, "alert"),
    *both("webhooks", alerts.WebhookCollection, "webhooks"),
    *both("webhooks/<str:reference>/rotate-secret", alerts.WebhookRotate, "webhook-rotate"),
    *both("webhooks/<str:reference>/test", alerts.WebhookTest, "webhook-test"),
    *both("webhooks/<str:reference>/deliveries", alerts.WebhookDeliveries, "webhook-deliveries"),
    *both("webhooks/<str:reference>", alerts.WebhookItem, "webhook"),
    *both("audits", audits.AuditCollection, "audits"),
    *both("audits/<str:reference>/export", audits.AuditExport, "audit-export"),
    *both("audits/<str:reference>", audits.AuditItem, "audit"),
    *both("evidence-key", audits.EvidenceKeyView, "evidence-key"),
    *both("namespaces/explain", identity.NamespaceExplain, "namespace-explain"),
    *both("identity-events", identity.IdentityEvents, "identity-events"),
    *both("reconciliation", reconciliation.ReconciliationView, "reconciliation"),
    *both("reconciliation/runs", reconciliation.ReconciliationRuns, "reconciliation-runs"),
    *both("reconciliation/findings", reconciliation.ReconciliationFindings, "reconciliation-findings"),
    *both("reconciliation/findings/<str:reference>", reconciliation.ReconciliationFindingItem, "reconciliation-finding"),
    *both("trace-files", traces.TraceFileCollection, "trace-files"),
    *both("trace-files/<path:reference>", traces.TraceFileItem, "trace-file"),
    *both("trace-jobs", traces.TraceJobCollection, "trace-jobs"),
    *both("trace-jobs/analyze", traces.TraceAnalyses, "trace-jobs-analyze"),
    *both("trace-jobs/replay", traces.TraceReplays, "trace-jobs-replay"),
    *both("trace-jobs/review", traces.TraceReviews, "trace-jobs-review"),
    *both("trace-jobs/<str:reference>/cancel", traces.TraceJobCancel, "trace-job-cancel"),
    *both("trace-jobs/<str:reference>/result", traces.TraceJobResult, "trace-job-result"),
    *both("trace-jobs/<str:reference>/report", traces.TraceJobReport, "trace-job-report"),
    *both("trace-jobs/<str:reference>", traces.TraceJobItem, "trace-job"),
    *both("routers", decisions.RoutersView, "routers"),
    *both("status", decisions.StatusView, "status"),
    re_path(r"^(?P<rest>.*)$", NothingHere.as_view(schema=None)),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(_resources)),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("schema", SpectacularAPIView.as_view(schema=None)),
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    path("docs", SpectacularSwaggerSplitView.as_view(url_name="schema")),
]
