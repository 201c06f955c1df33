"""Which audits are due, and which alarms ask for one. Orders are made here; the worker of the queue ``audit`` carries them out.

A replica of an audited pool is tried when it is new, when its build changed, when it was restarted (flags may have changed, which no build tells),
when the epochs of an endpoint on it changed, after an audit that could not be completed, on an alarm, and every 24 hours. A plan makes at most one
order in ``BETWEEN_S``, and all stay within the day's tokens; where these did not do the engine rests for ``REFUSED_S``, else each plan would leave
one more refused row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from namespaces.audit.states import BETWEEN_CLEAN_S, Event, State
from routing import queries
from routing.models import AuditRun, DecisionRow, Replica
from routing.services import isolation, pools
from routing.services.audits import orders, targets
from routing.services.audits.targets import Target
from routing.services.audits.wake import on_commit
from tenants.actor import system
from tenants.core.errors import NotFound
from tenants.queries import all_tenants
from tenants.scoping import tenant_scope

DAILY_S = 24 * 3600.0
BETWEEN_S = BETWEEN_CLEAN_S
ALARM_S = 120.0  # how far back alarms are looked for; the plan runs several times in that
RESEND_S = 60.0
_KEEP_BACK_MORE: dict[str | None, tuple[str, ...]] = {None: (), "restart": ("epoch",)}  # whose refusals say nothing of this reason; None: an epoch
REFUSED_S = 3600.0  # after an order that the day's tokens did not do for; midnight ends it too
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """An engine that wants an audit, by one of its rows."""

    owner_id: UUID
    replica_id: UUID
    pool_id: UUID
    trigger: str | None  # None: only if the epochs of an endpoint changed


def plan(now: datetime) -> list[tuple[UUID, UUID]]:
    """Order what is due, in all tenants, and send again what was ordered and never began. Returns (tenant, run) of the new orders."""
    made: list[tuple[UUID, UUID]] = []
    for ref in all_tenants():
        _resend(ref.tenant_id, now)
        made += alarms(ref.tenant_id, now)
        for due in _due(ref.tenant_id, now):
            made += order_due(due, now)
    return made


def _due(owner_id: UUID, now: datetime) -> list[Due]:
    """The owner's engines, one row for each address; what became stale is said on the way."""
    found: list[Due] = []
    with tenant_scope(owner_id):
        rows = Replica.objects.filter(tenant_id=owner_id, pool__isolation="audited").exclude(state="paused").order_by("url", "id")
        seen: set[str] = set()
        for row in rows:
            if row.url in seen:
                continue
            seen.add(row.url)
            if row.isolation_state == State.ISOLATED:
                isolation.apply(tenant_id=owner_id, actor=system("audit"), replica_id=row.id, event=Event.TICK, now=now)
            if not _resting(row, now):
                found.append(Due(owner_id, row.id, row.pool_id, trigger_of(row, now)))
    return [due for due in found if due.trigger != "none"]


def _resting(row: Replica, now: datetime) -> bool:
    busy = row.audit_busy_until is not None and row.audit_busy_until > now
    return busy or (row.audit_at is not None and (now - row.audit_at).total_seconds() < BETWEEN_S)


def trigger_of(row: Replica, now: datetime) -> str | None:
    """Why the engine is due by itself; None where only its endpoints could ask, "none" where nobody may."""
    if row.isolation_state == State.QUARANTINED:
        if row.isolation_repaired_at is None:
            return "none"
        return "retry" if row.isolation_clean_at is None or (now - row.isolation_clean_at).total_seconds() >= BETWEEN_CLEAN_S else "none"
    if row.audit_at is None:
        return "first"
    if row.isolation_state in (State.UNVERIFIED, State.SUSPECT):
        return "retry"
    verified = row.isolation_verified_at
    return "daily" if verified is None or (now - verified).total_seconds() >= DAILY_S else None


def order_due(due: Due, now: datetime) -> list[tuple[UUID, UUID]]:
    """Order the audit through the endpoint that has waited longest for one, of whichever tenant; nothing where no endpoint sits on the pool."""
    with tenant_scope(due.owner_id):
        row = Replica.objects.select_related("pool").filter(tenant_id=due.owner_id, id=due.replica_id).first()
        users = [] if row is None else [due.owner_id, *pools.grantees(row.pool)]
    best: tuple[tuple[bool, float], Target] | None = None
    for user in users:
        with tenant_scope(user):
            if _refused_lately(user, due, now):
                return []
            for target, last in _candidates(user, due):
                changed = last is None or last.epochs != target.epochs
                rank = (not changed, 0.0 if last is None else last.created_at.timestamp())
                if best is None or rank < best[0]:
                    best = (rank, target)
    if best is None or (due.trigger is None and best[0][0]):
        return []
    return _order(best[1], due.trigger or "epoch", now)


def _refused_lately(user: UUID, due: Due, now: datetime) -> bool:
    """Whether the engine's tokens of the day did not do for an order of this tenant. What was too little for an epoch, of which most is kept back, or
    for a restart, may do for a reason that keeps back less; what was too little for that does for neither."""
    since = max(now - timedelta(seconds=REFUSED_S), now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))
    runs = AuditRun.objects.filter(tenant_id=user, replica_id=due.replica_id, state="refused", finished_at__gte=since)
    return runs.exclude(trigger__in=("demand", *_KEEP_BACK_MORE.get(due.trigger, ("epoch", "restart")))).exists()


def _candidates(user: UUID, due: Due) -> Iterator[tuple[Target, AuditRun | None]]:
    rows = queries.endpoints(user).filter(grant__pool_id=due.pool_id, enabled=True).order_by("name")
    for endpoint in rows:
        target = next((one for one in targets.of_endpoint(user, endpoint) if one.replica_id == due.replica_id), None)
        if target is not None:
            runs = AuditRun.objects.filter(tenant_id=user, replica_id=due.replica_id, endpoint_id=endpoint.id, state="finished")
            yield target, runs.order_by("-created_at").first()


def _order(target: Target, trigger: str, now: datetime) -> list[tuple[UUID, UUID]]:
    with tenant_scope(target.tenant_id):
        run, new = orders.order(target=target, actor=system("audit"), trigger=trigger, now=now)
        if not new:
            return []
        on_commit(target.tenant_id, run.id, trigger)
    return [(target.tenant_id, run.id)]


def observed(owner_id: UUID, replica_id: UUID, now: datetime, *, trigger: str) -> list[tuple[UUID, UUID]]:
    """An engine was seen with another build ("build") or another start ("restart"): it is tried at once, if its pool is audited."""
    with tenant_scope(owner_id):
        row = Replica.objects.filter(tenant_id=owner_id, id=replica_id, pool__isolation="audited").first()
    return [] if row is None else order_due(Due(owner_id, row.id, row.pool_id, trigger), now)


def alarms(tenant_id: UUID, now: datetime) -> list[tuple[UUID, UUID]]:
    """Requests that saw more cached tokens than their namespace could own raise an audit. They judge nothing by themselves."""
    with tenant_scope(tenant_id):
        rows = DecisionRow.objects.filter(tenant_id=tenant_id, started_at__gte=now - timedelta(seconds=ALARM_S), record__alarm__isnull=False)
        raised = set(rows.exclude(replica_id="").values_list("endpoint_id", "replica_id")[:1000])
    made: list[tuple[UUID, UUID]] = []
    for endpoint_id, replica_id in raised:
        if endpoint_id is None:
            continue
        try:
            made += alarmed(tenant_id, endpoint_id, UUID(replica_id), now)
        except (NotFound, ValueError):
            _log.warning("an alarm of tenant %s names an endpoint or replica that is gone", tenant_id)
    return made


def alarmed(tenant_id: UUID, endpoint_id: UUID, replica_id: UUID, now: datetime) -> list[tuple[UUID, UUID]]:
    """Order an audit for an alarm, unless one runs or has just ended.

    Raises:
        NotFound: endpoint or replica is gone.
    """
    with tenant_scope(tenant_id):
        target = targets.again(tenant_id, endpoint_id, replica_id)
    with tenant_scope(target.owner_id):
        row = Replica.objects.filter(tenant_id=target.owner_id, id=target.replica_id).first()
    if row is None or _resting(row, now):
        return []
    with tenant_scope(tenant_id):
        refused = _refused_lately(tenant_id, Due(target.owner_id, row.id, row.pool_id, "alarm"), now)
    return [] if refused else _order(target, "alarm", now)


def _resend(tenant_id: UUID, now: datetime) -> None:
    """Orders whose message was lost, or met a busy replica; orders that nobody took for an hour are given up."""
    with tenant_scope(tenant_id):
        waiting = AuditRun.objects.filter(tenant_id=tenant_id, state="queued")
        waiting.filter(created_at__lt=now - timedelta(seconds=orders.QUEUED_FOR_S)).update(state="refused", reason="nobody took it for an hour")
        dead = AuditRun.objects.filter(tenant_id=tenant_id, state="running", started_at__lt=now - timedelta(seconds=orders.RUN_S))
        dead.update(state="finished", outcome="inconclusive", reason="the worker ended before the audit did", finished_at=now)
        for run in waiting.filter(created_at__lt=now - timedelta(seconds=RESEND_S)).order_by("created_at")[:100]:
            on_commit(tenant_id, run.id, run.trigger)
