"""Cache pressure: mu * press * worth * uncached / mean v, with press = min(3, max(0, (working set + new blocks) / capacity - 0.7) / 0.3).

When the working set outgrows a replica, each miss evicts something; this term stops the thrash that follows. *Worth* is the share of prompt tokens
that the replica found in its cache of late: what nobody asks for again is no loss. Charged at full worth, the term drove long prompts of a weakly
reused workload from fast replicas, which fill sooner, to slow ones. Unknown capacity is no pressure.
"""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    if replica.capacity_blocks <= 0:
        return 0.0
    fill = (replica.working_set_blocks + replica.new_blocks) / replica.capacity_blocks
    if fill <= 0.7:
        return 0.0
    press = min(3.0, (fill - 0.7) / 0.3)
    return field.policy.pressure * press * replica.reuse_share * estimate.uncached_tokens / field.mean_prefill_tokens_per_s


SCORER = Scorer(name="pressure", seconds=seconds)
