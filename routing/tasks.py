"""Celery's doors to publishing, to isolation audits and to noting the use of keys.

Repeats are harmless: Valkey keeps the highest version, an audit is begun once, the use of a key never goes back.

Publishing has the queue ``publish`` to itself (with the sweeps, which are short), audits have ``audit``: a thousand of those delay no revocation.
"""

from __future__ import annotations

import logging
from uuid import UUID

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from redis.exceptions import RedisError

from routing import queries
from routing.services import key_use, publishing
from routing.services.audits import calendar, reports, running
from routing.services.audits.watch import Watch

VALKEY_S = 0.5
_log = logging.getLogger(__name__)
_watch = Watch()


@shared_task(
    name="routing.publish",
    acks_late=True,
    soft_time_limit=20,  # s
    time_limit=30,  # s
    autoretry_for=(OperationalError, InterfaceError, RedisError),
    max_retries=5,
    retry_backoff=True,
    retry_jitter=True,
    ignore_result=True,
)
def publish(tenant_id: str) -> None:
    """Publish one tenant."""
    publishing.publish(UUID(tenant_id))


@shared_task(
    name="routing.sweep_publications",
    acks_late=True,
    soft_time_limit=60,  # s
    time_limit=90,  # s
    expires=30,  # s; beat sends another every 5 s, so an old one is not worth running
    ignore_result=True,
)
def sweep_publications() -> None:
    """Publish what the on-commit hook could not. Not retried: the next beat is the retry."""
    try:
        published = publishing.sweep()
    except (OperationalError, InterfaceError, RedisError) as error:
        _log.warning("the sweep of publications stopped (%s); the next one goes on", type(error).__name__)
        return
    if published:
        _log.info("the sweep published %d tenants", len(published))


@shared_task(
    name="routing.audit_run",
    acks_late=True,
    soft_time_limit=840,  # s; an audit ends itself after 720 s
    time_limit=870,  # s; below the time that it holds its replica for
    ignore_result=True,
)
def audit_run(tenant_id: str, run_id: str) -> None:
    """Carry out one order. Not retried: what did not begin the plan sends again, what broke off says so."""
    try:
        ended = running.run(UUID(tenant_id), UUID(run_id))
    except SoftTimeLimitExceeded:
        _log.warning("audit %s ran into its time limit", run_id)
        return
    if ended is not None:
        _log.info("audit %s: %s %s", run_id, ended.run.outcome or ended.run.state, ended.state or "")


@shared_task(
    name="routing.plan_audits",
    acks_late=True,
    soft_time_limit=60,  # s
    time_limit=90,  # s
    expires=30,  # s; beat sends another every 15 s
    ignore_result=True,
)
def plan_audits() -> None:
    """Order what is due and what alarms ask for. Not retried: the next beat is the retry."""
    try:
        made = calendar.plan(timezone.now())
    except (OperationalError, InterfaceError) as error:
        _log.warning("the plan of audits stopped (%s); the next one goes on", type(error).__name__)
        return
    if made:
        _log.info("%d audits ordered", len(made))


@shared_task(
    name="routing.note_key_use",
    acks_late=True,
    soft_time_limit=25,  # s
    time_limit=60,  # s
    expires=30,  # s; beat sends another every 30 s
    ignore_result=True,
)
def note_key_use() -> None:
    """Note when keys were last used. Not retried: the next beat looks at the same minutes again."""
    try:
        key_use.note_all(timezone.now())
    except (OperationalError, InterfaceError) as error:
        _log.warning("the use of keys was not noted (%s); the next run goes on", type(error).__name__)


@shared_task(
    name="routing.sweep_isolation",
    acks_late=True,
    soft_time_limit=30,  # s
    time_limit=60,  # s
    expires=10,  # s; beat sends another every 2 s
    ignore_result=True,
)
def sweep_isolation() -> None:
    """Act on what routers report: assign namespaces, notice new builds. Not retried: the next beat is the retry."""
    try:
        with queries.valkey(VALKEY_S) as client:
            found = reports.read(client)
        _watch.look(found, timezone.now())
    except (OperationalError, InterfaceError, RedisError) as error:
        _log.warning("routers' reports were not acted on (%s); the next sweep goes on", type(error).__name__)
