"""The last turns of conversations: where a prompt leaves them, and whose memory they take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.core import prefix
from routing.core.divergence import MAX_LINEAGES, OVERHEAD_BYTES, Turn, Turns, common_blocks, prints

SEED, NS, OWNER = b"seed" * 8, b"n" * 16, b"o" * 16


def _prints(text: bytes) -> bytes:
    return prints(prefix.chain(SEED, text))


@given(st.binary(max_size=2000), st.binary(max_size=2000), st.binary(max_size=2000))
def test_common_blocks_are_the_whole_blocks_of_the_common_bytes(start: bytes, one: bytes, other: bytes) -> None:
    first, second = start + one, start + other
    same = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    assert common_blocks(_prints(first), _prints(second)) == same // prefix.BLOCK_BYTES


def test_an_edit_shows_where_it_is_and_a_longer_prompt_extends() -> None:
    turns = Turns()
    text = bytes(range(256)) * 20
    assert turns.compare(NS, b"chat", _prints(text), owner=OWNER) is None
    turns.note(NS, b"chat", Turn(_prints(text), "http://a", 0), owner=OWNER)
    longer = turns.compare(NS, b"chat", _prints(text + b"x" * 500), owner=OWNER)
    assert longer is not None
    assert longer.extends
    assert longer.common_blocks == longer.turn_blocks == prefix.whole_blocks(len(text))
    edited = turns.compare(NS, b"chat", _prints(text[:700] + b"!" + text[701:]), owner=OWNER)
    assert edited is not None
    assert not edited.extends
    assert edited.common_blocks == 700 // prefix.BLOCK_BYTES
    late = turns.compare(NS, b"chat", _prints(text[:-1] + b"!"), owner=OWNER)
    assert late is not None
    assert late.common_blocks == late.turn_blocks - 1
    assert edited.target == "http://a"


def test_a_prompt_that_is_the_beginning_of_a_turn_differs_nowhere() -> None:
    turns = Turns()
    text = bytes(range(256)) * 20
    turns.note(NS, b"chat", Turn(_prints(text), "http://a", 0), owner=OWNER)
    for asked, differs in ((text[:1000], False), (text, False), (text + b"x" * 500, False), (text[:700] + b"!" + text[701:1000], True)):
        found = turns.compare(NS, b"chat", _prints(asked), owner=OWNER)
        assert found is not None
        assert found.differs is differs


def test_of_conversations_that_begin_alike_the_nearest_is_compared() -> None:
    turns = Turns()
    common, mine, theirs = b"s" * 1280, b"m" * 1280, b"t" * 1280
    for tail in (mine, theirs):
        turns.note(NS, b"hi", Turn(_prints(common + tail), tail[:1].decode(), 0), owner=OWNER)
    found = turns.compare(NS, b"hi", _prints(common + mine + b"more" * 100), owner=OWNER)
    assert found is not None
    assert found.extends
    assert found.target == "m"


def test_nobody_else_s_turns_are_compared() -> None:
    turns = Turns()
    text = _prints(b"x" * 1000)
    turns.note(NS, b"chat", Turn(text, "http://a", 0), owner=OWNER)
    assert turns.compare(NS, b"chat", text, owner=OWNER) is not None
    assert turns.compare(NS, b"chat", text, owner=b"p" * 16) is None
    assert turns.compare(b"m" * 16, b"chat", text, owner=OWNER) is None
    assert turns.compare(NS, b"talk", text, owner=OWNER) is None
    turns.forget_owner(OWNER)
    assert turns.compare(NS, b"chat", text, owner=OWNER) is None


def test_the_largest_owner_pays_and_the_budget_holds() -> None:
    turns = Turns(budget_bytes=40 * OVERHEAD_BYTES)
    turns.note(NS, b"modest", Turn(b"", "a", 0), owner=b"modest")
    for number in range(200):
        turns.note(NS, number.to_bytes(4, "big"), Turn(bytes(100), "a", 0), owner=b"hog")
        assert turns.size_bytes <= 40 * OVERHEAD_BYTES
    assert turns.dropped > 150
    assert turns.compare(NS, b"modest", b"", owner=b"modest") is not None
    assert turns.compare(NS, (199).to_bytes(4, "big"), b"", owner=b"hog") is not None
    assert turns.compare(NS, (0).to_bytes(4, "big"), b"", owner=b"hog") is None


def test_the_namespace_before_is_remembered_by_who_asks() -> None:
    turns = Turns()
    assert turns.follow("q", b"one", b"s1", owner=OWNER) is None
    assert turns.follow("q", b"one", b"s1", owner=OWNER) is None
    former = turns.follow("q", b"two", b"s2", owner=OWNER)
    assert former is not None
    assert (former.namespace, former.seed) == (b"one", b"s1")
    assert turns.follow("q", b"two", b"s2", owner=OWNER) == former
    assert turns.follow("q", b"one", b"s1", owner=b"other") is None
    for number in range(MAX_LINEAGES):
        turns.follow(number, b"one", b"s1", owner=OWNER)
    assert turns.follow("q", b"three", b"s3", owner=OWNER) is None
    assert "s1" not in repr(former)
