"""What becomes of findings from run to run: watched, open, resolved; repaired once for each reason, and again only later."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.findings import KINDS, MAX_REPAIRS, REPAIR_AGAIN_S, Finding, Held, Key, State, Step, Word, settle

NOW_S = 1_000_000.0
PATIENT = Finding("router_behind", "router", "r1", subject="r1", explanation="late", mark="5")
REPAIRED = Finding("assignment_void", "replica", "x", subject="gpu/a", explanation="void")
EVENT = Finding("block_size_changed", "replica", "x", subject="gpu/a", explanation="16, now 32")


def kept(steps: tuple[Step, ...], before: dict[Key, Held] | None = None) -> dict[Key, Held]:
    """What the caller keeps after a settlement."""
    after = dict(before or {})
    for step in steps:
        if step.after is None or step.after.state is State.RESOLVED:
            after.pop(step.key, None)
        else:
            after[step.key] = step.after
    return after


def one(steps: tuple[Step, ...]) -> Step:
    (step,) = steps
    return step


def state(step: Step) -> State | None:
    return None if step.after is None else step.after.state


def test_a_patient_kind_is_watched_first_and_forgotten_if_it_passes() -> None:
    patience_s = KINDS["router_behind"].patience_s
    assert patience_s > 0
    first = settle({}, [PATIENT], NOW_S)
    assert state(one(first)) is State.WATCHING
    assert state(one(settle(kept(first), [PATIENT], NOW_S + patience_s - 1))) is State.WATCHING
    assert state(one(settle(kept(first), [PATIENT], NOW_S + patience_s))) is State.OPEN
    assert one(settle(kept(first), [], NOW_S + 1)) == Step(PATIENT.key, None, None)


def test_what_moves_is_watched_anew() -> None:
    """A router that runs another old version at each look is late, not stuck; once open, a finding stays open whatever its mark."""
    patience_s = KINDS["router_behind"].patience_s
    first = settle({}, [PATIENT], NOW_S)
    moved = settle(kept(first), [replace(PATIENT, mark="6")], NOW_S + patience_s)
    assert state(one(moved)) is State.WATCHING
    opened = settle(kept(first), [PATIENT], NOW_S + patience_s)
    still = one(settle(kept(opened), [replace(PATIENT, mark="6")], NOW_S + patience_s + 1))
    assert (state(still), still.after and still.after.first_seen_s) == (State.OPEN, NOW_S)


@pytest.mark.parametrize(("lasted_s", "state_then"), [(0.0, State.WATCHING), (29.9, State.WATCHING), (30.0, State.OPEN)])
def test_what_knows_how_long_it_has_lasted_is_held_against_that(lasted_s: float, state_then: State) -> None:
    """Seen twice in half a minute or for the first time: two short outages are not a long one. Once open it stays open while it is seen."""
    assert KINDS["replica_unreachable"].patience_s == 30.0
    away = Finding("replica_unreachable", "replica", "x", subject="gpu/a", explanation="away", lasted_s=lasted_s)
    first = settle({}, [away], NOW_S)
    assert state(one(first)) is state_then
    again = settle(kept(first), [away], NOW_S + 60)
    assert state(one(again)) is state_then
    opened = kept(settle({}, [replace(away, lasted_s=30.0)], NOW_S))
    assert state(one(settle(opened, [away], NOW_S + 60))) is State.OPEN


def test_an_open_finding_is_resolved_when_it_is_gone_and_an_event_lingers() -> None:
    linger_s = KINDS["block_size_changed"].linger_s
    held = kept(settle({}, [REPAIRED, EVENT], NOW_S))
    states = {step.key[0]: state(step) for step in settle(held, [], NOW_S + linger_s - 1)}
    assert states == {"assignment_void": State.RESOLVED, "block_size_changed": State.OPEN}
    assert state(settle(held, [], NOW_S + linger_s)[1]) is State.RESOLVED


def test_what_rests_on_a_word_that_was_not_read_stays_as_it_is() -> None:
    """A backup that was restored is no less dangerous because Valkey does not answer just now."""
    ahead = Finding("snapshot_ahead", "tenant", "acorn", subject="acorn", explanation="newer")
    held = kept(settle({}, [REPAIRED, EVENT, ahead], NOW_S))

    def resolved(*unread: Word) -> list[str]:
        return [step.key[0] for step in settle(held, [], NOW_S + 10_000, unread=unread)]

    assert resolved("routers") == ["assignment_void", "snapshot_ahead"]
    assert resolved("routers", "valkey") == ["assignment_void"]
    assert resolved() == ["assignment_void", "block_size_changed", "snapshot_ahead"]


def test_a_repair_is_asked_for_once_then_ever_more_rarely_then_not() -> None:
    held: dict[Key, Held] = {}
    times = []
    for number in range(200):
        now_s = NOW_S + number * REPAIR_AGAIN_S / 4
        steps = settle(held, [REPAIRED], now_s)
        held = kept(steps)
        if one(steps).repair is not None:
            times.append(now_s - NOW_S)
    assert times == [0, REPAIR_AGAIN_S, 3 * REPAIR_AGAIN_S]
    assert len(times) == MAX_REPAIRS
    again = settle(held, [replace(REPAIRED, mark="another")], NOW_S + 200 * REPAIR_AGAIN_S)
    assert one(again).repair == "release"


REFUSED = Finding("snapshot_refused", "router", "r1", subject="r1", explanation="refused")


@pytest.mark.parametrize("ahead_s", [0.0, 86_400.0], ids=["control", "a day ahead"])
@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["first seen", "opened", "repaired"])
def test_a_run_whose_clock_was_ahead_delays_nothing_by_that(wrong: int, ahead_s: float) -> None:
    """Which run it was: found open, repaired and repaired again within what their waits add up to, and an event ends when it has lingered."""
    held: dict[Key, Held] = {}
    repaired: list[float] = []
    for number in range(40):
        now_s = NOW_S + 60 * number + (ahead_s if number == wrong else 0.0)
        steps = settle(held, [REFUSED, EVENT], now_s)
        repaired += [60 * number for step in steps if step.repair]
        held = kept(steps, held)
    assert len(repaired) == MAX_REPAIRS
    assert repaired[0] <= 120
    assert repaired[-1] <= 60 * (2 + wrong) + 3 * REPAIR_AGAIN_S
    assert {at_s <= NOW_S + 60 * 40 for one in held.values() for at_s in (one.first_seen_s, one.last_seen_s, one.repaired_s or 0.0)} == {True}


def test_an_event_last_seen_in_the_future_lingers_no_longer_than_others() -> None:
    linger_s = KINDS["block_size_changed"].linger_s
    held = kept(settle({}, [EVENT], NOW_S + 86_400))
    held = kept(settle(held, [], NOW_S), held)
    assert state(one(settle(held, [], NOW_S + linger_s - 1))) is State.OPEN
    assert state(one(settle(held, [], NOW_S + linger_s))) is State.RESOLVED


def test_what_is_not_repairable_or_beyond_the_bound_is_not_repaired() -> None:
    assert one(settle({}, [replace(REPAIRED, repairable=False)], NOW_S)).repair is None
    many = [replace(REPAIRED, subject_id=str(number)) for number in range(5)]
    first = settle({}, many, NOW_S, repairs=2)
    assert [step.repair for step in first] == ["release", "release", None, None, None]
    assert [step.repair for step in settle(kept(first), many, NOW_S, repairs=2)] == [None, None, "release", "release", None]


def test_a_kind_that_is_not_known_any_more_is_resolved() -> None:
    """Rows of an older release must not stand open for ever."""
    held = {("of_old", "replica", "x", ""): Held(State.OPEN, NOW_S, NOW_S)}
    assert state(one(settle(held, [], NOW_S))) is State.RESOLVED


kinds = st.sampled_from(sorted(KINDS))
findings = st.builds(Finding, kinds, st.just("replica"), st.sampled_from("abc"), st.sampled_from(["", "x"]), mark=st.sampled_from("12"))
times = st.lists(st.floats(0, 10_000), min_size=1, max_size=6).map(sorted)


@given(st.lists(st.tuples(st.lists(findings, max_size=8), st.sets(st.sampled_from(get_args(Word)))), min_size=1, max_size=6), times)
def test_the_same_again_changes_nothing_and_repairs_nothing(runs: list[tuple[list[Finding], set[Word]]], at: list[float]) -> None:
    """After any history: a second settlement with the same input leaves the rows as they are. The order of what was found is irrelevant."""
    held: dict[Key, Held] = {}
    for (found, unread), now_s in zip(runs, at, strict=False):
        steps = settle(held, found, now_s, unread=unread)
        assert settle(held, reversed(found), now_s, unread=unread) == steps
        held = kept(steps, held)
        again = settle(held, found, now_s, unread=unread)
        assert [step.repair for step in again if step.repair] == []
        assert kept(again, held) == held


@given(st.lists(findings, max_size=12), st.floats(0, 1e6))
def test_each_finding_has_one_row(found: list[Finding], now_s: float) -> None:
    steps = settle({}, found, now_s)
    assert [step.key for step in steps] == sorted({finding.key for finding in found})


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_is_fit_to_be_shown(name: str) -> None:
    kind = KINDS[name]
    assert len(name) <= 40
    assert kind.title[0].isupper()
    assert not kind.title.endswith(".")
