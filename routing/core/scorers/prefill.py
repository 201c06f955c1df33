"""The request's own prefill: (fixed + uncached / v) * (1 + gamma * decodes), seconds."""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    return estimate.prefill_s


SCORER = Scorer(name="prefill", seconds=seconds)
