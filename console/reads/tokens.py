"""What keeps prompts of an endpoint from having the engine's tokens: what reconciliation would find, as routers say it at this moment."""

from __future__ import annotations

from uuid import UUID

from routing import queries
from routing.core import reconcile
from routing.core.findings import Finding
from routing.models import Endpoint, Replica
from routing.services.reconciliation import facts, reports

MAX_NAMED = 1000


def lacking(tenant_id: UUID, endpoint: Endpoint, said: queries.Routers, *, pool: str) -> tuple[Finding, ...]:
    """By finding; none where nothing is known either. Of a granted pool, whose name is ``pool``, no engine is named."""
    own = Replica.objects.filter(tenant_id=tenant_id, pool_id=endpoint.grant.pool_id).values_list("id", "name")[:MAX_NAMED]
    labels = {replica_id: f"{pool}/{name}" for replica_id, name in own}
    words = [reports.word(router.router_id, router.report) for router in said.routers]
    return reconcile.of_tokens(facts.endpoint(endpoint, pool=pool, own=bool(labels)), labels, words)
