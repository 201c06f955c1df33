"""Celery's doors to tenant keys (queue ``keys``), and the wake-up that a new tenant sends there.

The root key is in the settings of that queue's worker alone. A task that finds itself elsewhere refuses; it is not retried there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from namespaces import roots
from namespaces.core.keyring import Roots
from namespaces.services import keys, operations
from settings.doors import door
from tenants.actor import system
from tenants.core.errors import NotFound
from tenants.scoping import tenant_scope

WAKE_TIMEOUT_S = 0.2
MAX_WAKES_IN_FLIGHT = 4
PROVISION = "namespaces.keys_provision"
OPERATE = "namespaces.keys_operate"
OPERATE_S = 30.0  # one task works so long on an operation; the next goes on
_log = logging.getLogger(__name__)
_in_flight = threading.BoundedSemaphore(MAX_WAKES_IN_FLIGHT)


class WrongWorker(Exception):
    """This process holds no root key: the task was routed to the wrong worker, or the ``keys`` worker is misconfigured."""


def root_keys() -> Roots:
    """The root keys of this process, current first.

    Raises:
        WrongWorker: this process is told of none.
        RootError: the one it is told of cannot be had.
    """
    if not settings.ROOT:
        raise WrongWorker("neither SALTROUTE_ROOT nor SALTROUTE_ROOT_KEY_FILE is set: only the worker of the queue 'keys' works on keys")
    return roots.held(tuple(settings.ROOT))


def until(seconds: float) -> Callable[[], bool]:
    """True until so many seconds have passed from now."""
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() < end_s


@door(PROVISION, soft_s=20, hard_s=30, retry_on=(OperationalError, InterfaceError))
def keys_provision(tenant_id: str) -> None:
    """Make one tenant's first key."""
    root, wanted = root_keys().current, UUID(tenant_id)
    try:
        with tenant_scope(wanted):
            keys.provision(tenant_id=wanted, actor=system("keys"), root=root)
    except NotFound:
        _log.info("a tenant was deleted before its key was made")


@door("namespaces.keys_provision_missing", soft_s=60, hard_s=90, expires_s=30)
def keys_provision_missing() -> None:
    """Make what the wake-ups missed. Not retried: the next beat is the retry."""
    root = root_keys().current
    try:
        made = keys.provision_missing(actor=system("keys"), root=root)
    except (OperationalError, InterfaceError) as error:
        _log.warning("the sweep of tenant keys stopped (%s); the next one goes on", type(error).__name__)
        return
    if made:
        _log.info("the sweep made the keys of %d tenants", len(made))


@door(OPERATE, soft_s=60, hard_s=90, retry_on=(OperationalError, InterfaceError))
def keys_operate(tenant_id: str, operation_id: str) -> None:
    """Do one operation on keys. What ``OPERATE_S`` does not suffice for, the sweep goes on with: the position is in its row."""
    try:
        operations.perform(tenant_id=UUID(tenant_id), operation_id=UUID(operation_id), roots=root_keys(), go_on=until(OPERATE_S))
    except NotFound:
        _log.info("an operation on keys is gone")


@door("namespaces.keys_operations", soft_s=60, hard_s=90, expires_s=10)
def keys_operations() -> None:
    """Go on with every open operation. Not retried: the next beat is the retry."""
    held = root_keys()
    try:
        operations.perform_open(roots=held, go_on=until(OPERATE_S))
    except (OperationalError, InterfaceError) as error:
        _log.warning("the sweep of operations on keys stopped (%s); the next one goes on", type(error).__name__)


@door("namespaces.keys_destroy_expired", soft_s=300, hard_s=360, expires_s=3000)
def keys_destroy_expired() -> None:
    """Destroy the keys of tenants deleted long enough ago. Needs no root key; it runs here because keys are this queue's."""
    gone = keys.destroy_expired(actor=system("keys"), now=timezone.now())
    if gone:
        _log.info("the keys of %d deleted tenants are destroyed", len(gone))


def wake(tenant_id: UUID) -> None:
    """Ask the ``keys`` worker for a new tenant's key. Waits at most ``WAKE_TIMEOUT_S``, never raises; the sweep makes good what is lost."""
    _wake(keys_provision, str(tenant_id))


def wake_for_operation(tenant_id: UUID, operation_id: UUID) -> None:
    """Ask the ``keys`` worker to do an operation; as :func:`wake`."""
    _wake(keys_operate, str(tenant_id), str(operation_id))


def _wake(task: Any, *arguments: str) -> None:
    if not _in_flight.acquire(blocking=False):
        _log.warning("the broker is slow: work on keys is left to the sweep")
        return
    # A broker that accepts and then hangs would hold a request for ever, so a thread waits for it in our place.
    sender = threading.Thread(target=_send, args=(task, arguments), name="wake-keys", daemon=True)
    sender.start()
    sender.join(WAKE_TIMEOUT_S)


def _send(task: Any, arguments: tuple[str, ...]) -> None:
    try:
        task.apply_async(args=arguments, retry=False)
    except Exception as error:  # noqa: BLE001 - the outermost edge of a thread: whatever the broker's library raises, the sweep repairs
        _log.warning("work on keys is left to the sweep (%s)", type(error).__name__)
    finally:
        _in_flight.release()
