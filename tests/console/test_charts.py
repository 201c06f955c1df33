"""Geometry of charts: bars as long as their values, lines with gaps where there is no data."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console import charts
from console.views.decisions import IN_ORDER

lengths = st.floats(0, 1e6, allow_subnormal=False)


@given(st.lists(st.lists(lengths, max_size=5), min_size=1, max_size=8))
@example([[2.2250738585072014e-308]])  # the smallest ordinary number
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


# ---- colours -------------------------------------------------------------------------------------------------------------------------

STYLE = (Path(charts.__file__).parent / "static/console/console.css").read_text()
# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, A physiologically-based model for simulation of color vision deficiency, 2009: severity 1.
VISIONS = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))


def _times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(one * other for one, other in zip(row, vector, strict=True)) for row in matrix]


def _linear(colour: str) -> list[float]:
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def _lab(linear: list[float]) -> tuple[float, float, float]:
    xyz = [value / white for value, white in zip(_times(TO_XYZ, linear), (0.95047, 1.0, 1.08883), strict=True)]
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _seen(colour: str, vision: str) -> tuple[float, float, float]:
    return _lab([min(1.0, max(0.0, share)) for share in _times(VISIONS[vision], _linear(colour))])


def _contrast(one: str, other: str) -> float:
    bright, dim = sorted((_times(TO_XYZ, _linear(colour))[1] for colour in (one, other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _palette(dark: bool, prefix: str) -> dict[str, str]:
    part = STYLE.partition("@media (prefers-color-scheme: dark)")[2 if dark else 0].partition("*, *::before")[0]
    return dict(re.findall(rf"--({prefix}\d+|surface): (#[0-9a-f]{{6}})", part))


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("palette", [("s", charts.COLOURS, 15.0, 2.6), ("p", 6, 30.0, 3.0)])
def test_any_two_colours_are_told_apart(vision: str, dark: bool, palette: tuple[str, int, float, float]) -> None:
    """By people of every colour vision, in light and in dark, and each against the ground it stands on."""
    prefix, count, apart, contrast = palette
    found = _palette(dark, prefix)
    surface = found.pop("surface")
    assert len(found) == count
    for one, other in itertools.combinations(found.values(), 2):
        assert math.dist(_seen(one, vision), _seen(other, vision)) >= apart, (one, other)
    for colour in found.values():
        assert _contrast(colour, surface) >= contrast, colour


def test_no_two_parts_of_a_cause_share_a_colour() -> None:
    """Router and generation once did."""
    chart = charts.stacked_bars([("r", False, [(part, 1.0) for part in IN_ORDER], None)], slots=IN_ORDER)
    slots = [slot for _, slot in chart.legend]
    assert len(slots) == len(set(slots)) == len(IN_ORDER)
    places = dict(chart.legend)
    for dark in (False, True):
        router, generation = (_seen(_palette(dark, "s")[f"s{places[name]}"], "usual") for name in ("router", "generation"))
        assert math.dist(router, generation) > 60  # another hue, not another shade: every request has both
    assert all(f".f{slot} {{ fill: var(--s{slot})" in STYLE for slot in range(1, charts.COLOURS + 1))
