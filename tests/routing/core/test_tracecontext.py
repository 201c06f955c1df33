"""Well formed whatever comes in."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from routing.core.tracecontext import child

TRACE, SPAN = "a" * 32, "b" * 16
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_good_parent_is_continued_with_a_span_of_ours() -> None:
    assert child([PARENT], trace_id=TRACE, span_id=SPAN) == f"00-4bf92f3577b34da6a3ce929d0e0e4736-{SPAN}-01"


def test_two_parents_are_none() -> None:
    assert child([PARENT, PARENT], trace_id=TRACE, span_id=SPAN) == f"00-{TRACE}-{SPAN}-00"


@given(st.lists(st.text(max_size=60), max_size=2))
def test_anything_else_starts_a_new_root(presented: list[str]) -> None:
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", child(presented, trace_id=TRACE, span_id=SPAN))
