"""Tokens out of a lower cache tier: lower / w * (1 + gamma * decodes), seconds, w being the tier's measured rate.

Counts only with w > 1.5 v and at least eight measurements; such tokens are then no work of the prefill term. See ``routing.core.ttft``.
"""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    return estimate.tier_s


SCORER = Scorer(name="tier", seconds=seconds)
