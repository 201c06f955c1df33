"""What a health check without an answer says of an engine, and how many such checks make it silent."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.silence import LATE_SHARE, MEANINGS, Check, Meaning, in_a_row, meaning

NOTHING = Check(answered=False, words=0, asked=True, lasted_s=2.0, late_s=0.0)


def test_a_check_that_brought_nothing_at_all_is_silent() -> None:
    assert meaning(NOTHING) == "silent"
    assert meaning(replace(NOTHING, lasted_s=0.0)) == "silent"  # a connection that is refused takes no time


def test_an_engine_that_said_anything_to_anybody_spoke() -> None:
    """Also where the router was busy: it heard it all the same."""
    for late_s in (0.0, 2.0):
        assert meaning(replace(NOTHING, answered=True, late_s=late_s)) == "spoke"
        assert meaning(replace(NOTHING, words=1, late_s=late_s)) == "spoke"


@pytest.mark.parametrize("changes", [{"asked": False}, {"late_s": LATE_SHARE * 2.0 + 0.01}, {"late_s": 2.0}])
def test_where_the_router_could_not_ask_or_hear_nothing_is_said_of_the_engine(changes: dict[str, float]) -> None:
    assert meaning(replace(NOTHING, **changes)) == "unsure"  # type: ignore[arg-type] # fields by name
    assert meaning(replace(NOTHING, late_s=LATE_SHARE * 2.0)) == "silent"


@given(st.lists(st.sampled_from(MEANINGS)))
def test_in_a_row_are_the_silent_ones_since_the_engine_spoke_last(meanings: list[Meaning]) -> None:
    count = 0
    for one in meanings:
        count = in_a_row(count, one)
    assert count == [*takewhile(lambda one: one != "spoke", reversed(meanings))].count("silent")
