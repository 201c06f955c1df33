"""The estimate: hand-made cases of each term, and the directions in which it may move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import ttft
from routing.core.types import Ask, Replica
from tests.routing.core import fleets as draw

ASK = Ask(prompt_tokens=4000, prefix_key=b"k")
IDLE = Replica(id="r", name="r", prefill_tokens_per_s=8000.0, fixed_s=0.03, decode_interference=0.01)
one_replica = draw.fleets().map(lambda fleet: fleet[0])


@pytest.mark.parametrize(
    ("changes", "expected_s"),
    [
        ({}, 0.03 + 4000 / 8000),
        ({"network_s": 0.02}, 0.02 + 0.03 + 0.5),
        ({"queued_tokens": 1600.0}, 0.2 + 0.03 + 0.5),
        ({"foreign_tokens": 800.0}, 0.1 + 0.03 + 0.5),
        ({"matched_tokens": 2000, "confidence": 0.8}, 0.03 + 2400 / 8000),
        ({"matched_tokens": 2000, "confidence": 0.0}, 0.03 + 0.5),
        ({"active_decodes": 10.0}, (0.03 + 0.5) * 1.1),
        ({"active_decodes": 10.0, "network_s": 0.02, "queued_tokens": 800.0}, 0.02 + (0.1 + 0.03 + 0.5) * 1.1),
        ({"prefill_tokens_per_s": 1000.0}, 0.03 + 4.0),
    ],
)
def test_each_term_by_hand(changes: dict[str, float], expected_s: float) -> None:
    assert ttft.expected_ttft_s(ASK, replace(IDLE, **changes)) == pytest.approx(expected_s)  # type: ignore[arg-type]  # names are the test's


@given(draw.asks, one_replica)
def test_at_least_one_token_is_always_computed(ask: Ask, replica: Replica) -> None:
    whole = replace(replica, matched_tokens=ask.prompt_tokens * 2, confidence=0.97)
    assert ttft.uncached_tokens(ask, whole) >= 1
    assert ttft.expected_cached_tokens(ask, whole) <= ask.prompt_tokens - 1


@given(draw.asks, one_replica)
def test_wait_and_own_prefill_and_network_are_all_there_is(ask: Ask, replica: Replica) -> None:
    total = replica.network_s + ttft.wait_s(replica) + ttft.prefill_s(ask, replica)
    assert ttft.expected_ttft_s(ask, replica) == pytest.approx(total)


@given(draw.asks, one_replica, st.sampled_from(["queued_tokens", "foreign_tokens", "active_decodes", "network_s", "fixed_s"]), st.floats(0, 1e5))
def test_more_work_or_distance_never_shortens_the_estimate(ask: Ask, replica: Replica, field: str, more: float) -> None:
    changed = replace(replica, **{field: getattr(replica, field) + more})
    assert ttft.expected_ttft_s(ask, changed) >= ttft.expected_ttft_s(ask, replica)


@given(draw.asks, one_replica, st.integers(0, 100_000))
def test_more_residency_never_lengthens_the_estimate(ask: Ask, replica: Replica, more: int) -> None:
    changed = replace(replica, matched_tokens=replica.matched_tokens + more)
    assert ttft.expected_ttft_s(ask, changed) <= ttft.expected_ttft_s(ask, replica)


@given(draw.asks, one_replica)
def test_the_wait_is_that_of_others_alone(ask: Ask, replica: Replica) -> None:
    nobody = replace(replica, queued_tokens=0.0, foreign_tokens=0.0)
    assert ttft.wait_s(nobody) == 0
    assert ttft.expected_ttft_s(ask, nobody) > 0
