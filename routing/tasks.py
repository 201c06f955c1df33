"""Celery's doors to publishing. Repeats are harmless: Valkey keeps the highest version."""

from __future__ import annotations

import logging
from uuid import UUID

from celery import shared_task
from django.db import InterfaceError, OperationalError
from redis.exceptions import RedisError

from routing.services import publishing

_log = logging.getLogger(__name__)


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
