"""Stretches split where prompts part and grow together again where nothing tells them apart: a conversation stays a few steps long."""

from __future__ import annotations

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
