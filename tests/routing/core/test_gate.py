"""The gate of identical bursts: followers wait for the leader's first byte, never for its answer, and never for a leader that is gone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core import gate
from routing.core.gate import MAX_PREFIXES, MIN_TOKENS, Gate, hold_s

P = b"namespace and prefix"


def burst(count: int, *, uncached_tokens: float = 24_000, spacing_s: float = 0.001) -> tuple[Gate, list[bool]]:
    doors = Gate()
    return doors, [doors.arrive(P, number, uncached_tokens=uncached_tokens, now_s=number * spacing_s) for number in range(count)]


def test_the_fourth_arrival_in_the_window_and_those_after_it_follow() -> None:
    doors, held = burst(16)
    assert held == [False] * 3 + [True] * 13
    assert doors.opened(P, 0) == tuple(range(3, 16))
    assert doors.held == 13


@pytest.mark.parametrize(("uncached_tokens", "spacing_s"), [(MIN_TOKENS - 1, 0.001), (24_000, 0.02)], ids=["short", "spread over time"])
def test_what_is_no_burst_is_not_held(uncached_tokens: float, spacing_s: float) -> None:
    _, held = burst(16, uncached_tokens=uncached_tokens, spacing_s=spacing_s)
    assert not any(held)


def test_another_prefix_is_another_burst() -> None:
    doors, _ = burst(8)
    assert not doors.arrive(b"another namespace, same prompt", 99, uncached_tokens=24_000, now_s=0.01)


def test_a_lost_leader_hands_over_to_the_one_that_waited_longest() -> None:
    doors, _ = burst(6)
    assert doors.lost(P, 0) == 3
    assert doors.opened(P, 0) == ()
    assert doors.opened(P, 3) == (4, 5)


def test_a_lost_follower_frees_nobody() -> None:
    doors, _ = burst(6)
    assert doors.lost(P, 4) is None
    assert doors.opened(P, 0) == (3, 5)


def test_a_follower_that_waited_long_enough_goes_by_itself() -> None:
    doors, _ = burst(6)
    doors.gave_up(P, 4)
    assert doors.opened(P, 0) == (3, 5)


def test_after_the_first_byte_the_next_arrival_leads() -> None:
    doors, _ = burst(6)
    doors.opened(P, 0)
    assert not doors.arrive(P, 50, uncached_tokens=24_000, now_s=0.02)


def test_prefixes_are_bounded_and_a_burst_under_way_is_not_forgotten() -> None:
    doors, _ = burst(6)
    for number in range(MAX_PREFIXES + 100):
        key = b"prefix %d" % number
        doors.arrive(key, number + 100, uncached_tokens=24_000, now_s=1.0)
        doors.opened(key, number + 100)
    assert len(doors) <= MAX_PREFIXES
    assert doors.opened(P, 0) == (3, 4, 5)


@pytest.mark.parametrize(
    ("ttft_s", "slo_s", "expected_s"), [(0.2, 2.0, 0.2), (3.0, 1.0, 0.25), (3.0, None, gate.MAX_HOLD_S), (3.0, 60.0, gate.MAX_HOLD_S)]
)
def test_the_hold_is_the_least_of_three_bounds(ttft_s: float, slo_s: float | None, expected_s: float) -> None:
    assert hold_s(leader_ttft_s=ttft_s, slo_s=slo_s) == expected_s


@given(st.lists(st.tuples(st.sampled_from(["arrive", "opened", "lost", "gave_up"]), st.integers(0, 30)), max_size=80))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_a_follower_has_a_leader(acts: list[tuple[str, int]]) -> None:
    """Follower without leader would wait for nobody: once every request that was let go has ended, nobody waits."""
    doors, going, waiting = Gate(), set[int](), set[int]()
    for serial, (act, which) in enumerate(acts):
        if act == "arrive":
            (waiting if doors.arrive(P, 1000 + serial, uncached_tokens=9000, now_s=serial * 0.001) else going).add(1000 + serial)
            continue
        pool = sorted(going | waiting) if act == "lost" else sorted(waiting if act == "gave_up" else going)
        if not pool:
            continue
        request = pool[which % len(pool)]
        if act == "opened":
            freed = set(doors.opened(P, request))
            assert freed <= waiting
            waiting -= freed
            going |= freed
        elif act == "gave_up":
            doors.gave_up(P, request)
            waiting.discard(request)
            going.add(request)
        else:
            heir = doors.lost(P, request)
            going.discard(request)
            waiting.discard(request)
            if heir is not None:
                waiting.remove(heir)
                going.add(heir)
    for _ in range(len(going) + len(waiting) + 1):
        for request in sorted(going):
            going.discard(request)
            heir = doors.lost(P, request)
            if heir is not None:
                waiting.remove(heir)
                going.add(heir)
    assert not waiting
