"""Geometry of charts: bars as long as their values, lines with gaps where there is no data."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import charts

lengths = st.floats(0, 1e6, allow_subnormal=False)


@given(st.lists(st.lists(lengths, max_size=5), min_size=1, max_size=8))
def test_bars_stay_in_the_plot_and_keep_their_proportions(values: list[list[float]]) -> None:
    rows = [(f"r{n}", n == 0, [(f"t{m}", value) for m, value in enumerate(row)], None) for n, row in enumerate(values)]
    chart = charts.stacked_bars(rows, slots=("t0", "t1"))
    longest = max(sum(row) for row in values)
    for bar, row in zip(chart.bars, values, strict=True):
        assert chart.left <= bar.end <= chart.width
        assert bar.y + chart.bar_height <= chart.plot_bottom + 1
        if longest > 0:
            plot = max(other.end for other in chart.bars) - chart.left
            assert bar.end - chart.left == pytest.approx(plot * sum(row) / longest, abs=0.05)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_cannot_be_a_length_is_none(value: float) -> None:
    chart = charts.stacked_bars([("a", False, [("t", value), ("u", 1.0)], value)], slots=())
    assert chart.bars[0].segments[0].width == 0
    assert math.isfinite(chart.bars[0].end)
    assert charts.line_chart([("a", [value, 1.0])]).lines[0].path.startswith("M46 ")


@given(st.floats(1e-9, 1e9))
def test_ticks_are_round_and_reach_the_largest_value(largest: float) -> None:
    ticks, top = charts.scale(largest)
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(top)
    assert top >= largest * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6
    digits = f"{ticks[1]:.3e}".split("e", maxsplit=1)[0]
    assert digits in ("1.000", "2.000", "2.500", "5.000")


def test_a_term_has_the_same_colour_on_every_page() -> None:
    slots = ("wait", "prefill")
    one = charts.stacked_bars([("a", False, [("prefill", 1.0)], None)], slots=slots)
    both = charts.stacked_bars([("a", False, [("wait", 1.0), ("prefill", 1.0)], None)], slots=slots)
    assert dict(one.legend)["prefill"] == dict(both.legend)["prefill"] == 2


def test_no_data_is_a_gap_and_a_lonely_point_a_dot() -> None:
    line = charts.line_chart([("a", [1.0, 2.0, None, 3.0, None, 4.0, 4.0])]).lines[0]
    assert line.path.count("M") == 3
    assert line.path.count("L") == 2
    assert len(line.dots) == 1
    assert charts.line_chart([("a", [None, None])]).empty
    assert not charts.line_chart([("a", [None, 1.0])]).empty
