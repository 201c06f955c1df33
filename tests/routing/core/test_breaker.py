"""The breaker opens on failures in a row, lets one probe through, and never loses count of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.core.breaker import Breaker


def test_failures_in_a_row_open_it_and_time_half_opens_it() -> None:
    breaker = Breaker(failures=3, open_s=30)
    for _ in range(2):
        breaker.failed(0, probe=False)
    breaker.succeeded(probe=False)
    for _ in range(3):
        assert breaker.allows(0)
        breaker.failed(0, probe=False)
    assert (breaker.state(29.9), breaker.allows(29.9)) == ("open", False)
    assert (breaker.state(30), breaker.allows(30)) == ("half_open", True)


def test_one_probe_decides() -> None:
    breaker = Breaker(failures=1, open_s=30)
    breaker.failed(0, probe=False)
    assert breaker.begin(30) is True
    assert breaker.begin(30) is False
    assert not breaker.allows(30)
    breaker.failed(31, probe=True)
    assert breaker.state(60) == "open"
    assert breaker.begin(61) is True
    breaker.succeeded(probe=True)
    assert breaker.state(61) == "closed"


def test_a_late_success_of_an_old_request_closes_nothing() -> None:
    breaker = Breaker(failures=1, open_s=30)
    breaker.failed(0, probe=False)
    breaker.succeeded(probe=False)
    assert breaker.state(1) == "open"


def test_a_replica_that_came_back_is_asked_at_once_and_must_still_answer() -> None:
    """One request goes through without waiting; its failure opens the door again, its success closes it. A closed door stays closed."""
    breaker = Breaker(failures=1, open_s=30.0)
    breaker.came_back(0.0)
    assert breaker.state(0.0) == "closed"
    breaker.failed(1.0, probe=breaker.begin(1.0))
    assert breaker.state(2.0) == "open"
    breaker.came_back(2.0)
    assert breaker.state(2.0) == "half_open"
    breaker.failed(2.0, probe=breaker.begin(2.0))
    assert breaker.state(3.0) == "open"
    breaker.came_back(3.0)
    breaker.succeeded(probe=breaker.begin(3.0))
    assert breaker.state(3.0) == "closed"


def test_a_probe_whose_client_left_leaves_the_door_for_the_next() -> None:
    breaker = Breaker(failures=1, open_s=30)
    breaker.failed(0, probe=False)
    assert breaker.begin(30)
    breaker.undecided(probe=True)
    assert breaker.allows(30)


@given(st.lists(st.sampled_from(["success", "failure", "undecided", "wait"]), max_size=60))
def test_whatever_happens_no_probe_is_lost_and_a_success_in_the_end_closes_it(steps: list[str]) -> None:
    breaker, now = Breaker(failures=2, open_s=10), 0.0
    for step in steps:
        if step == "wait":
            now += 10
        elif breaker.allows(now):
            probe = breaker.begin(now)
            if step == "success":
                breaker.succeeded(probe=probe)
            elif step == "failure":
                breaker.failed(now, probe=probe)
            else:
                breaker.undecided(probe=probe)
        assert not breaker.probing
    now += 10
    assert breaker.allows(now)
    breaker.succeeded(probe=breaker.begin(now))
    assert breaker.state(now) == "closed"
