"""What several routers say of one engine's residency is what the least sure of them says."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.residency_said import SURENESS, Said


def row(state: Any, reason: Any = "ok", since: Any = None, blocks: Any = None) -> dict[str, Any]:
    return {"residency": state, "residency_reason": reason, "residency_since": since, "event_blocks": blocks}


def summed(*rows: dict[str, Any]) -> Said:
    said = Said()
    for one in rows:
        said = said.plus(one)
    return said


def test_the_least_sure_state_stands_with_its_own_reason_and_its_own_time() -> None:
    rows = (row("exact", "ok", 500.0, 40), row("degraded", "gap", 980.0, 7), row("warming", "late_join", 910.0, 9))
    for order in permutations(rows):
        assert summed(*order) == Said("degraded", frozenset({"gap"}), 980.0, 40, 3)
    assert summed(rows[0]) == Said("exact", frozenset({"ok"}), 500.0, 40, 1)


def test_of_the_same_state_all_reasons_stand_and_the_longest_time() -> None:
    rows = (row("warming", "restart", 995.0), row("warming", "late_join", 940.0), row("warming", "restart"))
    for order in permutations(rows):
        assert summed(*order) == Said("warming", frozenset({"restart", "late_join"}), 940.0, None, 3)


def test_a_word_of_a_newer_router_is_the_least_sure_and_stands_as_it_is() -> None:
    assert summed(row("history"), row("frozen", "cold", 999.0), row("exact")) == Said("frozen", frozenset({"cold"}), 999.0, None, 3)


@pytest.mark.parametrize("odd", [{}, row(None), row(""), row(7), row(["exact"]), row(None, "gap", 3.0)])
def test_what_says_no_state_tells_nothing(odd: dict[str, Any]) -> None:
    assert summed(odd) == Said()
    known = summed(row("warming", "restart", 995.0, 3))
    assert known.plus(odd) == known
    assert known.plus(row("warming", 9, "long", True)) == Said("warming", frozenset({"restart"}), 995.0, 3, 2)


@given(st.permutations([row(state, state[:3], float(number), number) for number, state in enumerate(SURENESS)]))
def test_the_order_of_routers_does_not_matter(rows: list[dict[str, Any]]) -> None:
    assert summed(*rows) == Said("history", frozenset({"his"}), 0.0, 3, 4)
