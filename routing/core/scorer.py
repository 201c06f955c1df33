"""The port of a scorer: one term of a replica's score, in seconds; less is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from routing.core.policy import RoutingPolicy
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


@dataclass(frozen=True, slots=True)
class Field:
    """What a scorer may know beyond its replica: the policy, and of the candidates weighed their mean prefill rate (tokens/s) and mean wait (s)."""

    policy: RoutingPolicy
    mean_prefill_tokens_per_s: float
    mean_wait_s: float = 0.0
    least_ttft_s: float = 0.0  # the shortest expected time to first token among them


@dataclass(frozen=True, slots=True)
class Scorer:
    """A named term. ``seconds`` is pure and finite; ``Estimate`` is the expectation for this
    request on this replica, worked out once for all terms. It never reads another namespace's residency."""

    name: str
    seconds: Callable[[Ask, Replica, Estimate, Field], float]
