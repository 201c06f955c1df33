"""Geometry of the console's charts: pure functions from numbers to rectangles and lines in user units. Templates draw them as inline SVG.

Colours are classes in the style sheet, never attributes, so that light and dark each have their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 1e-300  # what is shorter is no length: a plot's width divided by it would be infinite
COLOURS = 19  # classes f1 to f19 of the style sheet, any two of which people of every colour vision tell apart


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line: its place along the axis and its value."""

    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a horizontal bar. ``name`` is the term, ``slot`` its colour (1 to ``COLOURS``)."""

    name: str
    slot: int
    x: float
    width: float
    value: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a stacked bar chart; ``marker`` is where a second figure for the same row lies, such as the expected time to first token."""

    label: str
    emphasis: bool
    y: float
    total: float
    segments: tuple[Segment, ...]
    end: float
    marker: float | None = None


@dataclass(frozen=True, slots=True)
class StackedBars:
    """A horizontal stacked bar chart, ``width`` by ``height`` units, the plot starting at ``left``."""

    width: float
    height: float
    left: float
    row_height: float
    bar_height: float
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, int], ...]

    @property
    def plot_bottom(self) -> float:
        return self.height - 22.0


def stacked_bars(
    rows: Sequence[tuple[str, bool, Sequence[tuple[str, float]], float | None]],
    *,
    slots: Sequence[str],
    width: float = 720.0,
    left: float = 150.0,
) -> StackedBars:
    """Lay out rows of ``(label, emphasis, [(term, value)], marker)``. Negative and non-finite values count as zero: a length cannot be either.

    ``slots`` fixes the colour of each term by its place, so that a term looks the same on every page.
    """
    row_height, bar_height, right = 30.0, 16.0, 64.0
    cleaned = [(label, emphasis, [(name, _length(value)) for name, value in terms], marker) for label, emphasis, terms, marker in rows]
    largest = max([max(sum(value for _, value in terms), _length(marker or 0.0)) for _, _, terms, marker in cleaned], default=0.0)
    ticks, top = scale(largest)
    unit = (width - left - right) / top
    bars = []
    for index, (label, emphasis, terms, marker) in enumerate(cleaned):
        x, segments = left, []
        for name, value in terms:
            segments.append(Segment(name=name, slot=_slot(name, slots), x=round(x, 2), width=round(value * unit, 2), value=value))
            x += value * unit
        bars.append(
            Bar(
                label=label,
                emphasis=emphasis,
                y=index * row_height + 4.0,
                total=sum(value for _, value in terms),
                segments=tuple(segments),
                end=round(x, 2),
                marker=None if marker is None else round(left + _length(marker) * unit, 2),
            )
        )
    present = {segment.name for bar in bars for segment in bar.segments}
    return StackedBars(
        width=width,
        height=len(bars) * row_height + 26.0,
        left=left,
        row_height=row_height,
        bar_height=bar_height,
        bars=tuple(bars),
        ticks=tuple(Tick(at=round(left + value * unit, 2), value=value) for value in ticks),
        legend=tuple((name, _slot(name, slots)) for name in [*slots, *sorted(present - set(slots))] if name in present),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A named line as SVG path data; gaps in the data are gaps in the line. ``dots`` are points that have no neighbour to draw a line to."""

    name: str
    slot: int
    path: str
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over equal steps, ``width`` by ``height`` units, plot between ``left`` and ``width``, y growing downwards."""

    width: float
    height: float
    left: float
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]

    @property
    def empty(self) -> bool:
        return not any(line.path or line.dots for line in self.lines)


def line_chart(
    series: Sequence[tuple[str, Sequence[float | None]]],
    *,
    width: float = 440.0,
    height: float = 140.0,
    top_value: float | None = None,
) -> LineChart:
    """Lay out ``(name, values)`` lines; ``top_value`` fixes the scale (1.0 for shares), else it follows the data."""
    left, bottom, top = 46.0, height - 6.0, 12.0
    largest = top_value if top_value is not None else max((value or 0.0 for _, values in series for value in values), default=0.0)
    ticks, limit = scale(largest, steps=3)
    unit = (bottom - top) / limit
    lines = []
    for index, (name, values) in enumerate(series):
        step = (width - left - 6.0) / max(1, len(values) - 1)
        points: list[tuple[float, float] | None] = [
            None if value is None else (round(left + place * step, 1), round(bottom - min(_length(value), limit) * unit, 1))
            for place, value in enumerate(values)
        ]
        lines.append(Line(name=name, slot=index + 1, path=_path(points), dots=_lonely(points)))
    grid = tuple(Tick(at=round(bottom - value * unit, 1), value=value) for value in ticks)
    return LineChart(width=width, height=height, left=left, lines=tuple(lines), ticks=grid)


def scale(largest: float, *, steps: int = 4) -> tuple[tuple[float, ...], float]:
    """Round tick values from 0 to the first at or above ``largest``, and that last one (> 0)."""
    largest = _length(largest) or 1.0
    raw = largest / steps
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * magnitude >= raw * 0.999999)
    count = max(1, math.ceil(largest / step - 1e-9))
    return tuple(step * index for index in range(count + 1)), step * count


def _length(value: float) -> float:
    return value if math.isfinite(value) and value >= _LEAST else 0.0


def _slot(name: str, slots: Sequence[str]) -> int:
    return (slots.index(name) if name in slots else len(slots)) % COLOURS + 1


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    parts: list[str] = []
    pen_down = False
    for point in points:
        if point is not None:
            parts.append(f"{'L' if pen_down else 'M'}{point[0]:g} {point[1]:g}")
        pen_down = point is not None
    return "".join(parts)


def _lonely(points: Sequence[tuple[float, float] | None]) -> tuple[tuple[float, float], ...]:
    found = []
    for index, point in enumerate(points):
        before = points[index - 1] if index else None
        after = points[index + 1] if index + 1 < len(points) else None
        if point is not None and before is None and after is None:
            found.append(point)
    return tuple(found)
