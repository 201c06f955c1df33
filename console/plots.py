"""Plots over time: pure values that become a document for the browser's plots, and inline drawings where no scripts run.

Colours are numbers of variables in the style sheet (``--p1`` to ``--p6``); lines of one plot also differ in their dashes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from console import charts
from console.reads.happened import Marker

Unit = Literal["seconds", "share", "rate", "number"]
LINES = 6  # of one plot


@dataclass(frozen=True, slots=True)
class Line:
    """One line; None is a gap."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot. ``limits`` are horizontal lines, such as an objective; ``none`` is said where there is nothing to draw."""

    id: str
    title: str
    about: str
    unit: Unit
    none: str
    lines: Sequence[Line]
    limits: Sequence[tuple[str, float]] = ()
    chart: charts.LineChart = field(init=False)

    def __post_init__(self) -> None:
        top = 1.0 if self.unit == "share" else None
        limits = [(label, [value] * len(self.lines[0].values)) for label, value in self.limits] if self.lines else []
        object.__setattr__(self, "chart", charts.line_chart([*((line.label, line.values) for line in self.lines), *limits], top_value=top))

    @property
    def label(self) -> str:
        """What the drawing shows, for those who cannot see it."""
        return f"{self.title}: {', '.join(line.label for line in self.lines)}, over the range; the same figures are in the table below"

    @property
    def empty(self) -> bool:
        return all(value is None for line in self.lines for value in line.values)


def document(starts: Sequence[datetime], plots: Sequence[Plot], markers: Sequence[Marker]) -> str:
    """All that the browser draws, as JSON: ``x`` are unix seconds, values have five digits."""
    said: dict[str, Any] = {
        "x": [round(start.timestamp()) for start in starts],
        "plots": [
            {
                "id": plot.id,
                "title": plot.title,
                "unit": plot.unit,
                "lines": [{"label": line.label, "values": [_short(value) for value in line.values]} for line in plot.lines],
                "limits": [{"label": label, "value": _short(value)} for label, value in plot.limits],
            }
            for plot in plots
        ],
        "markers": [{"at": one.at.timestamp(), "kind": one.kind, "text": one.text} for one in markers],
    }
    return json.dumps(said, separators=(",", ":"))


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
