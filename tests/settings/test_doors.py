"""Tasks are declared with their bounds: acknowledged late, without results, retried only where that is said."""

from __future__ import annotations

from typing import Any

from settings.celery import app
from settings.doors import door


def test_a_door_has_its_bounds() -> None:
    @door("tests.door", soft_s=5, hard_s=9, expires_s=3)
    def work() -> int:
        return 7

    task: Any = app.tasks["tests.door"]
    assert (task.soft_time_limit, task.time_limit, task.expires, task.acks_late, task.ignore_result) == (5, 9, 3, True, True)
    assert not hasattr(task, "autoretry_for") or not task.autoretry_for
    assert task() == 7


def test_only_what_is_named_is_retried() -> None:
    @door("tests.retried_door", soft_s=5, hard_s=9, retry_on=(OSError,))
    def work() -> None:
        raise OSError

    task: Any = app.tasks["tests.retried_door"]
    assert (task.max_retries, task.retry_backoff, task.expires) == (5, True, None)
    assert tuple(task.autoretry_for) == (OSError,)
