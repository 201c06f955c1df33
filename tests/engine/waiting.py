"""Waiting for a condition that another process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.05


def until(what: str, condition: Callable[[], bool], *, within_s: float) -> None:
    """Return as soon as the condition holds; it is polled, never slept for. ``what`` names it in the failure.

    Raises:
        AssertionError: it did not hold in time.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s")
        time.sleep(POLL_S)
