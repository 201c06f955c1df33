"""Held for others' work only: the request's own prefill never counts, and an idle replica always commits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.admission import bound_s, commits
from routing.core.policy import compile_routing
from routing.core.scheduler import decide
from routing.core.types import Ask, Decision, Replica


def decision(prompt_tokens: int, *replicas: Replica, slo_s: float | None = None) -> Decision:
    decided = decide(Ask(prompt_tokens=prompt_tokens, prefix_key=b"p", ttft_slo_s=slo_s), replicas, compile_routing({"policy": "ettft"}))
    assert isinstance(decided, Decision)
    return decided


def busy(name: str, wait_s: float) -> Replica:
    return Replica(id=name, name=name, queued_tokens=wait_s * 8000, in_flight=1)


@pytest.mark.parametrize(("slo_s", "expected_s"), [(None, 2.0), (1.0, 0.5), (60.0, 2.0)])
def test_the_bound_is_half_the_target_and_two_seconds_at_most(slo_s: float | None, expected_s: float) -> None:
    assert bound_s(slo_s) == expected_s


@pytest.mark.parametrize(("wait_s", "held"), [(0.9, False), (1.1, True)])
def test_over_the_bound_a_request_is_held(wait_s: float, held: bool) -> None:
    assert commits(decision(100, busy("a", wait_s), busy("b", wait_s + 1), slo_s=2.0), 2.0) is not held


@given(st.integers(1, 1_000_000), st.floats(0.05, 60))
def test_an_idle_replica_commits_the_longest_prompt_whatever_the_target(prompt_tokens: int, slo_s: float) -> None:
    decided = decision(prompt_tokens, Replica(id="a", name="a"), busy("b", 50.0), slo_s=slo_s)
    assert commits(decided, slo_s)


def test_one_that_may_not_be_chosen_does_not_count_as_idle() -> None:
    assert not commits(decision(100, Replica(id="a", name="a", refusal="draining"), busy("b", 9.0), slo_s=2.0), 2.0)


def test_who_chose_a_busy_holder_goes_while_others_are_free() -> None:
    """Waiting for the holder would hold up all who stand behind; that it is worth its queue is already in the score."""
    holder = Replica(id="holder", name="", queued_tokens=16_000, in_flight=1, matched_tokens=30_000, confidence=0.97)
    decided = decision(30_000, holder, busy("free", 0.5), slo_s=2.0)
    assert decided.chosen.replica_id == "holder"
    assert commits(decided, 2.0)
    assert not commits(decision(30_000, holder, busy("also busy", 1.5), slo_s=2.0), 2.0)


def test_nobody_is_sent_to_replicas_that_are_full() -> None:
    full = [Replica(id=name, name="", in_flight=2, max_concurrency=2) for name in "ab"]
    assert not commits(decision(100, *full), None)
    assert commits(decision(100, *full, Replica(id="c", name="", in_flight=1, max_concurrency=2)), None)
