"""Plots of reports as SVG: matplotlib draws, and what comes out is cut down to elements and attributes alone.

No styles, no scripts, no metadata, no fonts (text is paths): the same markup holds under a strict Content-Security-Policy, in a page and as an image.
Lines and text are drawn in ``currentColor``, so they follow light, dark and paper; the few colours of data are readable on both.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2f7ed8", "#e07b00", "#2a9d5c", "#c2405e", "#8a63d2", "#7a8a00", "#00929c", "#a0683a")
WIDTH_IN, HEIGHT_IN = 6.4, 3.2
MAX_SVG_BYTES = 400_000
WORD_SHARE = 0.07  # of an axis' length: what a short word above it takes
_INK = "#010203"  # drawn in this, which nothing else has, and then made currentColor
_STYLE = re.compile(r' style="([^"]*)"')
_DROPPED = (
    re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->", re.DOTALL),
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL),
    re.compile(r' xmlns:xlink="[^"]*"'),
)
_ID = re.compile(r'(\bid="|href="#|url\(#)')
_BLANK = re.compile(r">\s+<")


def _attributes(style: re.Match[str]) -> str:
    """Style declarations as attributes of the same names, which is what all of matplotlib's are."""
    pairs = (part.partition(":") for part in style[1].split(";") if ":" in part)
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in pairs)


def _cleaned(svg: str, name: str) -> str:
    for pattern in _DROPPED:
        svg = pattern.sub("", svg)
    svg = _STYLE.sub(_attributes, svg).replace("xlink:href=", "href=").replace(_INK, "currentColor")
    svg = _ID.sub(rf"\g<1>{name}-", svg)  # several plots on one page
    svg = svg.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)
    return _BLANK.sub("><", svg).strip()


def plot(name: str, draw: Callable[[Axes], None], *, title: str, height_in: float = HEIGHT_IN) -> str:
    """One plot as an ``<svg>`` element. ``name`` (letters and hyphens) begins its ids; ``title`` is said to who cannot see it.

    Raises:
        ValueError: more than :data:`MAX_SVG_BYTES`.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[str, Any] = {
        "svg.fonttype": "path",
        "svg.hashsalt": name,  # the same figures give the same bytes
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _INK,
        "grid.alpha": 0.15,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
        "text.parse_math": False,  # a dollar in a name is a dollar
        "path.simplify_threshold": 0.5,
    }
    with mpl.rc_context(settings):  # type: ignore[arg-type]  # keys are checked when they are set
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        draw(axes)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = _cleaned(sink.getvalue(), name)
    if len(svg) > MAX_SVG_BYTES:
        raise ValueError(f"the plot {name} takes {len(svg)} bytes")
    head, rest = svg.split(">", 1)
    return f'{head} role="img"><title>{_escaped(title)}</title>{rest}'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bars(name: str, rows: Sequence[tuple[str, float]], *, title: str, label: str, share: bool = True, mark: tuple[str, float] | None = None) -> str:
    """Horizontal bars, the first on top, each with its figure; ``mark`` is a line across all of them, with its word."""

    def draw(axes: Axes) -> None:
        values = [value for _, value in rows]
        places = list(range(len(rows)))
        drawn = axes.barh(places, values, color=[COLOURS[place % len(COLOURS)] for place in places], height=0.6)
        axes.set_yticks(places, [text[:40] for text, _ in rows])
        axes.invert_yaxis()
        axes.bar_label(drawn, labels=[f"{value:.1%}" if share else f"{value:,.3g}" for value in values], padding=3)
        top = max([*values, mark[1] if mark else 0.0], default=0.0) or 1.0
        axes.set_xlim(0, min(1.0, top * 1.2) if share and top <= 1.0 else top * 1.2)
        axes.set_xlabel(label)
        _percent(axes.xaxis, share)
        if mark is not None:
            axes.axvline(mark[1], color=_INK, linestyle="--", linewidth=1)
            axes.annotate(mark[0], (mark[1], 1.0), xycoords=("data", "axes fraction"), ha="right", va="bottom")

    return plot(name, draw, title=title, height_in=0.9 + 0.32 * max(2, len(rows)))


def lines(
    name: str,
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_log: bool = False,
    share: bool = True,
    marks: Sequence[tuple[str, float]] = (),
    level: tuple[str, float] | None = None,
) -> str:
    """Lines of (name, xs, ys). ``marks`` are vertical lines with a word, ``level`` a horizontal one. ``x_log`` counts from a factor of ten on."""
    ends = [x for _, xs, _ in series for x in xs] + [at for _, at in marks]
    logarithmic = x_log and min(ends) > 0 and max(ends) >= 10 * min(ends)  # within less there may be no power of ten to put a number at

    def draw(axes: Axes) -> None:
        if logarithmic:
            axes.set_xscale("log")
            _short_numbers(axes.xaxis)
        for place, (text, xs, ys) in enumerate(series):
            axes.plot(
                xs, ys, color=COLOURS[place % len(COLOURS)], linewidth=1.8, label=text[:40], marker="o" if len(xs) <= 12 else None, markersize=3
            )
        for _, at in marks:
            axes.axvline(at, color=_INK, linestyle=":", linewidth=1)
        for text, at in beside(marks, min(ends), max(ends), logarithmic=logarithmic):
            axes.annotate(text, (at, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
        if level is not None:
            axes.axhline(level[1], color=_INK, linestyle="--", linewidth=1)
            axes.annotate(level[0], (0.0, level[1]), xycoords=("axes fraction", "data"), ha="left", va="bottom")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.grid(visible=True)
        _percent(axes.yaxis, share)
        if len(series) > 1:
            axes.legend(frameon=False)

    return plot(name, draw, title=title)


def beside(marks: Sequence[tuple[str, float]], low: float, high: float, *, logarithmic: bool) -> list[tuple[str, float]]:
    """The words of marks, from the left, on an axis from ``low`` to ``high``. Those that would stand on one another are one text amid their lines."""
    scale: Callable[[float], float] = math.log if logarithmic else float
    room = WORD_SHARE * (scale(high) - scale(low))
    groups: list[list[tuple[str, float]]] = []
    for mark in sorted(marks, key=lambda mark: (mark[1], mark[0])):
        if groups and scale(mark[1]) - scale(groups[-1][-1][1]) <= room:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return [(", ".join(text for text, _ in group), math.sqrt(group[0][1] * group[-1][1]) if logarithmic else _mean(group)) for group in groups]


def _mean(group: Sequence[tuple[str, float]]) -> float:
    return (group[0][1] + group[-1][1]) / 2


def intervals(name: str, rows: Sequence[tuple[str, float, float, float]], *, title: str, label: str) -> str:
    """Rows of (name, value, low, high) as points with their intervals, beside a line at zero."""

    def draw(axes: Axes) -> None:
        places = list(range(len(rows)))
        for place, (_, value, low, high) in zip(places, rows, strict=True):
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=3, solid_capstyle="round")
            axes.plot([value], [place], marker="o", color=_INK, markersize=5)
        axes.axvline(0.0, color=_INK, linestyle="--", linewidth=1)
        axes.set_yticks(places, [text for text, *_ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(label)
        _percent(axes.xaxis, wanted=True)

    return plot(name, draw, title=title, height_in=0.9 + 0.4 * max(2, len(rows)))


def _short_numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: short(value)))
    axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """A number in few characters: 0.05, 20, 4k, 16M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def _percent(axis: Any, wanted: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    if wanted:
        axis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
