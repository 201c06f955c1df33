"""What it takes to bring the request's LoRA adapter into a slot of the engine: load + displaced, seconds; 0 where the request asks for none.

Nothing where the adapter is active, what is left where it is being loaded, the learned load time where a slot is free, and up to twice that where
another adapter has to leave. Formula, learning and prior: :mod:`routing.core.adapters`. So the replica that has the adapter is chosen until its
queue is longer than loading takes elsewhere.
"""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    return replica.adapter_s + replica.displaced_s


SCORER = Scorer(name="adapter", seconds=seconds)
