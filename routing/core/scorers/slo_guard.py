"""The guard of the latency objective: max(0, T - 0.8 * SLO), seconds; nothing without an objective.

Past 80 % of the target a holder's score rises twice as fast, so overflow goes to a second replica, which becomes a holder: hot prefixes spread.
Where nobody is expected to meet the target there is nothing to guard, and spreading would only cost others their cache.
"""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    if ask.ttft_slo_s is None or field.least_ttft_s > ask.ttft_slo_s:
        return 0.0
    return max(0.0, estimate.ttft_s - 0.8 * ask.ttft_slo_s)


SCORER = Scorer(name="slo_guard", seconds=seconds)
