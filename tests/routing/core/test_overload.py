"""The part of a pool's queue that one tenant may fill."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.core.overload import over_cap, token_cap

positive = st.floats(0.1, 1e5)


def test_alone_it_is_the_whole_pool_and_beside_equals_a_half() -> None:
    assert token_cap(tokens_per_s=8000, wait_s=10, weight=1, other_weights=0) == 80_000
    assert token_cap(tokens_per_s=8000, wait_s=10, weight=1, other_weights=1) == 40_000
    assert token_cap(tokens_per_s=8000, wait_s=10, weight=3, other_weights=1) == 60_000


@given(positive, positive, st.lists(positive, min_size=1, max_size=6))
def test_the_parts_are_the_whole(rate: float, wait_s: float, weights: list[float]) -> None:
    """Whatever the weights, all tenants' caps add up to what the pool can start in time."""
    caps = [token_cap(tokens_per_s=rate, wait_s=wait_s, weight=one, other_weights=sum(weights) - one) for one in weights]
    assert abs(sum(caps) - rate * wait_s) <= 1e-6 * rate * wait_s


def test_one_request_always_may_wait() -> None:
    """Even one that is longer than the cap: refusing it would refuse it for ever. With another before it, it may not."""
    assert not over_cap(held_tokens=0, cost_tokens=1e9, cap_tokens=10)
    assert over_cap(held_tokens=1, cost_tokens=1e9, cap_tokens=10)
    assert not over_cap(held_tokens=5, cost_tokens=5, cap_tokens=10)
