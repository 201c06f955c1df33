"""Which two replicas share a request, and when none should: sums by hand, and laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routing.core import pairs
from routing.core.pairs import Pair, Room, Way
from routing.core.policy import RoutingPolicy
from routing.core.scheduler import decide
from routing.core.types import Ask, Decision, Replica
from tests.routing.core import fleets as draw

ASK = Ask(prompt_tokens=8000, prefix_key=b"k")
WAY = Way(setup_s=0.02, tokens_per_s=40_000.0)
ways = st.builds(Way, setup_s=st.floats(0, 1), tokens_per_s=st.sampled_from([1000.0, 40_000.0, 1e6]))


def replica(name: str, **more: Any) -> Replica:
    return Replica(id=name, name=name, **{"prefill_tokens_per_s": 8000.0, "fixed_s": 0.03, "decode_interference": 0.0, **more})


def chosen(prefills: list[Replica], rooms: list[Room], *, ask: Ask = ASK, local_s: float = 60.0, way: Way | None = WAY) -> Pair | None:
    return pairs.choose(ask, prefills, rooms, lambda _p, _d: way, local_s=local_s)


def test_the_cost_of_a_pair_by_hand() -> None:
    """P: 4,000 of 8,000 held at 0.5, so 6,000 to compute, 2,000 ahead. D holds 2,000 for sure and has 800 tokens ahead."""
    p = replica("p", matched_tokens=4000, confidence=0.5, queued_tokens=2000.0)
    d = replica("d", matched_tokens=2000, confidence=1.0, queued_tokens=800.0)
    found = pairs.pair(ASK, p, d, WAY)
    assert found.prefill_s == pytest.approx(2000 / 8000 + 0.03 + 6000 / 8000)
    assert found.moved_tokens == 6000.0
    assert found.transfer_s == pytest.approx(0.02 + 6000 / 40_000)
    assert found.admit_s == pytest.approx(800 / 8000 + 0.03)
    assert found.ttft_s == pytest.approx(1.03 + 0.17 + 0.13)


def test_busy_decodes_stretch_the_step_that_admits() -> None:
    d = replica("d", decode_interference=0.01, active_decodes=50.0)
    assert pairs.pair(ASK, replica("p"), d, WAY).admit_s == pytest.approx(0.03 * 1.5)


@pytest.mark.parametrize(
    ("tokens", "matched", "expected"),
    [
        (1023, 0, False),  # too short
        (1024, 0, True),
        (8000, 7489, False),  # 511 to compute
        (8000, 7488, True),
    ],
)
def test_a_short_or_warm_prompt_stays_where_it_is(tokens: int, matched: int, expected: bool) -> None:
    room = Room(replica("d", matched_tokens=matched, confidence=1.0))
    assert (chosen([replica("p")], [room], ask=replace(ASK, prompt_tokens=tokens)) is not None) is expected


def test_the_long_way_must_be_a_tenth_shorter() -> None:
    prefills, rooms = [replica("p")], [Room(replica("d"))]
    total_s = pairs.pair(ASK, prefills[0], rooms[0].replica, WAY).ttft_s
    assert chosen(prefills, rooms, local_s=total_s / 0.9) is None
    found = chosen(prefills, rooms, local_s=total_s / 0.9 + 1e-6)
    assert found is not None
    assert found.local_s == pytest.approx(total_s / 0.9)


def test_what_either_side_holds_counts() -> None:
    cold, warm = replica("p1"), replica("p2", matched_tokens=6000, confidence=0.9)
    found = chosen([cold, warm], [Room(replica("d"))])
    assert found is not None
    assert found.prefill.id == "p2"
    near = Room(replica("d2", matched_tokens=6000, confidence=0.9))
    found = chosen([cold], [Room(replica("d1")), near])
    assert found is not None
    assert found.decode.id == "d2"


def test_the_decode_side_is_who_has_room_and_then_who_is_least_disturbed() -> None:
    """A full cache is worse than a longer way; with room alike, fewer decodes."""
    full = Room(replica("d1", matched_tokens=6000, confidence=0.9), capacity_tokens=100_000, free_tokens=1000.0)
    scarce = Room(replica("d2"), capacity_tokens=100_000, free_tokens=9000.0)
    roomy = Room(replica("d3"), capacity_tokens=100_000, free_tokens=50_000.0)
    roomier = Room(replica("d4"), capacity_tokens=100_000, free_tokens=60_000.0)

    def decode(*rooms: Room) -> str:
        found = chosen([replica("p")], list(rooms))
        assert found is not None
        return found.decode.id

    assert decode(full, scarce) == "d2"
    assert decode(full, scarce, roomy) == "d3"
    assert decode(roomy, roomier) == "d4"
    disturbed = Room(replica("d5", decode_interference=0.001, active_decodes=40.0))
    assert decode(disturbed, Room(replica("d6"))) == "d6"
    assert decode(full) == "d1"  # who has no room is still better than nobody


def test_a_way_that_failed_is_not_taken() -> None:
    assert chosen([replica("p")], [Room(replica("d"))], way=None) is None


def fleet_of(data: st.DataObject) -> tuple[Ask, list[Replica], list[Room]]:
    ask = data.draw(draw.asks)
    both = data.draw(draw.fleets(least=2))
    cut = data.draw(st.integers(1, len(both) - 1))
    free = st.none() | st.floats(0, 500_000)
    rooms = [Room(one, data.draw(st.none() | st.integers(1, 500_000)), data.draw(free)) for one in both[cut:]]
    return ask, both[:cut], rooms


@given(st.data(), ways, st.floats(0.001, 1e4))
def test_no_pair_has_a_side_that_may_not_serve(data: st.DataObject, way: Way, local_s: float) -> None:
    """A refusal of isolation, or any other, on either side; those that are refused have no influence either."""
    ask, prefills, rooms = fleet_of(data)
    found = chosen(prefills, rooms, ask=ask, local_s=local_s, way=way)
    if found is not None:
        assert found.prefill.refusal is None
        assert found.decode.refusal is None
        assert found.ttft_s < 0.9 * local_s
    kept = [one for one in prefills if one.refusal is None], [room for room in rooms if room.replica.refusal is None]
    assert chosen(*kept, ask=ask, local_s=local_s, way=way) == found


@given(st.data(), ways)
def test_the_order_of_the_fleet_does_not_count(data: st.DataObject, way: Way) -> None:
    ask, prefills, rooms = fleet_of(data)
    mixed = data.draw(st.permutations(prefills)), data.draw(st.permutations(rooms))
    assert chosen(list(mixed[0]), list(mixed[1]), ask=ask, way=way) == chosen(prefills, rooms, ask=ask, way=way)


@given(st.data(), ways)
def test_more_residency_on_either_side_never_raises_a_cost(data: st.DataObject, way: Way) -> None:
    ask = data.draw(draw.asks)
    p, d = data.draw(draw.fleets(least=2))[:2]
    before = pairs.pair(ask, p, d, way).ttft_s
    more = data.draw(st.integers(0, 100_000))
    for p_more, d_more in ((more, 0), (0, more), (more, more)):
        warmer = replace(p, matched_tokens=p.matched_tokens + p_more), replace(d, matched_tokens=d.matched_tokens + d_more)
        assert pairs.pair(ask, *warmer, way).ttft_s <= before + 1e-9


@given(st.data(), ways)
def test_more_work_ahead_never_lowers_a_cost(data: st.DataObject, way: Way) -> None:
    ask = data.draw(draw.asks)
    p, d = data.draw(draw.fleets(least=2))[:2]
    before = pairs.pair(ask, p, d, way).ttft_s
    more = data.draw(draw.amounts)
    busier = replace(p, queued_tokens=p.queued_tokens + more), replace(d, queued_tokens=d.queued_tokens + more)
    assert pairs.pair(ask, busier[0], d, way).ttft_s >= before - 1e-9
    assert pairs.pair(ask, p, busier[1], way).ttft_s >= before - 1e-9


@given(st.data())
def test_a_pair_stands_in_the_decision_where_its_decode_replica_stood(data: st.DataObject) -> None:
    """Everyone is still accounted for once, the terms are the pair's seconds, and what is said of reuse is the prefill replica's."""
    ask, prefills, rooms = fleet_of(data)
    decision = decide(ask, [room.replica for room in rooms], RoutingPolicy(policy="ettft"))
    assume(isinstance(decision, Decision))
    assert isinstance(decision, Decision)
    found = chosen(prefills, rooms, ask=ask, local_s=1e9)
    assume(found is not None)
    assert found is not None
    whole = pairs.decided(ask, decision, found)
    assert sorted(one.replica_id for one in whole.candidates) == sorted(room.replica.id for room in rooms)
    assert (whole.candidates[0], whole.chosen.replica_id) == (whole.chosen, found.decode.id)
    assert sum(whole.chosen.terms.values()) == pytest.approx(whole.chosen.expected_ttft_s)
    assert whole.chosen.matched_tokens == found.prefill.matched_tokens
    first, second = pairs.sides(ask, found)
    assert (first.replica_id, second.replica_id, second.uncached_tokens) == (found.prefill.id, found.decode.id, 1.0)
