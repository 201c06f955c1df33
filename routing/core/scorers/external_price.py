"""What recomputation costs everybody else: lambda * uncached / mean v, seconds.

Recomputed tokens delay those queued behind and evict others' blocks. The pool's mean rate is used, not the replica's own:
a slow replica already pays for its slowness in its own prefill term. Lambda is the policy's, or, with ``price_of_recomputation: auto``, twice the
pool's mean wait in seconds within [0.5, 3]: in an idle pool nobody is delayed.
"""

from __future__ import annotations

from routing.core.scorer import Field, Scorer
from routing.core.ttft import Estimate
from routing.core.types import Ask, Replica

AUTO = (0.5, 3.0)


def price(field: Field) -> float:
    """Lambda, a factor >= 0."""
    policy = field.policy
    return min(AUTO[1], max(AUTO[0], 2.0 * field.mean_wait_s)) if policy.price_auto else policy.price_of_recomputation


def seconds(ask: Ask, replica: Replica, estimate: Estimate, field: Field) -> float:  # noqa: ARG001 - every scorer has the port's signature
    return price(field) * estimate.uncached_tokens / field.mean_prefill_tokens_per_s


SCORER = Scorer(name="external_price", seconds=seconds)
