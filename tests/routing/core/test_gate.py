"""The gate of identical bursts: followers wait for the leader's first byte, never for its answer, and never for a leader that is gone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.gate import MAX_HOLD_S, MAX_PREFIXES, MIN_TOKENS, Gate, bound_s

P = b"namespace and prefix"


def arrives(
    doors: Gate,
    number: int,
    prefix: bytes = P,
    *,
    uncached_tokens: float = 24_000,
    ttft_s: float = 0.3,
    joins: bool = False,
    bound_s: float = 0.5,
    now_s: float = 0.0,
) -> bool:
    """Whether the request is held. If it goes it has its first token after ``ttft_s``."""
    hold_s = doors.arrive(prefix, number, uncached_tokens=uncached_tokens, expected_ttft_s=ttft_s, joins=joins, bound_s=bound_s, now_s=now_s)
    assert hold_s is None or 0 < hold_s <= bound_s
    return hold_s is not None


def burst(count: int, *, uncached_tokens: float = 24_000, spacing_s: float = 0.001, ttft_s: float = 0.3) -> tuple[Gate, list[bool]]:
    doors = Gate()
    return doors, [arrives(doors, number, uncached_tokens=uncached_tokens, ttft_s=ttft_s, now_s=number * spacing_s) for number in range(count)]


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
    assert not arrives(doors, 99, b"another namespace, same prompt", now_s=0.01)


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
    assert not arrives(doors, 50, now_s=0.02)


def test_prefixes_are_bounded_and_a_burst_under_way_is_not_forgotten() -> None:
    doors, _ = burst(6)
    for number in range(MAX_PREFIXES + 100):
        key = b"prefix %d" % number
        arrives(doors, number + 100, key, now_s=1.0)
        doors.opened(key, number + 100)
    assert len(doors) <= MAX_PREFIXES
    assert doors.opened(P, 0) == (3, 4, 5)


@pytest.mark.parametrize(("slo_s", "expected_s"), [(2.0, 0.5), (1.0, 0.25), (None, MAX_HOLD_S), (60.0, MAX_HOLD_S)])
def test_nobody_waits_longer_than_the_bound_and_a_quarter_of_the_objective(slo_s: float | None, expected_s: float) -> None:
    assert bound_s(slo_s) == expected_s


def test_who_would_join_the_prefix_where_it_is_computed_is_not_held() -> None:
    """Its control is the request after it, which would compute the prefix a second time."""
    doors, _ = burst(4)
    assert not arrives(doors, 10, joins=True, now_s=0.01)
    assert arrives(doors, 11, joins=False, now_s=0.01)


def test_nobody_is_held_in_vain() -> None:
    """A leader that is not due within the bound would be waited for, and its prefix computed elsewhere all the same."""
    _, held = burst(16, ttft_s=3.0)
    assert not any(held)
    doors, held = burst(16, ttft_s=0.49)
    assert any(held)
    assert doors.held == 13


def test_who_has_its_first_token_elsewhere_before_the_leader_is_done_goes_there() -> None:
    doors = Gate()
    for number in range(4):
        arrives(doors, number, ttft_s=0.4)
    assert not arrives(doors, 10, ttft_s=0.2, now_s=0.01)
    assert arrives(doors, 11, ttft_s=0.45, now_s=0.01)


def test_behind_a_leader_of_which_nobody_knows_when_it_is_due_nobody_is_held() -> None:
    doors, _ = burst(6)
    assert doors.lost(P, 0) == 3
    assert not arrives(doors, 20, now_s=0.01)


@given(st.lists(st.tuples(st.sampled_from(["arrive", "opened", "lost", "gave_up"]), st.integers(0, 30)), max_size=80))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_a_follower_has_a_leader(acts: list[tuple[str, int]]) -> None:
    """Follower without leader would wait for nobody: once every request that was let go has ended, nobody waits."""
    doors, going, waiting = Gate(), set[int](), set[int]()
    for serial, (act, which) in enumerate(acts):
        if act == "arrive":
            (waiting if arrives(doors, 1000 + serial, now_s=serial * 0.001) else going).add(1000 + serial)
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
