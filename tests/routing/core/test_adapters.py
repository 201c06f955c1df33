"""Slots as believed, the price of each state by hand, and that an adapter in a slot never loses to the same replica without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import ttft
from routing.core.adapters import HALF_LIFE_S, KEPT_S, MAX_NAMES, MOST_LOAD_S, PRIOR_LOAD_S, AdapterSlots, Price
from routing.core.policy import RoutingPolicy, compile_routing
from routing.core.scheduler import decide
from routing.core.types import Ask, Decision, Replica
from tests.routing.core import fleets as draw

names = st.sampled_from(["ada", "bob", "cyd", "dan"])
times = st.floats(0, 2000)


def _slots(*used: str, slots: int | None = 2, at_s: float = 0.0) -> AdapterSlots:
    made = AdapterSlots()
    made.observe(used, slots, at_s)
    return made


@pytest.mark.parametrize(
    ("slots", "price"),
    [
        (_slots("ada"), Price("active")),
        (_slots("bob"), Price("free", PRIOR_LOAD_S)),
        (_slots(slots=None), Price("free", PRIOR_LOAD_S)),
        (_slots("bob", "cyd", at_s=HALF_LIFE_S), Price("full", PRIOR_LOAD_S, PRIOR_LOAD_S)),
        (_slots("bob", "cyd"), Price("full", PRIOR_LOAD_S, PRIOR_LOAD_S / 2)),
        (_slots("ada", "bob", "cyd"), Price("full", PRIOR_LOAD_S, PRIOR_LOAD_S / 2)),
        (_slots("bob", "cyd", at_s=HALF_LIFE_S - KEPT_S - 1), Price("free", PRIOR_LOAD_S)),
        (_slots("ada", at_s=HALF_LIFE_S - KEPT_S - 1), Price("free", PRIOR_LOAD_S)),
    ],
)
def test_each_state_by_hand(slots: AdapterSlots, price: Price) -> None:
    found = slots.price("ada", HALF_LIFE_S)
    assert found.slot == price.slot
    assert (found.own_s, found.displaced_s) == pytest.approx((price.own_s, price.displaced_s))


def test_the_first_request_pays_and_those_that_follow_wait_for_the_rest() -> None:
    slots = _slots()
    assert slots.dispatched("ada", 10.0)
    assert not slots.dispatched("ada", 10.05)
    follower = slots.price("ada", 10.05)
    assert follower.slot == "loading"
    assert follower.own_s == pytest.approx(PRIOR_LOAD_S - 0.05)
    assert slots.price("ada", 10.01 + PRIOR_LOAD_S) == Price("active")


def test_what_was_loaded_and_waited_for_is_counted_and_what_is_in_a_slot_told() -> None:
    slots = _slots(slots=2)
    slots.dispatched("ada", 10.0)
    slots.dispatched("ada", 10.05)
    slots.dispatched("bob", 10.1)
    assert (slots.loads, slots.waits, slots.held(10.1)) == (2, 1, (2, 2))
    slots.dispatched("ada", 10.01 + PRIOR_LOAD_S)
    slots.loaded("bob")
    assert (slots.loads, slots.waits, slots.held(11.0)) == (2, 1, (2, 0))
    slots.dispatched("cyd", 11.0)
    assert (slots.loads, slots.dropped, slots.held(11.0)) == (3, 1, (2, 1))
    assert slots.held(11.0 + KEPT_S + 1) == (0, 0)
    slots.clear()
    assert (slots.loads, slots.waits, slots.held(11.0)) == (3, 1, (0, 0))


def test_a_scrape_ends_the_loading() -> None:
    slots = _slots()
    slots.dispatched("ada", 10.0)
    slots.observe(["ada"], 2, 10.01)
    assert slots.price("ada", 10.01) == Price("active")


def test_a_restart_empties_the_slots_and_keeps_what_was_learned() -> None:
    slots = _slots("ada")
    for _ in range(20):
        slots.observe_load(1.5)
    slots.clear()
    assert slots.price("ada", 0.0) == Price("free", 1.5)


def test_an_adapter_that_is_not_served_leaves_its_slot() -> None:
    slots = _slots("ada", "bob")
    slots.forget("ada")
    assert slots.price("cyd", 0.0).slot == "free"


def test_a_few_odd_samples_move_nothing() -> None:
    slots = _slots()
    for seconds in (9.0, 9.0, 9.0):
        slots.observe_load(seconds)
    assert slots.load_s == PRIOR_LOAD_S


@given(st.lists(st.floats(-1e9, 1e9)))
def test_what_is_learned_stays_within_its_bounds(samples: list[float]) -> None:
    slots = _slots()
    for seconds in samples:
        slots.observe_load(seconds)
    assert 0 <= slots.load_s <= MOST_LOAD_S


@given(st.lists(st.tuples(st.sampled_from(["send", "see", "forget"]), names, times), max_size=30), st.none() | st.integers(1, 3), names, times)
def test_no_more_adapters_than_slots_and_an_active_one_is_never_dearer(
    history: list[tuple[str, str, float]], count: int | None, name: str, now_s: float
) -> None:
    slots = _slots(slots=count)
    for act, one, at_s in sorted(history, key=lambda row: row[2]):
        if act == "send":
            slots.dispatched(one, at_s)
        elif act == "see":
            slots.observe([one], count, at_s)
        else:
            slots.forget(one)
        assert len(slots.used) <= (count or MAX_NAMES)
        assert set(slots.loading) <= set(slots.used)
    now_s += 2000.0
    price = slots.price(name, now_s)
    assert 0 <= price.own_s <= slots.load_s
    assert 0 <= price.displaced_s <= slots.load_s
    slots.observe([name], count, now_s)
    assert slots.price(name, now_s) == Price("active")


@pytest.mark.parametrize(
    ("here", "there", "chosen"),
    [
        ({}, {"adapter_s": 0.2}, "here"),
        ({"queued_tokens": 1200.0}, {"adapter_s": 0.2}, "here"),  # 0.15 s ahead of it
        ({"queued_tokens": 2400.0}, {"adapter_s": 0.2}, "there"),  # 0.3 s
        ({"queued_tokens": 2400.0}, {"adapter_s": 0.2, "displaced_s": 0.2}, "here"),  # a slot has to be made
        ({"queued_tokens": 4000.0}, {"adapter_s": 0.2, "displaced_s": 0.2}, "there"),
        ({"adapter_s": 0.05}, {"adapter_s": 0.2}, "here"),  # it is being loaded
    ],
)
@pytest.mark.parametrize("policy", ["ettft", "weighted"])
def test_where_it_is_loaded_unless_loading_is_cheaper(policy: str, here: dict[str, Any], there: dict[str, Any], chosen: str) -> None:
    replicas = [Replica(id=name, name=name, adapter="ada", **more) for name, more in (("here", here), ("there", there))]
    decision = decide(Ask(prompt_tokens=800, prefix_key=b"k"), replicas, compile_routing({"policy": policy}))
    assert isinstance(decision, Decision)
    assert decision.chosen.replica_id == chosen
    for candidate in decision.candidates:
        more = here if candidate.replica_id == "here" else there
        assert candidate.terms["adapter"] == more.get("adapter_s", 0.0) + more.get("displaced_s", 0.0)


@given(draw.asks, draw.fleets(eligible=1), st.floats(0.5, 10), st.floats(0, 10))
def test_an_active_adapter_never_loses_to_the_same_replica_without_it(ask: Ask, fleet: list[Replica], load_s: float, displaced_s: float) -> None:
    active = replace(fleet[0], id="active", adapter="ada", slot="active")
    absent = replace(fleet[0], id="absent", adapter="ada", slot="full", adapter_s=load_s, displaced_s=displaced_s)
    decision = decide(ask, [absent, active], RoutingPolicy(tie_share=0.0))
    assert isinstance(decision, Decision)
    assert decision.chosen.replica_id == "active"
    assert ttft.expected_ttft_s(ask, absent) == pytest.approx(ttft.expected_ttft_s(ask, active) + load_s)
    assert ttft.estimate(ask, absent).ttft_s == pytest.approx(ttft.expected_ttft_s(ask, absent))


def test_an_answer_ends_the_loading() -> None:
    """Whoever comes after it finds the adapter in its slot, although loading is thought to take longer; before it, what is left has a price."""
    slots = _slots("bob")
    assert slots.dispatched("ada", 0.0)
    assert slots.price("ada", 0.005) == Price("loading", pytest.approx(PRIOR_LOAD_S - 0.005))  # type: ignore[arg-type]  # a float's stand-in
    slots.loaded("ada")
    assert slots.price("ada", 0.005) == Price("active")
