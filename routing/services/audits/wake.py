"""Wake the worker of the queue ``audit`` after an order's commit. Bounded, never raises: what is lost the plan sends again."""

from __future__ import annotations

import logging
import threading
from uuid import UUID

from celery import current_app
from django.db import transaction

TASK = "routing.audit_run"
WAKE_TIMEOUT_S = 0.2
MAX_IN_FLIGHT = 4
# Redis transport: 0 is taken first. An alarm's audit does not wait behind the day's.
PRIORITIES = {"alarm": 0, "demand": 3, "build": 3, "first": 3, "retry": 6, "epoch": 6, "restart": 6, "daily": 9}
_log = logging.getLogger(__name__)
_in_flight = threading.BoundedSemaphore(MAX_IN_FLIGHT)


def on_commit(tenant_id: UUID, run_id: UUID, trigger: str) -> None:
    """Send the order when the transaction around it has committed."""
    transaction.on_commit(lambda: send(tenant_id, run_id, trigger))


def send(tenant_id: UUID, run_id: UUID, trigger: str) -> None:
    """Send it now."""
    post(TASK, (str(tenant_id), str(run_id)), PRIORITIES.get(trigger, 9))


def post(task: str, arguments: tuple[str, ...], priority: int) -> None:
    """Send a task. A broker that accepts and then hangs would hold a request for ever, so a thread waits for it in our place."""
    if not _in_flight.acquire(blocking=False):
        _log.warning("the broker is slow: %s is left to the next beat", task)
        return
    sender = threading.Thread(target=_post, args=(task, arguments, priority), name="wake", daemon=True)
    sender.start()
    sender.join(WAKE_TIMEOUT_S)


def _post(task: str, arguments: tuple[str, ...], priority: int) -> None:
    try:
        current_app.send_task(task, args=arguments, priority=priority, retry=False)
    except Exception as error:  # noqa: BLE001 - the outermost edge of a thread: whatever the broker's library raises, the next beat repairs
        _log.warning("%s is left to the next beat (%s)", task, type(error).__name__)
    finally:
        _in_flight.release()
