"""Celery's doors to publishing, to isolation audits, to reconciliation and to noting the use of keys.

Repeats are harmless: Valkey keeps the highest version, an audit is begun once, the use of a key never goes back.

Publishing has the queue ``publish`` to itself (with the sweeps, which are short), audits have ``audit``: a thousand of those delay no revocation.
"""

from __future__ import annotations

import logging
from collections import Counter
from uuid import UUID

from celery.exceptions import SoftTimeLimitExceeded
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from redis.exceptions import RedisError

from namespaces.tasks import root_keys
from routing import queries
from routing.services import alerts, captures, key_use, publishing, quotas, replica_checks, retention, webhooks
from routing.services.audits import calendar, reports, running
from routing.services.audits.watch import Watch
from routing.services.reconciliation import running as reconciling
from routing.services.traces import running as trace_jobs
from settings.doors import door

VALKEY_S = 0.5
_log = logging.getLogger(__name__)
_watch = Watch()


@door("routing.publish", soft_s=20, hard_s=30, retry_on=(OperationalError, InterfaceError, RedisError))
def publish(tenant_id: str) -> None:
    """Publish one tenant."""
    publishing.publish(UUID(tenant_id))


@door("routing.sweep_publications", soft_s=60, hard_s=90, expires_s=30)
def sweep_publications() -> None:
    """Publish what the on-commit hook could not. Not retried: the next beat is the retry."""
    try:
        published = publishing.sweep()
    except (OperationalError, InterfaceError, RedisError) as error:
        _log.warning("the sweep of publications stopped (%s); the next one goes on", type(error).__name__)
        return
    if published:
        _log.info("the sweep published %d tenants", len(published))


@door("routing.audit_run", soft_s=840, hard_s=870)  # an audit ends itself after 720 s, and holds its replica for 900
def audit_run(tenant_id: str, run_id: str) -> None:
    """Carry out one order. Not retried: what did not begin the plan sends again, what broke off says so."""
    try:
        ended = running.run(UUID(tenant_id), UUID(run_id))
    except SoftTimeLimitExceeded:
        _log.warning("audit %s ran into its time limit", run_id)
        return
    if ended is not None:
        _log.info("audit %s: %s %s", run_id, ended.run.outcome or ended.run.state, ended.state or "")


@door("routing.audit_replica_check", soft_s=80, hard_s=90, expires_s=60)
def replica_check(tenant_id: str, check_id: str) -> None:
    """Have a router look at an engine before it is added. Not retried: a person waits, and asks again."""
    replica_checks.run(UUID(tenant_id), UUID(check_id))


@door("routing.plan_audits", soft_s=60, hard_s=90, expires_s=30)
def plan_audits() -> None:
    """Order what is due and what alarms ask for. Not retried: the next beat is the retry."""
    try:
        made = calendar.plan(timezone.now())
    except (OperationalError, InterfaceError) as error:
        _log.warning("the plan of audits stopped (%s); the next one goes on", type(error).__name__)
        return
    if made:
        _log.info("%d audits ordered", len(made))


@door("routing.note_key_use", soft_s=25, hard_s=60, expires_s=30)
def note_key_use() -> None:
    """Note when keys were last used. Not retried: the next beat looks at the same minutes again."""
    try:
        key_use.note_all(timezone.now())
    except (OperationalError, InterfaceError) as error:
        _log.warning("the use of keys was not noted (%s); the next run goes on", type(error).__name__)


@door("routing.sweep_isolation", soft_s=30, hard_s=60, expires_s=10)
def sweep_isolation() -> None:
    """Act on what routers report: assign namespaces, notice new builds. Not retried: the next beat is the retry."""
    try:
        with queries.valkey(VALKEY_S) as client:
            found = reports.read(client)
        _watch.look(found, timezone.now())
    except (OperationalError, InterfaceError, RedisError) as error:
        _log.warning("routers' reports were not acted on (%s); the next sweep goes on", type(error).__name__)


@door("routing.alerts_sweep", soft_s=100, hard_s=115, expires_s=50)
def alerts_sweep() -> None:
    """Count objectives and settle alerts of all tenants, as far as time allows. Not retried: the next beat goes on."""
    try:
        changed = alerts.sweep()
    except (OperationalError, InterfaceError) as error:
        _log.warning("alerts were not settled (%s); the next run goes on", type(error).__name__)
        return
    if changed:
        _log.info("%d alerts began or ended", changed)


@door("routing.webhooks_send", soft_s=25, hard_s=30, expires_s=30)
def webhooks_send(tenant_id: str) -> None:
    """Send what one tenant's webhooks have due. Not retried: the sweep is the retry."""
    try:
        webhooks.send(UUID(tenant_id), root_keys())
    except (OperationalError, InterfaceError) as error:
        _log.warning("webhooks were not sent (%s); the sweep goes on", type(error).__name__)


@door("routing.webhooks_sweep", soft_s=25, hard_s=30, expires_s=10)
def webhooks_sweep() -> None:
    """Send what is due of all tenants, as far as time allows: this queue makes tenants' keys too. Not retried: the next beat goes on."""
    try:
        webhooks.sweep(root_keys())
    except (OperationalError, InterfaceError) as error:
        _log.warning("webhooks were not sent (%s); the next sweep goes on", type(error).__name__)


@door("routing.reconcile", soft_s=100, hard_s=115, expires_s=50)
def reconcile() -> None:
    """Reconcile all tenants, as far as time allows. Not retried: the next beat goes on."""
    try:
        ended = reconciling.sweep()
    except (OperationalError, InterfaceError) as error:
        _log.warning("reconciliation stopped (%s); the next run goes on", type(error).__name__)
        return
    done = Counter[str]()
    for one in ended:
        done.update(open=len(one.findings), opened=one.run.opened, resolved=one.run.resolved, repairs=one.run.repairs)
    if done["opened"] or done["resolved"] or done["repairs"]:
        counts = (done[name] for name in ("open", "opened", "resolved", "repairs"))
        _log.info("reconciled %d tenants: %d findings open, %d opened, %d resolved, %d repairs", len(ended), *counts)


@door("routing.reconcile_tenant", soft_s=60, hard_s=90)
def reconcile_tenant(tenant_id: str, run_id: str) -> None:
    """Carry out a run that was asked for. Not retried: what did not begin the next beat takes."""
    try:
        reconciling.run(UUID(tenant_id), trigger="demand", run_id=UUID(run_id))
    except (OperationalError, InterfaceError) as error:
        _log.warning("a run of reconciliation broke off (%s); the next beat makes another", type(error).__name__)


@door("routing.tend_records", soft_s=50, hard_s=60, expires_s=50)
def tend_records() -> None:
    """Fold rollups and delete what is past its time. Not retried: the next beat goes on."""
    try:
        folded, forgotten = retention.tend(timezone.now())
    except (OperationalError, InterfaceError) as error:
        _log.warning("records were not tended (%s); the next run goes on", type(error).__name__)
        return
    if forgotten:
        _log.info("records: %d rows folded, %d past their time", folded, forgotten)


@door("routing.correct_quotas", soft_s=50, hard_s=60, expires_s=100)
def correct_quotas() -> None:
    """Hold what Valkey counts of the month against the usage. Not retried: the next beat goes on."""
    try:
        quotas.sweep(timezone.now())
    except (OperationalError, InterfaceError, RedisError) as error:
        _log.warning("quotas were not compared with the usage (%s); the next run goes on", type(error).__name__)


@door("routing.keep_partitions", soft_s=50, hard_s=60, expires_s=1800)
def keep_partitions() -> None:
    """Make and drop partitions of decisions and of captured requests. Not retried: there are some for days ahead, and the next beat tries again."""
    try:
        done = retention.keep_partitions()
        captures.keep_partitions()
    except (OperationalError, InterfaceError) as error:
        _log.warning("partitions of decisions were not looked after (%s); the next run tries again", type(error).__name__)
        return
    if done.created or done.dropped or done.blocked:
        _log.info("partitions of decisions: %d made, %d dropped, %d days without one of their own", done.created, done.dropped, done.blocked)


@door("routing.trace_job", soft_s=1860, hard_s=1900)  # a job ends itself after 1800 s
def trace_job(tenant_id: str, job_id: str) -> None:
    """Carry out one job, then wake workers for what waits. Not retried: what did not begin, or broke off, the sweep finds."""
    try:
        ended = trace_jobs.run(UUID(tenant_id), UUID(job_id))
        if ended is not None:
            _log.info("trace job %s: %s", job_id, ended)
            trace_jobs.sweep()
    except (OperationalError, InterfaceError) as error:
        _log.warning("trace job %s broke off (%s); the sweep finds it", job_id, type(error).__name__)


@door("routing.trace_jobs_sweep", soft_s=50, hard_s=60, expires_s=15)
def trace_jobs_sweep() -> None:
    """Wake workers for jobs that wait or whose worker is gone. Not retried: the next beat is the retry."""
    try:
        trace_jobs.sweep()
    except (OperationalError, InterfaceError) as error:
        _log.warning("trace jobs were not looked for (%s); the next sweep is", type(error).__name__)
