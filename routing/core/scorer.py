"""The port of a scorer: one term of a replica's score, in seconds; less is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from routing.core.policy import RoutingPolicy
from routing.core.types import Ask, Replica


@dataclass(frozen=True, slots=True)
class Field:
    """What a scorer may know beyond its replica: the policy and the eligible candidates' mean prefill rate (tokens/s)."""

    policy: RoutingPolicy
    mean_prefill_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Scorer:
    """A named term. ``seconds`` is pure and finite; it never reads another namespace's residency."""

    name: str
    seconds: Callable[[Ask, Replica, Field], float]
