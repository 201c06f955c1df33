"""What is shared: one tenant, or several together, never take the last of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.shares import FACTOR, Shares


@given(st.integers(1, 5000), st.integers(1, 6))
def test_owners_that_take_all_they_can_leave_room_for_one_more(whole: int, greedy: int) -> None:
    """However many there are, in turns: what is left is as much as the rule says, and whoever holds nothing gets something while anything is left."""
    shares = Shares(whole)
    wanting = set(range(greedy))
    while wanting:
        wanting = {owner for owner in wanting if shares.take(owner)}
    left = whole - shares.used
    assert left >= whole // (1 + FACTOR * greedy)
    assert shares.take("newcomer") is (left > 0)


@given(st.integers(1, 5000))
def test_one_alone_gets_nearly_all(whole: int) -> None:
    shares = Shares(whole)
    while shares.take("only"):
        pass
    assert shares.held("only") >= whole * FACTOR // (FACTOR + 1)


steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()), max_size=60)


@given(st.integers(1, 100), steps)
def test_accounts_add_up_and_are_empty_when_all_is_given_back(whole: int, taken: list[tuple[str, int, bool]]) -> None:
    shares = Shares(whole)
    model: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for owner, amount, give in taken:
        if give and model[owner]:
            shares.give_back(owner, model[owner].pop())
        elif shares.take(owner, amount):
            model[owner].append(amount)
        assert shares.used == sum(sum(held) for held in model.values()) <= whole
        assert {one: shares.held(one) for one in model} == {one: sum(held) for one, held in model.items()}
    for owner, held in model.items():
        for amount in held:
            shares.give_back(owner, amount)
    assert (shares.used, shares._held) == (0, {})


def test_what_was_not_held_cannot_be_given_back() -> None:
    shares = Shares(3)
    assert shares.take("a")
    with pytest.raises(ValueError, match="more is given back"):
        shares.give_back("b")
    assert shares.used == 1


def test_nothing_more_is_no_refusal_beyond_ones_share_either() -> None:
    shares = Shares(16)
    assert shares.take("a", 14)
    assert shares.take("b", 1)  # what is left makes a smaller share than "a" holds
    assert not shares.take("a")
    assert (shares.take("a", 0), shares.refused, shares.held("a")) == (True, 1, 14)
    assert (shares.take("c", 0), shares._held) == (True, {"a": 14, "b": 1})
