"""States follow from the conditions that stand, and every change is told once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import residency_state as state
from routing.core.residency_state import CONDITIONS, LOST_AFTER_S, Reason, Residency, Transition

reasons = st.sampled_from(list(CONDITIONS))
changes = st.lists(st.tuples(st.booleans(), reasons), max_size=30)


def test_the_life_of_a_target() -> None:
    target = state.begin(0.0)
    assert (target.state, target.reason) == ("warming", "subscribing")
    target, change = state.drop(target, "subscribing", at_s=1.0)
    assert change == Transition("warming", "exact", "ok", 1.0)
    assert (target.state, target.since_s) == ("exact", 1.0)
    target, change = state.add(target, "gap", 2.0)
    assert change == Transition("exact", "degraded", "gap", 2.0)
    target, change = state.add(target, "no_tokens", 3.0)
    assert change == Transition("degraded", "history", "no_tokens", 3.0)
    target, change = state.drop(target, "gap", at_s=4.0)
    assert change is None
    target, change = state.restarted(target, 5.0)
    assert change is None  # tokens do not come with a new process
    target, change = state.drop(target, "no_tokens", at_s=6.0)
    assert change == Transition("history", "warming", "restart", 6.0)


@given(changes=changes)
def test_the_order_of_conditions_does_not_matter_and_each_change_is_told(changes: list[tuple[bool, Reason]]) -> None:
    target, standing, told = Residency(), set(), "exact"
    for at_s, (arises, reason) in enumerate(changes):
        before = (target.state, target.reason)
        if arises:
            target, change = state.add(target, reason, float(at_s))
            standing.add(reason)
        else:
            target, change = state.drop(target, reason, at_s=float(at_s))
            standing.discard(reason)
        worst = next((reason for reason in CONDITIONS if reason in standing), "ok")
        assert target.reason == worst
        assert target.state == CONDITIONS.get(worst, "exact")
        assert (change is None) == (before == (target.state, target.reason))
        if change is not None:
            assert (change.before, change.after, change.reason, change.at_s) == (told, target.state, worst, float(at_s))
            told = target.state


@given(standing=st.lists(reasons, unique=True))
def test_exact_means_that_nothing_stands(standing: list[Reason]) -> None:
    target = Residency(tuple((reason, 0.0) for reason in standing))
    assert (target.state == "exact") == (not standing)


@pytest.mark.parametrize(("reason", "matters"), [("gap", False), ("stale", True), ("malformed", True), ("replay", False), ("no_tokens", False)])
def test_what_lasts_too_long_is_overdue(reason: Reason, matters: bool) -> None:
    target, _ = state.add(Residency(), reason, 10.0)
    target, _ = state.add(target, reason, 30.0)  # standing already, it keeps its time
    assert not state.overdue(target, 10.0 + LOST_AFTER_S - 0.1)
    assert state.overdue(target, 10.0 + LOST_AFTER_S) == matters


def test_a_restart_ends_what_stood_against_the_old_process() -> None:
    target = Residency(tuple((reason, 0.0) for reason in CONDITIONS))
    target, _ = state.restarted(target, 1.0)
    assert {reason for reason, _ in target.conditions} == {"no_events", "no_tokens", "parity", "restart"}
