"""A run is asked for and the worker woken; a run is begun, one at a time for each tenant; a run is closed, and old ones go."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q

from routing.core.findings import State
from routing.models import ReconciliationFinding, ReconciliationRun
from routing.services.audits import wake
from tenants import changes
from tenants.actor import Actor
from tenants.scoping import require_scope

TASK = "routing.reconcile_tenant"
PRIORITY = 3
RUN_S = 120.0  # the longest a run may take; one that is older died with its worker
KEPT_RUNS = 500
RUNS_FOR = timedelta(days=7)
KEPT_FINDINGS = 2000  # resolved ones
FINDINGS_FOR = timedelta(days=30)
_QUIET = ("routers", "watching", "open", "opened", "resolved", "repairs", "dropped", "reason")


def request(*, tenant_id: UUID, actor: Actor) -> ReconciliationRun:
    """Ask for a run now; one that waits already is the same. The worker is woken on commit, and the next beat takes what it missed.

    Raises:
        Forbidden: the actor's role does not allow it.
    """
    changes.permit(actor, "reconciliation.request")
    require_scope(tenant_id)
    waiting = ReconciliationRun.objects.filter(tenant_id=tenant_id, state="queued").first()
    run = waiting or ReconciliationRun.objects.create(tenant_id=tenant_id, trigger="demand", requested_by=actor.label[:254])
    transaction.on_commit(lambda: wake.post(TASK, (str(tenant_id), str(run.id)), PRIORITY))
    return run


def begin(*, tenant_id: UUID, trigger: str, now: datetime, run_id: UUID | None = None, by: str = "") -> ReconciliationRun | None:
    """Take the tenant for a run: the one asked for (``run_id``, else whichever waits), or a new one. None: another run has it, or it is done.

    The lock orders those who come at once and ends with the transaction; the row says who has the tenant, and for how long at most.
    """
    require_scope(tenant_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_lock(tenant_id)])
        if not cursor.fetchone()[0]:
            return None
    runs = ReconciliationRun.objects.filter(tenant_id=tenant_id)
    running, longest = runs.filter(state="running"), timedelta(seconds=RUN_S)
    gone = Q(started_at__lt=now - longest) | Q(started_at__gt=now + longest)  # from the future: its worker's clock was wrong
    running.filter(gone).update(state="broken", reason="the worker ended before the run did", finished_at=now)
    if running.exists():
        return None
    waiting = runs.filter(state="queued").order_by("created_at")
    run = waiting.filter(id=run_id).first() if run_id is not None else waiting.first()
    if run is None:
        if run_id is not None:
            return None
        run = ReconciliationRun(tenant_id=tenant_id, trigger=trigger, requested_by=by[:254])
    run.state, run.started_at = "running", now
    run.save()
    return run


def _lock(tenant_id: UUID) -> int:
    return int.from_bytes(hashlib.sha256(b"reconciliation" + tenant_id.bytes).digest()[:8], "big", signed=True)


def close(run: ReconciliationRun, *, now: datetime) -> ReconciliationRun:
    """Store what came of it. A run of the beat that found what the one before found is counted there and has no row of its own."""
    require_scope(run.tenant_id)
    run.state, run.finished_at = "finished", now
    before = ReconciliationRun.objects.filter(tenant_id=run.tenant_id, created_at__lt=run.created_at).order_by("-created_at", "-id").first()
    if before is not None and run.trigger == "beat" and _says_the_same(before, run):
        ReconciliationRun.objects.filter(id=run.id).delete()
        fresh = {"started_at": run.started_at, "finished_at": now, "took_s": run.took_s, "observed": run.observed}
        ReconciliationRun.objects.filter(id=before.id).update(repeats=F("repeats") + 1, **fresh)
        before.refresh_from_db()
        return before
    run.save()
    _forget(run.tenant_id, now)
    return run


def _says_the_same(before: ReconciliationRun, run: ReconciliationRun) -> bool:
    both = before.state == "finished" and before.trigger == "beat" and not (run.opened or run.resolved or run.repairs)
    return both and all(getattr(before, name) == getattr(run, name) for name in _QUIET)


def fail(run: ReconciliationRun, *, reason: str, now: datetime) -> None:
    """It broke off; what it had stored stands, and the next run goes on from there."""
    require_scope(run.tenant_id)
    running = ReconciliationRun.objects.filter(tenant_id=run.tenant_id, id=run.id, state="running")
    running.update(state="broken", reason=reason[:300], finished_at=now)


def _forget(tenant_id: UUID, now: datetime) -> None:
    runs = ReconciliationRun.objects.filter(tenant_id=tenant_id)
    oldest = runs.order_by("-created_at").values_list("created_at", flat=True)[KEPT_RUNS : KEPT_RUNS + 1].first()
    runs.exclude(state__in=("queued", "running")).filter(created_at__lt=max(now - RUNS_FOR, oldest or now - RUNS_FOR)).delete()
    done = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.RESOLVED)
    oldest = done.order_by("-created_at").values_list("created_at", flat=True)[KEPT_FINDINGS : KEPT_FINDINGS + 1].first()
    done.filter(created_at__lt=max(now - FINDINGS_FOR, oldest or now - FINDINGS_FOR)).delete()
