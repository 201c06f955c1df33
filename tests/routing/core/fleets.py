"""Hypothesis strategies for what the scheduler sees."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from routing.core.policy import SCORERS, PolicyName, RoutingPolicy, compile_routing
from routing.core.types import Ask, Replica

tokens = st.integers(1, 200_000)
amounts = st.integers(0, 500_000).map(float)
asks = st.builds(
    Ask,
    prompt_tokens=tokens,
    prefix_key=st.binary(min_size=1, max_size=4),
    ttft_slo_s=st.none() | st.floats(0.01, 60),
    sequence=st.integers(0, 10_000),
)
refusals = st.sampled_from([None, None, None, "draining", "not_ready"])


@st.composite
def fleets(draw: st.DrawFn, *, least: int = 1, eligible: int = 0) -> list[Replica]:
    """Replicas with distinct ids, at least ``eligible`` of them free to be chosen."""
    count = draw(st.integers(max(least, eligible), 6))
    return [
        Replica(
            id=f"r{number}",
            name=f"replica {number}",
            refusal=None if number < eligible else draw(refusals),
            queued_tokens=draw(st.just(0.0) | amounts),
            foreign_tokens=draw(st.just(0.0) | amounts),
            active_decodes=draw(st.integers(0, 64).map(float)),
            in_flight=draw(st.integers(0, 80)),
            last_chosen=draw(st.integers(0, 10)),
            matched_tokens=draw(st.just(0) | st.integers(0, 250_000)),
            confidence=draw(st.sampled_from([0.0, 0.5, 0.8, 0.97])),
            prefill_tokens_per_s=draw(st.sampled_from([500.0, 8000.0, 50_000.0])),
            fixed_s=draw(st.floats(0, 0.2)),
            network_s=draw(st.floats(0, 0.2)),
            decode_interference=draw(st.sampled_from([0.0, 0.004, 0.02])),
            working_set_blocks=draw(st.integers(0, 2000)),
            capacity_blocks=draw(st.integers(0, 1000)),
            new_blocks=draw(st.integers(0, 100)),
            rank=draw(st.binary(min_size=8, max_size=8)),
        )
        for number in range(count)
    ]


@st.composite
def policies(draw: st.DrawFn) -> RoutingPolicy:
    """Any policy that compiles, with parameters of its own where it has some."""
    name = draw(st.sampled_from(get_args(PolicyName)))
    spec: dict[str, object] = {"policy": name}
    if name == "weighted":
        weights = draw(st.dictionaries(st.sampled_from(SCORERS), st.floats(0, 100), min_size=1))
        spec["weights"] = weights if any(weights.values()) else {"wait": 1}
    if name in ("ettft", "weighted"):
        spec |= {"price_of_recomputation": draw(st.floats(0, 10)), "pressure": draw(st.floats(0, 10)), "tie_share": draw(st.floats(0, 0.5))}
    if name == "bounded_hash":
        spec["load_factor"] = draw(st.floats(1, 10))
    if name == "longest_prefix":
        spec["concurrency_threshold"] = draw(st.integers(1, 1024))
    return compile_routing(spec)
