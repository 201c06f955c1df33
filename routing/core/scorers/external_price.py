"""What recomputation costs everybody else: lambda * uncached / mean v, seconds.

Recomputed tokens delay those queued behind and evict others' blocks. The pool's mean rate is used, not the replica's own:
a slow replica already pays for its slowness in its own prefill term.
"""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import uncached_tokens
from routing.core.types import Ask, Replica


def seconds(ask: Ask, replica: Replica, field: Field) -> float:
    return field.policy.price_of_recomputation * uncached_tokens(ask, replica) / field.mean_prefill_tokens_per_s


SCORER = Scorer(name="external_price", seconds=seconds)
