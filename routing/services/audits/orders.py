"""An audit's life in the database: ordered in the tenant that asks, begun and paid for at the replica's owner, closed in both.

Nothing is locked while probes run. One audit at a time and replica: ``audit_busy_until`` is set when one begins, and a dead worker's bound runs out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Sum

from namespaces.audit.states import Event, State
from routing.models import AuditRun, DecisionRow, Pool, Replica
from routing.services import isolation, pools
from routing.services.audits.targets import Target
from tenants import changes, scoping
from tenants.actor import Actor, system
from tenants.core.errors import Conflict, Forbidden, LimitReached, NotFound
from tenants.services import locks

RUN_S = 900.0  # the longest a run may take
QUEUED_FOR_S = 3600.0
TRAFFIC_PART = 0.005  # of the prompt tokens of the last 24 hours
RESERVED_RUNS = 2  # that an audit without given sizes leaves tokens for on the same day: another build may answer any time
KEPT_RUNS = 1  # of these a restart of a proved build leaves: unaudited, such an engine serves everybody on, and another build serves one namespace
_THE_PLATFORMS = "Replicas of this pool are the platform's, and so is their daily budget of audits: only a platform operator orders one there."


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that may start: what it may cost, and which build was last seen there. ``restarted``: of that build audits have proved, and all that asks
    for another is that the engine was started again."""

    left_tokens: int
    build: str
    spent_today_tokens: int
    restarted: bool = False


def order(
    *, target: Target, actor: Actor, trigger: str, now: datetime, sizes: dict[str, int] | None = None, platform: bool = False
) -> tuple[AuditRun, bool]:
    """Order an audit in the scope of ``target.tenant_id``; whoever calls wakes the worker on commit. An automatic order that is repeated before it
    began is the same order, and False comes with it.

    ``platform``: the actor is a platform operator. A replica's budget of the day is its owner's, and everybody on a shared pool lives by what it
    proves: a tenant's order there would spend what the next build needs.

    Raises:
        Forbidden: an order on demand for a replica of another's pool by somebody who is no platform operator.
    """
    scoping.require_scope(target.tenant_id)
    if trigger == "demand" and target.owner_id != target.tenant_id and not platform:
        raise Forbidden(_THE_PLATFORMS, field="endpoint")
    waiting = AuditRun.objects.filter(
        tenant_id=target.tenant_id, replica_id=target.replica_id, state="queued", created_at__gt=now - timedelta(seconds=QUEUED_FOR_S)
    )
    if trigger != "demand" and (held := waiting.first()) is not None:
        return held, False
    run = AuditRun.objects.create(
        tenant_id=target.tenant_id,
        trigger=trigger,
        requested_by=actor.label[:254],
        sizes=sizes or {},
        endpoint_id=target.endpoint_id,
        endpoint_name=target.endpoint_name,
        pool_id=target.pool_id,
        pool_name=target.pool_name,
        pool_owner_id=target.owner_id,
        replica_id=target.replica_id,
        replica_name=target.replica_name,
        epochs=target.epochs,
    )
    if trigger == "demand":
        changes.record(
            tenant_id=target.tenant_id,
            actor=actor,
            action="audit.order",
            object_id=run.id,
            object_label=f"{target.pool_name}/{target.replica_name or target.replica_id}",
            publishes=False,
        )
    return run, True


def begin(*, run: AuditRun, target: Target, needed_tokens: int, now: datetime) -> Begun:
    """Take the replica and its budget. ``needed_tokens`` is the least that a run makes sense with. As much as that is left for others, several times,
    where it is an epoch of a tenant that asks and the budget is another's (whoever rotates all day spends no proof that everybody lives by), and
    where a proved build was restarted (whatever restarts all day spends not what the next build needs).

    Raises:
        Conflict: an audit of this engine is running.
        LimitReached: the day's tokens are used up; the message says when there are more.
        NotFound: the replica is gone.
    """
    with scoping.tenant_scope(target.owner_id):
        locks.tenant(target.owner_id)
        rows = isolation.twins(target.owner_id, target.replica_id)
        first = rows[0]
        if first.audit_busy_until is not None and first.audit_busy_until > now:
            raise Conflict("An audit of this replica is running.")
        today = now.astimezone(UTC).date()
        spent = first.audit_tokens if first.audit_day == today else 0
        left = budget_tokens(target.owner_id, rows, needed_tokens + spent, now) - spent
        restarted = run.trigger == "restart" and first.isolation_state == State.ISOLATED and bool(first.build)
        kept = needed_tokens * _kept_runs(run, target, restarted=restarted)
        if left < needed_tokens + kept:
            used = f"The replica's audits have used {spent} of {left + spent} tokens today"
            others = f" and leaves {kept} for audits that are needed more" if kept else ""
            raise LimitReached(f"{used}, and one more needs {needed_tokens}{others}. The day ends at 00:00 UTC.")
        _save(rows, audit_at=now, audit_busy_until=now + timedelta(seconds=RUN_S), audit_day=today, audit_tokens=spent)
        begun = Begun(left_tokens=left, build=first.build, spent_today_tokens=spent, restarted=restarted)
        with scoping.tenant_scope(target.tenant_id):
            waiting = AuditRun.objects.filter(tenant_id=target.tenant_id, id=run.id, state="queued")
            if not waiting.update(state="running", started_at=now, build=begun.build, epochs=target.epochs):
                raise Conflict("This audit was carried out already.")
    return begun


def _kept_runs(run: AuditRun, target: Target, *, restarted: bool) -> int:
    if run.trigger == "epoch" and target.owner_id != target.tenant_id:
        return RESERVED_RUNS
    return KEPT_RUNS if restarted else 0


def budget_tokens(owner_id: UUID, rows: list[Replica], wanted_tokens: int, now: datetime) -> int:
    """What audits of this engine may cost a day: a fixed floor, or a part of its traffic where that is more. In the owner's scope.

    Traffic is counted, over all tenants of its pools, only where the floor does not do.
    """
    floor: int = settings.AUDIT_TOKENS_A_DAY
    if wanted_tokens <= floor:
        return floor
    ids = [str(row.id) for row in rows]
    users = {owner_id}
    for pool in Pool.objects.filter(tenant_id=owner_id, id__in={row.pool_id for row in rows}):
        users |= set(pools.grantees(pool))
    total = 0
    for user in sorted(users):
        with scoping.tenant_scope(user):
            recent = DecisionRow.objects.filter(tenant_id=user, started_at__gte=now - timedelta(hours=24), replica_id__in=ids, key_id__isnull=False)
            total += recent.aggregate(total=Sum("prompt_tokens"))["total"] or 0
    return max(floor, int(total * TRAFFIC_PART))


def settle(*, target: Target, tokens: int, event: Event | None, reason: str, build: str, now: datetime) -> State | None:
    """Pay, let go of the replica, and let the finding act on it. None: the replica is gone, and with it whatever was to be said of it."""
    try:
        with scoping.tenant_scope(target.owner_id):
            locks.tenant(target.owner_id)
            rows = isolation.twins(target.owner_id, target.replica_id)
            today = now.astimezone(UTC).date()
            spent = rows[0].audit_tokens if rows[0].audit_day == today else 0
            _save(rows, audit_busy_until=None, audit_day=today, audit_tokens=spent + tokens)
            if event is None:
                return State(rows[0].isolation_state)
            return isolation.apply(
                tenant_id=target.owner_id, actor=system("audit"), replica_id=target.replica_id, event=event, now=now, reason=reason, build=build
            )
    except NotFound:
        return None


def _save(rows: list[Replica], **columns: Any) -> None:
    for row in rows:
        for name, value in columns.items():
            setattr(row, name, value)
        row.save(update_fields=list(columns))


def withdraw(*, run: AuditRun, reason: str) -> bool:
    """Take back an order that has not begun. False: it has, or it is over."""
    with scoping.tenant_scope(run.tenant_id):
        waiting = AuditRun.objects.filter(tenant_id=run.tenant_id, id=run.id, state="queued")
        return waiting.update(state="refused", reason=reason) > 0


def close(*, run: AuditRun, **columns: Any) -> None:
    """Store what came of it, in the tenant that asked."""
    with scoping.tenant_scope(run.tenant_id):
        for name, value in columns.items():
            setattr(run, name, value)
        run.save(update_fields=list(columns))
