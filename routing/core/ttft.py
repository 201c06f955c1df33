"""Expected time to first token on a replica, in seconds: the currency of every decision.

    T = network + [ (queued + foreign) / v  +  fixed  +  uncached / v ] * (1 + gamma * active decodes)

with v the replica's prefill rate. The first bracket term is others' work (WAIT); the last one is the request's own prefill.
An engine computes at least the last token even on a full hit.
Source: our own trace replays for the form; the full-hit rule was observed on vLLM 0.32.
"""

from __future__ import annotations

from routing.core.types import Ask, Replica


def expected_cached_tokens(ask: Ask, replica: Replica) -> float:
    """Matched tokens weighed by confidence; never the whole prompt, since at least one token is always computed."""
    return min(replica.matched_tokens * replica.confidence, ask.prompt_tokens - 1.0)


def uncached_tokens(ask: Ask, replica: Replica) -> float:
    """Prompt tokens the replica is expected to compute, at least 1."""
    return max(1.0, ask.prompt_tokens - expected_cached_tokens(ask, replica))


def interference(replica: Replica) -> float:
    """How much running decodes stretch prefill work, a factor >= 1."""
    return 1.0 + replica.decode_interference * replica.active_decodes


def wait_s(replica: Replica) -> float:
    """Seconds until the replica has done the work of others that is ahead of this request."""
    return (replica.queued_tokens + replica.foreign_tokens) / replica.prefill_tokens_per_s * interference(replica)


def prefill_s(ask: Ask, replica: Replica) -> float:
    """Seconds of this request's own prefill, with the fixed cost of a step."""
    return (replica.fixed_s + uncached_tokens(ask, replica) / replica.prefill_tokens_per_s) * interference(replica)


def expected_ttft_s(ask: Ask, replica: Replica) -> float:
    """Expected time to first token on ``replica``, in seconds, > 0."""
    return replica.network_s + wait_s(replica) + prefill_s(ask, replica)
