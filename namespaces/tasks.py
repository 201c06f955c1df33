"""Celery's doors to tenant keys (queue ``keys``), and the wake-up that a new tenant sends there.

The root key is in the settings of that queue's worker alone. A task that finds itself elsewhere refuses; it is not retried there.
"""

from __future__ import annotations

import logging
import threading
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.db import InterfaceError, OperationalError

from namespaces.services import keys
from tenants.actor import system
from tenants.core.errors import NotFound
from tenants.scoping import tenant_scope

WAKE_TIMEOUT_S = 0.2
MAX_WAKES_IN_FLIGHT = 4
PROVISION = "namespaces.keys_provision"
_log = logging.getLogger(__name__)
_in_flight = threading.BoundedSemaphore(MAX_WAKES_IN_FLIGHT)


class WrongWorker(Exception):
    """This process holds no root key: the task was routed to the wrong worker, or the ``keys`` worker is misconfigured."""


def root_key() -> bytes:
    """The root key.

    Raises:
        WrongWorker: this process has none.
    """
    root: bytes | None = settings.ROOT_KEY
    if root is None:
        raise WrongWorker("SALTROUTE_ROOT_KEY_FILE is not set: only the worker of the queue 'keys' makes tenant keys")
    return root


@shared_task(
    name=PROVISION,
    acks_late=True,
    soft_time_limit=20,  # s
    time_limit=30,  # s
    autoretry_for=(OperationalError, InterfaceError),
    max_retries=5,
    retry_backoff=True,
    retry_jitter=True,
    ignore_result=True,
)
def keys_provision(tenant_id: str) -> None:
    """Make one tenant's first key."""
    root, wanted = root_key(), UUID(tenant_id)
    try:
        with tenant_scope(wanted):
            keys.provision(tenant_id=wanted, actor=system("keys"), root=root)
    except NotFound:
        _log.info("a tenant was deleted before its key was made")


@shared_task(
    name="namespaces.keys_provision_missing",
    acks_late=True,
    soft_time_limit=60,  # s
    time_limit=90,  # s
    expires=30,  # s; beat sends another every 10 s
    ignore_result=True,
)
def keys_provision_missing() -> None:
    """Make what the wake-ups missed. Not retried: the next beat is the retry."""
    root = root_key()
    try:
        made = keys.provision_missing(actor=system("keys"), root=root)
    except (OperationalError, InterfaceError) as error:
        _log.warning("the sweep of tenant keys stopped (%s); the next one goes on", type(error).__name__)
        return
    if made:
        _log.info("the sweep made the keys of %d tenants", len(made))


def wake(tenant_id: UUID) -> None:
    """Ask the ``keys`` worker for a new tenant's key. Waits at most ``WAKE_TIMEOUT_S``, never raises; the sweep makes good what is lost."""
    if not _in_flight.acquire(blocking=False):
        _log.warning("the broker is slow: a new tenant's key is left to the sweep")
        return
    # A broker that accepts and then hangs would hold a request for ever, so a thread waits for it in our place.
    sender = threading.Thread(target=_send, args=(str(tenant_id),), name="wake-keys", daemon=True)
    sender.start()
    sender.join(WAKE_TIMEOUT_S)


def _send(tenant_id: str) -> None:
    try:
        keys_provision.apply_async(args=(tenant_id,), retry=False)
    except Exception as error:  # noqa: BLE001 - the outermost edge of a thread: whatever the broker's library raises, the sweep repairs
        _log.warning("a new tenant's key is left to the sweep (%s)", type(error).__name__)
    finally:
        _in_flight.release()
