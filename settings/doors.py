"""How this product's Celery tasks are declared: doors to services, each with its bounds, none of which keeps a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import shared_task


def door(
    name: str, *, soft_s: int, hard_s: int, expires_s: int | None = None, retry_on: tuple[type[Exception], ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """A task that is acknowledged when it has ended. ``expires_s``: beat sends another anyway, so an old message is not worth running.

    ``retry_on``: it is tried five times more, ever more slowly; without it the next beat is the retry.
    """
    retries: dict[str, Any] = {}
    if retry_on:
        retries = {"autoretry_for": retry_on, "max_retries": 5, "retry_backoff": True, "retry_jitter": True}
    task: Callable[[Callable[..., Any]], Any] = shared_task(
        name=name, acks_late=True, soft_time_limit=soft_s, time_limit=hard_s, expires=expires_s, ignore_result=True, **retries
    )
    return task
