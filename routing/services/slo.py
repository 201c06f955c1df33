"""What an SLO policy refers to, checked where an endpoint takes it up; and how endpoints keep their objectives, by minutes.

Minutes are counted from decision records by the worker, again and again for the last quarter of an hour, since records arrive late; what windows and
alerts are made of is these minutes, so that no question reads more records than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Q, Sum, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, TruncMinute

from routing import queries
from routing.core import burn
from routing.core.policy import PolicyError, SloPolicy, compile_slo
from routing.models import DecisionRow, Endpoint, PolicyVersion, SloMinute
from tenants.core.errors import Invalid, NotFound
from tenants.scoping import require_scope

LATE = timedelta(minutes=15)  # how long after it began a request may reach the database and still count
KEPT = timedelta(hours=7)
STATEMENT_MS = 5000
_FAILED = Q(outcome__in=("refused", "upstream_error", "timeout", "incomplete"))


# ---- references --------------------------------------------------------------------------------------------------------


def check(tenant_id: UUID, endpoint: Endpoint, *, field: str = "slo") -> None:
    """Refuse an endpoint whose policy spills to what the tenant does not have, or to where it could not be served.

    Raises:
        Invalid: on ``slo.spill_pool`` or ``slo.spill_model``.
    """
    policy = compiled(endpoint.slo_policy)
    if policy is None or policy.overload != "spill":
        return
    if policy.spill_pool is not None:
        _check_pool(tenant_id, endpoint, policy.spill_pool, f"{field}.spill_pool")
    if policy.spill_model is not None:
        if policy.spill_model == endpoint.name:
            raise Invalid("An endpoint cannot spill to itself.", field=f"{field}.spill_model")
        if not Endpoint.objects.filter(tenant_id=tenant_id, name=policy.spill_model).exists():
            raise Invalid("This tenant has no endpoint of this name.", field=f"{field}.spill_model")


def _check_pool(tenant_id: UUID, endpoint: Endpoint, name: str, field: str) -> None:
    try:
        pool = queries.usable_pool(tenant_id, name)
    except NotFound:
        raise Invalid("This tenant has no pool of this name, and none is granted to it.", field=field) from None
    if pool.id == endpoint.grant.pool_id:
        raise Invalid("An endpoint cannot spill to the pool that it sits on.", field=field)
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT engine FROM saltroute_granted_replicas(%s) WHERE pool_id = %s", [tenant_id, pool.id])
        families = {row[0] for row in cursor.fetchall()}
    if families and endpoint.engine not in families:
        raise Invalid(f"No engine of this pool is of the family {endpoint.engine}, which the endpoint's cache identity names.", field=field)


def check_users(tenant_id: UUID, version: PolicyVersion) -> None:
    """As :func:`check`, for every endpoint that uses this version; the field is one of the document's."""
    rows = Endpoint.objects.filter(tenant_id=tenant_id, slo_policy=version).select_related("grant", "slo_policy")
    for endpoint in rows:
        check(tenant_id, endpoint, field="spec")


def spilling_to(tenant_id: UUID, *, pool_id: UUID | None = None, model: str | None = None) -> Endpoint | None:
    """An endpoint that spills to a pool, or to an endpoint's name; None if there is none. In the tenant's scope."""
    rows = Endpoint.objects.filter(tenant_id=tenant_id, slo_policy__spec__overload="spill").select_related("slo_policy")
    for endpoint in rows:
        policy = compiled(endpoint.slo_policy)
        if policy is None:
            continue
        if model is not None and policy.spill_model == model:
            return endpoint
        if pool_id is not None and spill_pool_id(tenant_id, policy) == pool_id:
            return endpoint
    return None


def compiled(version: PolicyVersion | None) -> SloPolicy | None:
    """The policy of a stored version; None for none, and for one that an older release accepted and this one refuses."""
    try:
        return None if version is None else compile_slo(version.spec)
    except PolicyError:
        return None


def spill_pool_id(tenant_id: UUID, policy: SloPolicy | None, pools: list[queries.UsablePool] | None = None) -> UUID | None:
    """The pool that a policy's ``spill_pool`` names among those that the tenant may use now, its own first."""
    if policy is None or policy.spill_pool is None:
        return None
    usable = queries.usable_pools(tenant_id) if pools is None else pools
    return next((pool.id for pool in usable if policy.spill_pool in (pool.name, str(pool.id))), None)


# ---- minutes -----------------------------------------------------------------------------------------------------------


def count(tenant_id: UUID, now: datetime) -> int:
    """Count the last quarter of an hour again for every endpoint with objectives, and forget old minutes. Repeats change nothing.

    Returns:
        How many minutes were written.
    """
    require_scope(tenant_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(STATEMENT_MS)])
    rows = [row for endpoint in _with_objectives(tenant_id) for row in _minutes(tenant_id, endpoint, now)]
    SloMinute.objects.bulk_create(
        rows,
        batch_size=1000,
        update_conflicts=True,
        unique_fields=["tenant", "endpoint_id", "objective", "minute"],
        update_fields=["total", "bad"],
    )
    SloMinute.objects.filter(tenant_id=tenant_id, minute__lt=now - KEPT).delete()
    return len(rows)


def _with_objectives(tenant_id: UUID) -> list[Endpoint]:
    rows = Endpoint.objects.filter(tenant_id=tenant_id, slo_policy__isnull=False).select_related("slo_policy").order_by("name")
    return [row for row in rows if (policy := compiled(row.slo_policy)) is not None and policy.objectives]


def _minutes(tenant_id: UUID, endpoint: Endpoint, now: datetime) -> list[SloMinute]:
    policy = compiled(endpoint.slo_policy)
    objectives = () if policy is None else policy.objectives
    counts: dict[str, Any] = {}
    for name, _, target_s in objectives:
        bad, all_of_them = _misses(name, target_s)
        counts |= {f"{name}_bad": Count("id", filter=bad), f"{name}_total": Count("id", filter=all_of_them)}
    since = (now - LATE).replace(second=0, microsecond=0)
    rows = DecisionRow.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint.id, started_at__gte=since, started_at__lte=now)
    rows = rows.filter(key_id__isnull=False)  # an audit's probes promise nothing to anybody
    # What the tenant has no quota for is no failure of the service. A record without a code must not drop out with NULL.
    code = Coalesce(KeyTextTransform("error_code", "record"), Value(""), output_field=TextField())
    rows = rows.annotate(code=code).exclude(status=429, code__startswith="quota_")
    found: Any = rows.order_by().annotate(at=TruncMinute("started_at")).values("at").annotate(**counts)
    return [
        SloMinute(tenant_id=tenant_id, endpoint_id=endpoint.id, objective=name, minute=row["at"], total=row[f"{name}_total"], bad=row[f"{name}_bad"])
        for row in found
        for name, _, _ in objectives
        if row[f"{name}_total"]
    ]


def _misses(objective: str, target_s: float) -> tuple[Q, Q]:
    """What missed an objective, and what counts for it. Who is refused got no first token in time, whatever it was for: no other objective would tell
    that nobody is served. A client's own error counts for nothing; a client that left counts where it had waited longer
    than the target already. Only streams have a first token; other answers count for the whole answer alone."""
    if objective.startswith("ttft"):
        left = Q(outcome="client_cancelled", ttft_s__isnull=True, e2e_s__gt=target_s)
        bad = _FAILED | left | Q(ttft_s__gt=target_s)
        return bad, bad | Q(ttft_s__isnull=False)
    bad = _FAILED | Q(outcome__in=("ok", "client_cancelled"), e2e_s__gt=target_s)
    return bad, bad | Q(outcome="ok")


# ---- windows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """How one objective of one endpoint stands: (requests, misses) and burn rate by window, in seconds."""

    endpoint: Endpoint
    objective: str
    share: float  # of requests that must meet it
    target_s: float
    windows: dict[int, burn.Counts]

    @property
    def burns(self) -> dict[int, float | None]:
        """Burn rate by window; None where nothing was asked for."""
        return {seconds: burn.rate(counts, self.share) for seconds, counts in self.windows.items()}


def standings(tenant_id: UUID, now: datetime, *, endpoint_id: UUID | None = None) -> list[Standing]:
    """Every objective of every endpoint (or of one), by endpoint's name; in one question, of at most six hours of minutes."""
    require_scope(tenant_id)
    endpoints = [row for row in _with_objectives(tenant_id) if endpoint_id in (None, row.id)]
    sums: dict[str, Any] = {}
    for seconds in burn.WINDOWS_S:
        inside = Q(minute__gt=now - timedelta(seconds=seconds))
        sums |= {f"total_{seconds}": Sum("total", filter=inside, default=0), f"bad_{seconds}": Sum("bad", filter=inside, default=0)}
    rows = SloMinute.objects.filter(tenant_id=tenant_id, endpoint_id__in=[row.id for row in endpoints], minute__gt=now - timedelta(hours=6))
    found: dict[tuple[UUID, str], Any] = {
        (row["endpoint_id"], row["objective"]): row for row in rows.order_by().values("endpoint_id", "objective").annotate(**sums)
    }
    standing = []
    for endpoint in endpoints:
        policy = compiled(endpoint.slo_policy)
        for name, share, target_s in () if policy is None else policy.objectives:
            row: dict[str, Any] = found.get((endpoint.id, name), {})
            windows = {one: burn.Counts(row.get(f"total_{one}", 0), row.get(f"bad_{one}", 0)) for one in burn.WINDOWS_S}
            standing.append(Standing(endpoint, name, share, target_s, windows))
    return standing
