"""Blocks that several replicas hold: shares add up to what is distinct, exactly where all is looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.duplication import Held, measure

_blocks = st.sets(st.binary(min_size=1, max_size=1), max_size=12)
holdings = st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from([b"n", b"m"]), _blocks), max_size=4)


def _dicts(found: dict[str, dict[bytes, set[bytes]]]) -> dict[str, dict[bytes, dict[bytes, object]]]:
    return {holder: {name: dict.fromkeys(sorted(held)) for name, held in held_by.items()} for holder, held_by in found.items()}


@given(holdings)
def test_shares_add_up_to_the_distinct_blocks(found: dict[str, dict[bytes, set[bytes]]]) -> None:
    """Blocks of two namespaces are never the same, whatever their digests."""
    seen = measure(_dicts(found))
    distinct = {(name, block) for held in found.values() for name, blocks in held.items() for block in blocks}
    assert sum(one.distinct for one in seen.values()) == pytest.approx(len(distinct))
    assert {holder: one.resident for holder, one in seen.items()} == {holder: sum(map(len, held.values())) for holder, held in found.items()}


def test_a_sample_of_large_caches_comes_close_and_keeps_its_bound() -> None:
    """Half of what each holds is shared by both; look-ups are counted, not only promised."""
    asked = 0

    class Counting(dict[bytes, object]):
        def __contains__(self, key: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(key)

    shared = {f"s{number}".encode(): None for number in range(20_000)}
    one, two = ({f"{who}{number}".encode(): None for number in range(20_000)} for who in "ab")
    mixed = [Counting(), Counting()]
    for held, own in zip(mixed, (one, two), strict=True):
        for pair in zip(shared, own, strict=True):
            held.update(dict.fromkeys(pair))
    seen = measure({"a": {b"n": mixed[0]}, "b": {b"n": mixed[1]}}, lookups=4000)
    assert sum(held.distinct for held in seen.values()) == pytest.approx(60_000, rel=0.05)
    assert asked <= 4100


def test_of_many_namespaces_each_turn_looks_at_others() -> None:
    """All of them come to be looked at, and the shares stay those of everything."""
    alike: dict[bytes, dict[bytes, object]] = {f"n{number}".encode(): {b"x": None} for number in range(1000)}
    apart: dict[bytes, dict[bytes, object]] = {name: {b"y": None} for name in list(alike)[:500]}
    asked = [measure({"a": alike, "b": {**alike, **apart}}, turn=turn, lookups=100)["a"] for turn in range(40)]
    assert {one.resident for one in asked} == {1000}
    assert sum(one.distinct for one in asked) / len(asked) == pytest.approx(750, rel=0.1)  # half are both's, half a's alone
    assert measure({}) == {}
    assert measure({"a": {}}) == {"a": Held(0, 0.0)}
