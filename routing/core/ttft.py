"""Expected time to first token on a replica, in seconds: the currency of every decision.

    T = network + [ (queued + foreign) / v  +  fixed  +  uncached / v  +  lower / w ] * (1 + gamma * active decodes) + adapter

with v the replica's prefill rate and w that of the lower cache tier in which it holds ``lower`` of the prompt's tokens. The first bracket term is
others' work (WAIT); the others are the request's own. A lower tier counts only where w was measured and beats recomputing clearly,
``w > TIER_GAIN * v``; otherwise its tokens count as uncached. An engine computes at least the last token even on a full hit.
``adapter`` is the time until the request's LoRA adapter is in a slot (:mod:`routing.core.adapters`).
Source: our own trace replays for the form; the full-hit rule was observed on vLLM 0.32.
"""

from __future__ import annotations

from typing import NamedTuple

from routing.core.types import Ask, Replica

TIER_GAIN = 1.5


class Estimate(NamedTuple):
    """All parts of the expectation for one request on one replica. ``ttft_s`` is the network, the three other times and the adapter's together."""

    cached_tokens: float
    uncached_tokens: float
    wait_s: float
    prefill_s: float
    tier_s: float
    ttft_s: float


def estimate(ask: Ask, replica: Replica) -> Estimate:
    """As the functions below, in one pass."""
    rate = replica.prefill_tokens_per_s
    stretched = 1.0 + replica.decode_interference * replica.active_decodes
    cached = expected_cached_tokens(ask, replica)
    uncached = ask.prompt_tokens - cached
    uncached = max(uncached, 1.0)
    wait = (replica.queued_tokens + replica.foreign_tokens) / rate * stretched
    prefill = (replica.fixed_s + uncached / rate) * stretched
    tier = tier_s(ask, replica) if replica.lower_tokens > 0.0 else 0.0
    return Estimate(cached, uncached, wait, prefill, tier, replica.network_s + wait + prefill + tier + replica.adapter_s)


def lower_tokens(replica: Replica) -> float:
    """Tokens that are expected to come out of a lower tier; 0 where that is not worth it or was never measured."""
    rate = replica.tier_tokens_per_s
    return replica.lower_tokens if rate is not None and rate > TIER_GAIN * replica.prefill_tokens_per_s else 0.0


def expected_cached_tokens(ask: Ask, replica: Replica) -> float:
    """Matched tokens weighed by confidence, lower tiers as far as they count; never the whole prompt, since one token is always computed."""
    expected = replica.matched_tokens * replica.confidence
    if replica.lower_tokens > 0.0:
        expected = max(0.0, expected - replica.lower_tokens) + lower_tokens(replica)
    return min(expected, ask.prompt_tokens - 1.0)


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


def tier_s(ask: Ask, replica: Replica) -> float:
    """Seconds until the tokens of a lower tier are where they are needed."""
    tokens = min(lower_tokens(replica), ask.prompt_tokens - 1.0)
    return 0.0 if tokens <= 0.0 or not replica.tier_tokens_per_s else tokens / replica.tier_tokens_per_s * interference(replica)


def expected_ttft_s(ask: Ask, replica: Replica) -> float:
    """Expected time to first token on ``replica``, in seconds, > 0."""
    return replica.network_s + wait_s(replica) + prefill_s(ask, replica) + tier_s(ask, replica) + replica.adapter_s
