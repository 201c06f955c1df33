"""The isolation state machine: what leads where, and the only way out of quarantine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.audit.states import BETWEEN_CLEAN_S, STALE_S, Event, Held, State, step

LADDER = [
    (State.UNVERIFIED, Event.CLEAN, State.ISOLATED),
    (State.UNVERIFIED, Event.INCOMPLETE, State.UNVERIFIED),
    (State.UNVERIFIED, Event.ODD, State.UNVERIFIED),
    (State.ISOLATED, Event.CLEAN, State.ISOLATED),
    (State.ISOLATED, Event.ODD, State.SUSPECT),
    (State.ISOLATED, Event.INCOMPLETE, State.ISOLATED),
    (State.ISOLATED, Event.BUILD, State.UNVERIFIED),
    (State.SUSPECT, Event.CLEAN, State.ISOLATED),
    (State.SUSPECT, Event.INCOMPLETE, State.SUSPECT),
    (State.SUSPECT, Event.BUILD, State.UNVERIFIED),
    (State.QUARANTINED, Event.CLEAN, State.QUARANTINED),
    (State.QUARANTINED, Event.BUILD, State.QUARANTINED),
]
events = st.lists(st.tuples(st.sampled_from(Event), st.integers(0, 200_000)), max_size=30)


@pytest.mark.parametrize(("before", "event", "after"), LADDER)
def test_each_step(before: State, event: Event, after: State) -> None:
    assert step(Held(state=before, verified_s=0.0), event, now_s=10.0).state is after


@pytest.mark.parametrize("state", State)
def test_confirmed_sharing_quarantines_from_anywhere(state: State) -> None:
    held = step(Held(state=state), Event.SHARING, now_s=5.0, reason="two_salts")
    assert (held.state, held.repaired_s, held.clean_s) == (State.QUARANTINED, None, None)


def test_an_isolated_replica_that_nobody_audits_becomes_suspect() -> None:
    held = Held(state=State.ISOLATED, verified_s=100.0)
    assert step(held, Event.TICK, now_s=100.0 + STALE_S).state is State.ISOLATED
    assert step(held, Event.TICK, now_s=101.0 + STALE_S).state is State.SUSPECT


def test_the_way_out_of_quarantine() -> None:
    """Clean audits alone do not lead out; after the repair two do, ten minutes apart."""
    held = step(Held(state=State.ISOLATED), Event.SHARING, now_s=0.0)
    for now_s in (1.0, 1000.0, 2000.0):
        held = step(held, Event.CLEAN, now_s=now_s)
    assert held.state is State.QUARANTINED
    held = step(held, Event.REPAIRED, now_s=3000.0)
    held = step(held, Event.CLEAN, now_s=3010.0)
    assert step(held, Event.CLEAN, now_s=3009.0 + BETWEEN_CLEAN_S).state is State.QUARANTINED
    assert step(held, Event.CLEAN, now_s=3010.0 + BETWEEN_CLEAN_S).state is State.ISOLATED
    odd = step(held, Event.ODD, now_s=3100.0)
    assert step(odd, Event.CLEAN, now_s=3010.0 + BETWEEN_CLEAN_S).state is State.QUARANTINED


@given(events)
def test_only_sharing_quarantines(history: list[tuple[Event, int]]) -> None:
    """Alarms, restarts, odd probes and time lead to suspicion at most."""
    held, now_s = Held(), 0.0
    for event, wait_s in history:
        now_s += wait_s
        before, held = held.state, step(held, event, now_s=now_s)
        if held.state is State.QUARANTINED and before is not State.QUARANTINED:
            assert event is Event.SHARING


@given(events)
def test_nothing_is_isolated_without_a_clean_audit_and_no_quarantine_ends_without_a_repair(history: list[tuple[Event, int]]) -> None:
    held, now_s, repaired = Held(), 0.0, False
    for event, wait_s in history:
        now_s += wait_s
        before, held = held.state, step(held, event, now_s=now_s)
        repaired = event is Event.REPAIRED or (repaired and event is not Event.SHARING)
        if held.state is State.ISOLATED and before is not State.ISOLATED:
            assert event is Event.CLEAN
        if before is State.QUARANTINED and held.state is not State.QUARANTINED:
            assert repaired


@given(events)
def test_since_is_when_the_state_changed(history: list[tuple[Event, int]]) -> None:
    held, now_s = Held(), 0.0
    for event, wait_s in history:
        now_s += wait_s
        before, held = held, step(held, event, now_s=now_s)
        assert (held.since_s == before.since_s) if held.state is before.state else (held.since_s == now_s)
