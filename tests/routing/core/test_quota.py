"""The law of quotas, in simulated time: several routers that only hear of one another now and then keep one limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from routing.core import quota
from routing.core.quota import MINUTE_SLICES, MONTH_SLICES, MinuteMeter, MonthMeter, Terms
from tests.routing.core.quota_world import World

STEP = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3), st.integers(1, 60)),
    st.tuples(st.just("burst"), st.integers(0, 3), st.integers(1, 30)),
    st.tuples(st.just("greedy"), st.integers(0, 3), st.integers(1, 120)),
    st.tuples(st.just("exchange"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 200), st.integers(0, 90)),
    st.tuples(st.just("wait"), st.floats(0.001, 3.0), st.none()),
    st.tuples(st.just("rest"), st.floats(10.0, 130.0), st.none()),
)
CUT = st.tuples(st.sampled_from(["cut", "back"]), st.integers(0, 3), st.none())


def _play(world: World, steps: list[tuple[str, Any, Any]], *, overrun: bool) -> None:
    """Carry out the steps; ``overrun``: requests may come to use more than they reserved."""
    for what, one, other in steps:
        if what == "ask":
            world.ask(one % world.routers, other)
        elif what == "burst":
            for _ in range(20):
                world.ask(one % world.routers, other)
        elif what == "greedy":  # one after the other, each told at once
            for _ in range(other):
                world.ask(one % world.routers, 1)
                world.exchange(one % world.routers)
        elif what == "exchange":
            world.exchange(one % world.routers, answer_lost=other)
        elif what == "settle" and (running := world.running()):
            request = running[one % len(running)]
            world.settle(request, other if overrun else min(other, request.reserved))
        elif what == "cut":
            world.cut.add(one % world.routers)
        elif what == "back":
            world.cut.discard(one % world.routers)
        elif what in ("wait", "rest"):
            world.now_s += one


def _largest_window(world: World) -> int:
    """The most that passed in any sixty seconds."""
    moments = {one.at_s for one in world.requests} | {one.settled_at_s for one in world.requests if one.used is not None}
    return max((world.charged(at_s - quota.WINDOW_S, at_s) for at_s in moments), default=0)


def _overshoot(world: World, slices: int) -> int:
    """One slice for each router, a request larger than that being a slice of its own."""
    largest = max((one.reserved for one in world.requests), default=0)
    return world.routers * max(Terms(world.limit, world.routers).slice(slices), largest)


@settings(max_examples=300)
@given(
    steps=st.lists(STEP, max_size=120),
    limit=st.integers(1, 400),
    routers=st.integers(2, 4),
    errors_s=st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=4),
)
def test_no_minute_sees_more_than_the_limit_and_a_slice_for_each_router(
    steps: list[tuple[str, Any, Any]], limit: int, routers: int, errors_s: list[float]
) -> None:
    """Whatever comes when, however rarely routers hear of one another, whatever answers are lost, however clocks disagree by half a second."""
    world = World.minute(limit, routers, errors_s)
    _play(world, steps, overrun=False)
    assert _largest_window(world) <= limit + _overshoot(world, MINUTE_SLICES)


def test_who_has_not_heard_for_long_uses_a_slice_at_most() -> None:
    """One router uses the whole limit, telling each request; another that heard nothing of it passes one slice, and nothing once it has heard."""
    world = World.minute(100, 2)
    slice_of_one = world.terms.slice(MINUTE_SLICES)
    for _ in range(200):
        world.ask(0, 1)
        world.exchange(0)
    assert world.charged(0, world.now_s) == 100
    assert sum(world.ask(1, 1) is not None for _ in range(200)) == slice_of_one == 13
    world.exchange(1)
    assert world.ask(1, 1) is None


def test_what_others_used_is_gone_here_too() -> None:
    """Two that tell and hear of each request share the limit to the last one."""
    for world in (World.minute(100, 2), World.month(100, 2)):
        passed = 0
        for number in range(400):
            passed += world.ask(number % 2, 1) is not None
            world.exchange(number % 2)
        assert 100 <= passed <= 101


@settings(max_examples=200)
@given(steps=st.lists(STEP, max_size=120), limit=st.integers(1, 400))
def test_a_router_alone_passes_no_limit(steps: list[tuple[str, Any, Any]], limit: int) -> None:
    """Where nobody else counts, nothing is beyond the limit in any minute, and the slice is the whole of it."""
    world = World.minute(limit, 1)
    _play(world, steps, overrun=False)
    assert _largest_window(world) <= limit


@settings(max_examples=200)
@given(steps=st.lists(STEP, max_size=120), limit=st.integers(1, 2000), routers=st.integers(2, 4))
def test_no_month_sees_more_than_the_limit_and_a_slice_for_each_router(steps: list[tuple[str, Any, Any]], limit: int, routers: int) -> None:
    """As for the minute, where reservations are believed; a rest longer than that is a dead router's, so none is taken here."""
    world = World.month(limit, routers)
    _play(world, [step for step in steps if step[0] != "rest"][:40], overrun=False)
    total = sum(one.reserved if one.used is None else one.used for one in world.requests)
    assert total <= limit + _overshoot(world, MONTH_SLICES)


@settings(max_examples=200)
@given(steps=st.lists(STEP, max_size=100), routers=st.integers(1, 4))
def test_settling_conserves(steps: list[tuple[str, Any, Any]], routers: int) -> None:
    """When all requests have ended and all routers were heard twice, Valkey holds for the month exactly what they used, and nothing reserved."""
    world = World.month(10_000, routers)
    _play(world, steps, overrun=True)
    for request in world.running():
        world.settle(request, request.reserved // 2)
    for _ in range(2):
        for router in range(routers):
            world.exchange(router)
    assert quota.month_used(world.fields, world.now_s) == (sum(one.used or 0 for one in world.requests), 0)
    assert all(isinstance(meter, MonthMeter) and meter.done for meter in world.meters)


@settings(max_examples=200)
@given(steps=st.lists(STEP.filter(lambda step: step[0] not in ("wait", "rest")), max_size=100), routers=st.integers(1, 4))
def test_settling_conserves_within_a_minute(steps: list[tuple[str, Any, Any]], routers: int) -> None:
    """The minute's slots add up to what was used, too: what was reserved and not used is given back."""
    world = World.minute(10_000, routers)
    _play(world, steps, overrun=True)
    for request in world.running():
        world.settle(request, 0)
    for _ in range(2):
        for router in range(routers):
            world.exchange(router)
    assert quota.minute_used(world.fields, world.now_s)[0] == sum(one.used or 0 for one in world.requests)


@settings(max_examples=100)
@given(steps=st.lists(STEP, max_size=100), limit=st.integers(4, 400), routers=st.integers(2, 4))
@example(steps=[("burst", 0, 1), ("burst", 1, 1), ("greedy", 0, 4)], limit=6, routers=2)
def test_without_valkey_each_goes_by_its_share(steps: list[tuple[str, Any, Any]], limit: int, routers: int) -> None:
    """Lost from the start, all routers together pass the limit by their slices at most, and each goes on by its share: nobody stops."""
    world = World.minute(limit, routers)
    world.cut.update(range(routers))
    _play(world, steps, overrun=False)
    assert world.fields == {}
    assert _largest_window(world) <= max(routers, limit) + _overshoot(world, MINUTE_SLICES)
    world.now_s += 130
    assert world.ask(0, 1) is not None


@settings(max_examples=300)
@given(steps=st.lists(STEP | CUT, max_size=120), limit=st.integers(4, 400), routers=st.integers(2, 4))
@example(steps=[("cut", 0, None), ("cut", 1, None), ("burst", 0, 1), ("burst", 1, 1), ("back", 0, None), ("greedy", 0, 4)], limit=6, routers=2)
@example(steps=[("cut", 0, None), ("burst", 0, 1), ("back", 0, None), ("exchange", 0, False)] * 5, limit=40, routers=2)  # no share anew each time
def test_who_is_cut_off_adds_its_share_at_most(steps: list[tuple[str, Any, Any]], limit: int, routers: int) -> None:
    """Whoever loses Valkey and finds it again, and when: the limit, a slice for each router that never lost it, and a share for each that did."""
    cut = {one % routers for what, one, _ in steps if what == "cut"}
    for world, slices in ((World.minute(limit, routers), MINUTE_SLICES), (World.month(limit, routers), MONTH_SLICES)):
        still = isinstance(world.meters[0], MonthMeter)  # what a month's reservations are believed for is another law
        _play(world, [step for step in steps if not (still and step[0] in ("wait", "rest"))], overrun=False)
        slice_of_one = _overshoot(world, slices) // routers
        over = sum(max(slice_of_one, limit // routers) if router in cut else slice_of_one for router in range(routers))
        assert _largest_window(world) <= limit + over


def test_a_share_that_nobody_heard_of_passes_the_limit_until_it_is_told() -> None:
    """Nobody knows what a router that is cut off uses, and it does not stop. The control: once it has told, neither lets anything through."""
    world = World.minute(6, 2)
    world.cut.add(1)
    _play(world, [("burst", 1, 1), ("greedy", 0, 20)], overrun=False)
    assert world.charged(0, world.now_s) == 6 + 3
    world.cut.clear()
    for router in (1, 0):
        world.exchange(router)
    assert [world.ask(router, 1) for router in (0, 1)] == [None, None]


def test_what_others_were_heard_to_use_is_used_without_valkey_too() -> None:
    """A limit that was used up when Valkey went stays used up until the window has moved on. The control: what nobody was heard to use is a share."""
    for heard, passes in ((False, 50), (True, 0)):
        world = World.minute(100, 2)
        for _ in range(100):
            world.ask(0, 1)
            world.exchange(0)
        if heard:
            world.exchange(1)
        world.cut.add(1)
        assert sum(world.ask(1, 1) is not None for _ in range(200)) == passes
        wait_s = world.meters[1].wait_s(world.now_s, 1, replace(world.terms, lost=True))
        assert wait_s is not None
        assert 58 < wait_s <= 63
        assert world.meters[1].left(world.now_s, replace(world.terms, lost=True)) == 0
        world.now_s += wait_s
        assert sum(world.ask(1, 1) is not None for _ in range(200)) == 50


def test_what_was_let_in_is_not_let_in_twice_at_the_border_of_a_minute() -> None:
    """A full limit late in one minute leaves nothing for the beginning of the next; sixty-some seconds later all of it is there again."""
    world = World.minute(10, 1)
    world.now_s = 1019.0
    assert all(world.ask(0, 1) for _ in range(10))
    world.exchange(0)
    world.now_s = 1021.0
    assert world.ask(0, 1) is None
    wait_s = world.meters[0].wait_s(world.now_s, 1, world.terms)
    assert wait_s is not None
    assert 58 < wait_s <= 63
    world.now_s += wait_s
    assert all(world.ask(0, 1) for _ in range(10))


def test_a_request_larger_than_a_slice_has_its_turn() -> None:
    """Small slices keep no large request out; one larger than the whole limit is refused, whatever is left."""
    world = World.minute(100, 4)
    assert world.terms.slice(MINUTE_SLICES) == 7
    assert world.ask(0, 90) is not None
    world.exchange(0)
    assert World.minute(100, 1).ask(0, 101) is None


def test_a_repeated_report_counts_once() -> None:
    """The answer was lost; the report comes again."""
    world = World.minute(100, 2)
    world.ask(0, 5)
    world.exchange(0, answer_lost=True)
    world.exchange(0)
    assert quota.minute_used(world.fields, world.now_s)[0] == 5


def test_what_nobody_knows_to_be_heard_is_said_again() -> None:
    """A reservation was told, the answer lost, the request ended: nothing differs from what was surely heard, and yet it has to be told."""
    meter = MonthMeter("2027-01")
    meter.heard(0.0, "me", {})
    stamp = meter.take(0.1, 10)
    assert meter.report(0.1, "me") == {"me": "0:10:0"}
    meter.settle(0.2, stamp, 10, 0)
    assert meter.due(0.3)
    assert meter.report(0.3, "me") == {"me": "0:0:0"}
    meter.heard(0.3, "me", {"me": "0:0:0"})
    assert not meter.due(0.4)


def test_a_new_month_begins_empty_and_the_old_one_gets_what_ran_over_its_end() -> None:
    """What was reserved before midnight settles into the month in which it was let in."""
    old, new = MonthMeter("2026-12"), MonthMeter("2027-01")
    stamp = old.take(0.0, 100)
    assert old.left(0.0, Terms(100)) == 0
    assert new.left(0.0, Terms(100)) == 100
    old.settle(10.0, stamp, 100, 40)
    assert old.report(10.0, "me") == {"me": "40:0:10"}
    assert new.report(10.0, "me") == {}


@pytest.mark.parametrize(("month", "ends"), [("2026-11", "2026-12"), ("2026-12", "2027-01"), ("2028-02", "2028-03")])
def test_months_follow_each_other_in_utc(month: str, ends: str) -> None:
    """The last second of a month is its own, the next one the next month's."""
    border = quota.month_ends_at(month)
    assert (quota.month_of(border - 1), quota.month_of(border)) == (month, ends)


def test_what_a_router_says_of_its_reservations_grows_old() -> None:
    """A router that died with requests under way takes nothing from the month for longer than a minute."""
    fields = {"u": "70", "aaaa": "1:30:1000", "bbbb": "2:5:1055"}
    assert quota.month_used(fields, 1056.0) == (73, 35)
    assert quota.month_used(fields, 1061.0) == (73, 5)
    minute = {"aaaa:500": "3", "bbbb:529": "4"}
    assert quota.minute_used(minute, 1062.0) == (7, 59.0)
    assert quota.minute_used(minute, 1063.0) == (4, 58.0)


def test_memory_is_bounded() -> None:
    """A router that is lost for hours keeps a minute of slots."""
    meter = MinuteMeter()
    for second in range(0, 36_000, 2):
        meter.take(float(second), 1)
    assert len(meter.own) <= quota.WINDOW_S + 1
    assert len(meter.report(36_000.0, "me")) <= quota.WINDOW_S


def test_fields_of_the_dead_are_swept() -> None:
    """What a process that is gone left behind in a minute is named for deletion by whoever hears it."""
    meter = MinuteMeter()
    assert meter.heard(1063.0, "me", {"dead:500": "3", "alive:529": "4"}) == ["dead:500"]
    assert meter.left(1063.0, Terms(10)) == 6


def test_a_clock_that_is_set_back_shuts_nobody_out() -> None:
    """What was used an hour ahead of now would stay in the window for that hour. The control: a few seconds ahead, as clocks differ, counts."""
    meter, now_s = MinuteMeter(), 1_000_000.0
    meter.take(now_s + 3600, 10)
    slot = int((now_s + 3600) // quota.SLOT_S)
    assert meter.heard(now_s, "me", {f"other:{slot}": "10"}) == [f"other:{slot}"]
    assert meter.left(now_s, Terms(10)) == 10
    assert quota.minute_used({f"other:{slot}": "10"}, now_s) == (0, 0.0)
    meter.take(now_s + 6, 4)
    assert meter.left(now_s, Terms(10)) == 6


def test_what_is_no_number_ends_nothing() -> None:
    """A field of another version, or of somebody's hand, means nothing: minutes have it swept, months pass it over; the fields beside it count."""
    meter = MinuteMeter()
    odd = {"a": "3", "b:": "3", "c:x": "3", "d:520": "many", "e:520:1": "3", "f:\u0665\u0662\u0660": "3", "g:520": "9" * 5000}
    assert meter.heard(1041.0, "me", {**odd, "h:520": "4"}) == list(odd)
    assert meter.left(1041.0, Terms(10)) == 6
    assert quota.minute_used({**odd, "h:520": "4"}, 1041.0)[0] == 4
    months = {"a": "", "b": "1:2", "c": "x:2:1000", "d": "5:x:1000", "e": "5:2:x", "u": "y", "f": "1:2:3:4", "g": "7:1:1000"}
    assert quota.month_used(months, 1001.0) == (5 + 5 + 7, 2 + 1)


def test_spans_are_written_as_openai_writes_them() -> None:
    spans = {0.0: "0s", 0.25: "250ms", 1.0: "1s", 59.2: "1m0s", 360.0: "6m0s", 3603.0: "1h0m3s"}
    assert {seconds: quota.reset_text(seconds) for seconds in spans} == spans


def test_keys_name_quota_measure_and_month() -> None:
    ids = [UUID(int=one) for one in (1, 2)]
    keys = [key for one in ids for key in (quota.key_of(one, "tokens_per_month", "2027-01"), quota.key_of(one, "tokens_per_minute"))]
    assert len(set(keys)) == 4
    assert all(one.startswith("saltroute:quota:") and one != other for one, other in pairwise(sorted(keys)))
