"""A sample of the blocks stands for all of them, evicted ones included, for ten minutes."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.working_set import MOST, WINDOW_S, WorkingSet


def _digests(count: int, start: int = 0) -> list[bytes]:
    return [hashlib.sha256(number.to_bytes(8, "big")).digest()[:16] for number in range(start, start + count)]


def test_small_sets_are_counted_exactly_and_once() -> None:
    working = WorkingSet()
    working.touch(_digests(1000), 0.0)
    working.touch(_digests(1000), 1.0)
    assert working.size(1.0) == 1000
    assert working.dropped == 0


def test_what_was_not_sent_for_ten_minutes_no_longer_counts() -> None:
    working = WorkingSet()
    working.touch(_digests(100), 0.0)
    working.touch(_digests(50), 100.0)
    assert working.size(WINDOW_S) == 100
    assert working.size(WINDOW_S + 1.0) == 50
    assert working.size(WINDOW_S + 101.0) == 0


@settings(max_examples=10, deadline=None)
@given(st.integers(MOST + 1, 12 * MOST))
def test_large_sets_are_estimated_from_a_bounded_sample(count: int) -> None:
    working = WorkingSet()
    for start in range(0, count, 3000):
        working.touch(_digests(min(3000, count - start), start), 0.0)
    assert abs(working.size(0.0) / count - 1.0) < 0.12
    assert len(working._last) <= MOST
    assert working.dropped > 0


def test_another_process_was_sent_nothing() -> None:
    working = WorkingSet()
    working.touch(_digests(3 * MOST), 0.0)
    working.clear()
    assert working.size(0.0) == 0
    working.touch(_digests(10), 0.0)
    assert working.size(0.0) == 10


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.floats(0, WINDOW_S), st.booleans()), max_size=12))
def test_small_sets_are_counted_exactly_at_every_moment(sent: list[tuple[int, int, float, bool]]) -> None:
    """Whatever was sent when, and whenever one asked meanwhile: what counts is what was sent within the window, once."""
    working, last, now_s = WorkingSet(), {}, 0.0
    for start, count, later_s, asks in sent:
        now_s += later_s
        working.touch(_digests(count, start), now_s)
        last.update(dict.fromkeys(_digests(count, start), now_s))
        if asks:
            now_s += later_s
            assert working.size(now_s) == sum(now_s - WINDOW_S <= at_s for at_s in last.values())
