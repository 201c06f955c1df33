"""Stretches split where prompts part and grow together again where nothing tells them apart: a conversation stays a few steps long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.residency import HistoryIndex

NAMESPACE, URL, OWNER = b"n" * 16, "r", b"o"


def _chain(name: str, blocks: int) -> tuple[bytes, ...]:
    return tuple(f"{name}{number}".encode().ljust(16, b".") for number in range(blocks))


def _answered(index: HistoryIndex, digests: tuple[bytes, ...], at_s: float) -> None:
    ticket = index.dispatched(NAMESPACE, digests, URL, owner=OWNER)
    index.confirmed(NAMESPACE, digests, URL, ticket, at_s, owner=OWNER)


def _stretches(index: HistoryIndex) -> list[int]:
    return sorted(len(stretch.digests) for stretch in index._replicas[URL].held(OWNER).values())


def test_a_conversation_of_many_turns_is_a_few_stretches() -> None:
    index, whole = HistoryIndex(), _chain("a", 200)
    for turn in range(1, 21):
        _answered(index, whole[: 10 * turn], float(turn))
    assert _stretches(index) == [10, 190]  # the last turn's own blocks have been used by it alone
    assert index.match(NAMESPACE, whole, URL, 20.0, owner=OWNER).blocks == 200


def test_prompts_that_part_share_their_beginning_and_keep_their_ends() -> None:
    index, shared = HistoryIndex(), _chain("s", 50)
    ends = [shared + _chain(name, 5) for name in "xyz"]
    for at_s, digests in enumerate(ends):
        _answered(index, digests, float(at_s))
    assert _stretches(index) == [5, 5, 5, 50]
    for at_s, digests in enumerate(ends):
        found = index.match(NAMESPACE, digests, URL, 3.0, owner=OWNER)
        assert (found.blocks, found.age_s) == (55, 3.0 - at_s)


def test_what_is_in_flight_keeps_stretches_apart_until_it_is_settled() -> None:
    index, whole = HistoryIndex(), _chain("a", 30)
    first = index.dispatched(NAMESPACE, whole[:10], URL, owner=OWNER)
    second = index.dispatched(NAMESPACE, whole, URL, owner=OWNER)
    index.dropped(NAMESPACE, whole, URL, second, owner=OWNER)
    assert index.match(NAMESPACE, whole, URL, 0.0, owner=OWNER).blocks == 10
    index.confirmed(NAMESPACE, whole[:10], URL, first, 0.0, owner=OWNER)
    assert index.match(NAMESPACE, whole, URL, 0.0, owner=OWNER).source == "inferred"


def _wide(blocks: int) -> int:
    """Two blocks of one, then blocks of four."""
    return blocks if blocks <= 2 else 2 + 4 * (blocks - 2)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=1, max_size=12), st.integers(1, 40))
def test_where_blocks_are_not_of_one_size_a_bound_is_on_what_they_cover(sent: list[tuple[str, int]], capacity: int) -> None:
    """After any dispatches an index with wide blocks counts exactly what the blocks that it still finds cover, and holds no more than it may."""
    index = HistoryIndex(extent=_wide)
    index.set_capacity(URL, capacity)
    for number, (name, blocks) in enumerate(sent):
        digests = _chain(name, blocks)
        ticket = index.dispatched(NAMESPACE, digests, URL, owner=OWNER)
        index.confirmed(NAMESPACE, digests, URL, ticket, float(number), owner=OWNER)
    held = {name: index.match(NAMESPACE, _chain(name, 9), URL, 0.0, owner=OWNER).blocks for name in "abc"}
    assert index.size(URL) == sum(_wide(blocks) for blocks in held.values()) <= capacity
    assert index.owners(URL).get(OWNER, 0) == index.size(URL)
    other = HistoryIndex(extent=_wide)
    other.restore(index.recent(URL, OWNER, 1000), URL, owner=OWNER)
    assert (other.size(URL), other.recent(URL, OWNER, 1000)) == (index.size(URL), index.recent(URL, OWNER, 1000))


def test_confidence_is_the_mean_over_what_blocks_cover() -> None:
    """Two fresh blocks of one and an old block of four: the old one weighs twice as much as both others, and half as much where all count alike."""
    found = []
    for index in (HistoryIndex(extent=_wide), HistoryIndex()):
        for blocks, at_s in ((3, 0.0), (2, 300.0)):
            digests = _chain("a", blocks)
            index.confirmed(NAMESPACE, digests, URL, index.dispatched(NAMESPACE, digests, URL, owner=OWNER), at_s, owner=OWNER)
        found.append(index.match(NAMESPACE, _chain("a", 3), URL, 300.0, owner=OWNER))
    (wide, alike), old = found, math.exp(-1)
    assert (wide.blocks, alike.blocks) == (3, 3)
    assert wide.confidence == pytest.approx(0.8 * (2 + 4 * old) / 6)
    assert alike.confidence == pytest.approx(0.8 * (2 + old) / 3)
