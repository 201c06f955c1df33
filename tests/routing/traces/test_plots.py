"""What stands at the axes of a report's plots."""

from __future__ import annotations

import re

import pytest

from routing.traces import plots
from routing.traces.analysis import telling


def numbers_at(svg: str, axis: str) -> int:
    """How many ticks of an axis have a number: texts are paths, in a group of their own in the tick's."""
    return sum("text_" in tick for tick in re.split(rf'id="one-{axis}_\d+"', svg.split('id="one-matplotlib.axis_2"', maxsplit=1)[0])[1:])


@pytest.mark.parametrize("xs", [(61.0, 62.0, 64.0), (20.0, 60.0, 90.0), (0.1, 1.0, 900.0), (4096.0, 67e6), (60.0,)])
def test_a_logarithmic_axis_has_numbers_however_short_it_is(xs: tuple[float, ...]) -> None:
    """Reuse that is always a minute old lies between two powers of ten."""
    svg = plots.lines("one", [("reuse", xs, [0.5] * len(xs))], title="t", x_label="seconds", y_label="share", x_log=True)
    assert 2 <= numbers_at(svg, "xtick") <= 15


def test_words_that_would_stand_on_one_another_are_one_text() -> None:
    marks = [("p95", 64.0), ("p50", 60.0), ("p80", 64.0)]
    assert plots.beside(marks, 60.0, 64.0, logarithmic=False) == [("p50", 60.0), ("p80, p95", 64.0)]
    assert [text for text, _ in plots.beside(marks, 1.0, 1e6, logarithmic=True)] == ["p50, p80, p95"]
    apart = [("p50", 1.0), ("p80", 100.0), ("p95", 10_000.0)]
    assert plots.beside(apart, 1.0, 10_000.0, logarithmic=True) == apart
    assert [text for text, _ in plots.beside(apart, 1.0, 10_000.0, logarithmic=False)] == ["p50, p80", "p95"]


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        ([(1, 0.0), (2, 0.0), (4, 0.2), (8, 0.5), (16, 0.5), (32, 0.5)], [(2, 0.0), (4, 0.2), (8, 0.5)]),
        ([(1, 0.1), (2, 0.3)], [(1, 0.1), (2, 0.3)]),
        ([(1, 0.0), (2, 0.0)], [(1, 0.0)]),
        ([(1, 0.4), (2, 0.4)], [(1, 0.4)]),
    ],
)
def test_a_capacity_curve_is_told_where_it_says_something(curve: list[tuple[int, float]], said: list[tuple[int, float]]) -> None:
    """Sizes that get nothing, and those that get no more than the one before, are left out."""
    assert telling(curve) == said
