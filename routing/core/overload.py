"""How much of a pool's queue one tenant may fill, and whose refusals may be answered elsewhere.

A tenant's queue is worth holding as far as the pool can start it in time: what the pool computes while a request may wait, times the tenant's part of
it. What is beyond would wait in vain and be refused in the end, so it is refused at the door. The part is by weight among those who wait now: a
tenant that waits alone may use the whole queue, and an idle one keeps nothing from others.
"""

from __future__ import annotations

from typing import Literal

Spilled = Literal["pool", "model"]  # what a request went to instead of its own: another pool, or another model on whatever pool
# Refusals that mean "not now, not here": the only ones after which another model may answer, where the policy says so.
OVERLOADED = frozenset({"shed", "queue_timeout", "queue_full", "no_ready_replica"})


def token_cap(*, tokens_per_s: float, wait_s: float, weight: float, other_weights: float) -> float:
    """Tokens that a tenant may have waiting. ``tokens_per_s`` is what the whole pool computes, ``other_weights`` the sum over others who wait."""
    return tokens_per_s * wait_s * weight / (weight + other_weights)


def over_cap(*, held_tokens: float, cost_tokens: float, cap_tokens: float) -> bool:
    """Whether one more request is too much. A tenant that has nothing waiting may always wait with one, however long its prompt."""
    return held_tokens > 0 and held_tokens + cost_tokens > cap_tokens
