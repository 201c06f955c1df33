"""Others' work ahead of the request: network + (queued + foreign) / v * (1 + gamma * decodes), seconds."""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    return replica.network_s + estimate.wait_s


SCORER = Scorer(name="wait", seconds=seconds)
