"""Time with work: the exact union and sum of requests' intervals, whenever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.work_clock import WorkClock

_moment = st.integers(0, 1000).map(lambda tick: tick / 8)  # sums of eighths are exact
spans = st.lists(st.tuples(_moment, _moment).map(lambda pair: (min(pair), max(pair))), max_size=12)


@given(spans, st.lists(_moment, max_size=8))
def test_busy_is_the_union_and_requests_the_sum(found: list[tuple[float, float]], looks: list[float]) -> None:
    """Asking in between changes nothing."""
    clock = WorkClock()
    changes = [(start, 1) for start, _ in found] + [(end, -1) for _, end in found] + [(look, 0) for look in looks]
    for at_s, by in sorted(changes, key=lambda one: (one[0], -one[1])):
        clock.change(by, at_s)
    ticks = [tick / 8 for tick in range(1001)]
    union = sum(any(start <= tick < end for start, end in found) for tick in ticks) / 8
    assert clock.read(200.0) == (union, sum(end - start for start, end in found))


def test_work_in_hand_counts_until_now() -> None:
    """A request that goes on for minutes shows while it does, and a clock that goes back counts nothing."""
    clock = WorkClock()
    clock.change(2, 10.0)
    assert clock.read(13.0) == pytest.approx((3.0, 6.0))
    assert clock.read(12.0) == pytest.approx((3.0, 6.0))
    clock.change(-1, 14.0)
    assert clock.read(16.0) == pytest.approx((6.0, 10.0))
