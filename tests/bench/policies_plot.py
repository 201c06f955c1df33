"""The plot of the policies benchmark: mean and p99 TTFT of every policy relative to ``ettft``, by scenario. Readable on light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from routing.traces.plots import COLOURS

INK = "#7d8590"  # as far from white as from black: an image inherits no colour from its page
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST = 16.0  # times ettft's; what is beyond stands at the edge


def relative(path: str, figures: Mapping[str, Mapping[str, Sequence[float]]], own: str) -> None:
    """Write the plot. ``figures`` has, by scenario and policy, (mean, p99) in seconds; ``own`` is the policy that the others are divided by."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.hashsalt": "policies",
    }
    scenarios = list(figures)
    policies = [name for name in next(iter(figures.values())) if name != own]
    with rc_context({**style, "font.size": 8}):
        figure = Figure(figsize=(9.5, 1.2 + 0.27 * len(scenarios)), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        for place, title in enumerate(("mean TTFT", "p99 TTFT")):
            axes = figure.add_subplot(1, 2, place + 1)
            axes.patch.set_alpha(0.0)
            axes.axvspan(0.97, 1.03, color=INK, alpha=0.25, lw=0)
            axes.axvline(1.0, color=INK, lw=0.8)
            for number, policy in enumerate(policies):
                ratios = [min(MOST, figures[one][policy][place] / max(1e-9, figures[one][own][place])) for one in scenarios]
                axes.plot(
                    ratios, range(len(scenarios)), MARKS[number % len(MARKS)], ms=4.5, alpha=0.85, color=COLOURS[number % len(COLOURS)], label=policy
                )
            axes.set_xscale("log")
            axes.set_xlim(0.9, MOST * 1.1)
            axes.set_xticks([1, 1.25, 1.5, 2, 4, 8, MOST], ["1", "1.25", "1.5", "2", "4", "8", f"{MOST:g}+"])
            axes.minorticks_off()
            axes.set_ylim(len(scenarios) - 0.5, -0.5)
            axes.set_yticks(range(len(scenarios)), scenarios if place == 0 else [""] * len(scenarios))
            axes.grid(color=INK, alpha=0.2, lw=0.5)
            axes.set_title(f"{title}, times that of {own}", fontsize=8, color=INK)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, labelcolor=INK)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n")
