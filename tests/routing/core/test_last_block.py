"""Whether an engine computes the last block anew that it holds: learned from answers that tell, and unlearned."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.last_block import SURE, LastBlock

BLOCK = 64


def see(said: LastBlock, short_tokens: int, held_blocks: int = 10) -> None:
    held_tokens = held_blocks * BLOCK
    said.observe(held_tokens=held_tokens, cached_tokens=held_tokens - short_tokens, block_tokens=BLOCK)


def test_it_is_learned_from_answers_in_a_row_and_unlearned_by_as_many() -> None:
    said = LastBlock()
    for number in range(1, SURE + 1):
        see(said, BLOCK)
        assert (said.withheld, said.known) == (number == SURE, number == SURE)
    for number in range(1, SURE + 1):
        see(said, 0)
        assert said.withheld == (number < SURE)


def test_a_hit_of_one_block_tells_too() -> None:
    said = LastBlock()
    for _ in range(SURE):
        see(said, BLOCK, held_blocks=1)
    assert said.withheld


@pytest.mark.parametrize("short_tokens", [1, BLOCK - 1, 2 * BLOCK, 10 * BLOCK, -BLOCK])
def test_what_falls_short_by_anything_else_tells_nothing(short_tokens: int) -> None:
    said = LastBlock()
    for _ in range(5 * SURE):
        see(said, short_tokens)
        see(said, 0, held_blocks=0)
    assert (said.answers, said.withheld) == (0, False)


@pytest.mark.parametrize("drops", [True, False])
def test_three_answers_in_ten_that_say_otherwise_do_not_matter_in_the_long_run(drops: bool) -> None:
    """Events that are late, blocks that went a moment ago."""
    said, dice, right = LastBlock(), random.Random(7), 0
    for number in range(2000):
        see(said, BLOCK if drops == (dice.random() < 0.7) else 0)
        right += number >= 100 and said.withheld == drops
    assert right > 0.97 * 1900


@given(st.lists(st.sampled_from([0, BLOCK, 7]), max_size=60))
def test_it_changes_only_after_as_many_answers_as_make_it_sure(shorts: list[int]) -> None:
    said, since = LastBlock(), 0
    for short_tokens in shorts:
        before, since = said.withheld, since + (short_tokens != 7)
        see(said, short_tokens)
        if said.withheld != before:
            assert since >= SURE
            since = 0
