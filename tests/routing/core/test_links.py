"""Learned ways between engines: priors, medians, failures, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import links
from routing.core.links import ENOUGH, SETUP_S, TOKENS_PER_S, Links
from routing.core.pairs import Way


def test_a_new_way_has_the_priors() -> None:
    assert Links().way("p", "d", 0.0) == Way(SETUP_S, TOKENS_PER_S)


def test_setup_comes_from_short_transfers_and_the_rate_from_long_ones() -> None:
    known = Links()
    link = known.take("p", "d")
    for _ in range(ENOUGH):
        link.observe(moved_tokens=100.0, seconds=0.1)
    for _ in range(ENOUGH - 1):
        link.observe(moved_tokens=10_000.0, seconds=1.1)
    assert known.way("p", "d", 0.0) == Way(0.1, TOKENS_PER_S)
    link.observe(moved_tokens=10_000.0, seconds=1.1)
    way = known.way("p", "d", 0.0)
    assert way is not None
    assert way.tokens_per_s == pytest.approx(10_000.0)
    assert known.way("d", "p", 0.0) == Way(SETUP_S, TOKENS_PER_S)  # there and back are two ways


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-10, 1e4)), max_size=40))
def test_whatever_is_observed_the_way_stays_usable(samples: list[tuple[float, float]]) -> None:
    link = Links().take("p", "d")
    for moved, seconds in samples:
        link.observe(moved_tokens=moved, seconds=seconds)
    assert link.way.setup_s >= 0
    assert 100.0 <= link.way.tokens_per_s <= 1e8


def test_a_way_that_failed_is_left_alone_for_a_while_and_an_engine_that_is_gone_is_forgotten() -> None:
    known = Links(open_s=30.0)
    known.take("p", "d").breaker.failed(100.0, probe=True)
    assert known.way("p", "d", 129.0) is None
    assert known.way("p", "e", 129.0) is not None
    assert known.way("p", "d", 130.0) is not None
    known.take("p", "d").breaker.failed(130.0, probe=True)  # and again: anew
    assert known.way("p", "d", 159.0) is None
    known.forget("d")
    assert known.way("p", "d", 159.0) is not None
    assert len(known) == 0


def test_the_number_of_ways_is_bounded_and_what_was_given_up_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 3)
    known = Links()
    for number in range(3):
        known.take("p", f"d{number}").breaker.failed(0.0, probe=True)
    known.take("p", "d0")
    known.take("p", "d3")
    assert (len(known), known.dropped) == (3, 1)
    assert known.way("p", "d1", 0.0) is not None
    assert known.way("p", "d0", 0.0) is None
