"""One replica of the tenant's own pools: state, what routers learned of it, what it did over a range, what audits and reconciliation found."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import plots
from console.access import TenantPage
from console.plots import Line, Plot
from console.reads import happened, measured, routers, served, traffic
from routing import queries
from routing.models import AuditRun, ReconciliationFinding
from routing.services import measures
from routing.services.reconciliation import reading

SHOWN_RUNS = 5
SHOWN_FINDINGS = 10


class ReplicaPage(TenantPage):
    """One replica. Those of granted pools are the platform's, and absent here."""

    tab = "pools"

    def get(self, request: HttpRequest, replica_id: UUID) -> HttpResponse:
        replica = queries.replica(self.tenant_id, str(replica_id))
        now = timezone.now()
        span = traffic.range_named(request.GET.get("range"))
        found = measured.series(self.tenant_id, replica.id, span=span, now=now)
        marks = happened.markers(self.tenant_id, since=found.since, until=now, replica_id=replica.id)
        drawn = _plots(found)
        said = routers.status(self.tenant_id)
        runs = AuditRun.objects.filter(tenant_id=self.tenant_id, replica_id=replica.id).order_by("-created_at", "-id")
        findings = ReconciliationFinding.objects.filter(tenant_id=self.tenant_id, subject_kind="replica", subject_id=str(replica.id))
        engine = measures.surest(found.whole)
        context: dict[str, Any] = {
            "replica": replica,
            "ranges": traffic.RANGES,
            "span": span,
            "missing": served.missing(self.tenant_id, said, [replica]).get(replica.id, ()),
            "load": routers.loads(said).get(replica.url),
            "reports": routers.calibrations(said, replica.url),
            "routers_reachable": said.reachable,
            "busy_share": measures.busy_share(found.whole),
            "engine": engine,
            "found": found,
            "steps": [(start, step, measures.busy_share(step), measures.surest(step)) for start, step in zip(found.starts, found.steps, strict=True)],
            "plots": drawn,
            "markers": marks,
            "document": plots.document(found.starts, drawn, marks),
            "runs": runs.defer("evidence", "cases")[:SHOWN_RUNS],
            "findings": [(reading.title(one.kind), one) for one in findings.order_by("-last_seen_at", "-id")[:SHOWN_FINDINGS]],
        }
        return self.page("console/replica.html", context)


def _plots(found: measured.Series) -> list[Plot]:
    engine = [measures.surest(step) for step in found.steps]
    requests = [
        sum(one.request_us for one in step.values()) / max(one.observed_us for one in step.values()) if step else None for step in found.steps
    ]
    none = "No router observed it in this range."
    without_events = "Its KV events were not read in this range."
    return [
        Plot(
            "load",
            "Utilisation and KV cache",
            "share of time with work; share of the cache in use",
            "share",
            none,
            [Line("utilisation", [measures.busy_share(step) for step in found.steps]), Line("KV cache used", [one.kv_used for one in engine])],
        ),
        Plot("requests", "Requests in flight", "on average, of all routers", "rate", none, [Line("in flight", requests)]),
        Plot(
            "evicted",
            "Evicted blocks",
            "a second, by its KV events",
            "rate",
            without_events,
            [Line("evicted", [one.evicted_per_s for one in engine])],
        ),
        Plot(
            "blocks",
            "Resident blocks",
            "by its KV events; distinct: its share, where others hold a block too",
            "number",
            without_events,
            [
                Line("resident", [one.resident for one in engine]),
                Line("distinct", [one.distinct_blocks / one.block_samples if one.block_samples else None for one in engine]),
            ],
        ),
    ]
