"""Results as one self-contained HTML page each: figures, plots, tables and advice in plain words; no scripts, nothing from elsewhere.

Every text is escaped by the template; only plots, which ``routing.traces.plots`` made, are put in as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from routing.traces import plots
from routing.traces.analysis import telling

if TYPE_CHECKING:
    from jinja2 import Template

MAX_PAGE_BYTES = 4 << 20
REPLAY_METHOD = (
    "Simulated time: the router's own scheduler, ledger, calibration and waiting in front of simulated engines, which follow vLLM's rules and a"
    " time model of an 8B model on one data-centre GPU. Compare policies by it; do not read its seconds as those of your engines."
)
ANALYSIS_METHOD = (
    "Shares are of prompt tokens. The ceiling is what an endless cache would reuse; the capacity curve is a cache that evicts leaves first."
    " Blocks are told apart by keyed ids alone; the page holds no text."
)


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page. ``plot`` is an ``<svg>`` element."""

    title: str
    lines: tuple[str, ...] = ()
    bullets: tuple[str, ...] = ()
    plot: str = ""
    caption: str = ""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says. ``plots`` are those of its sections, by name, for who shows them elsewhere."""

    title: str
    subtitle: str
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    method: str
    said: str = ""
    plots: Mapping[str, str] = field(default_factory=dict)

    def html(self, notes: Sequence[str] = ()) -> str:
        """The whole document, with ``notes`` at its end."""
        sections = [{**{name: getattr(one, name) for name in one.__slots__}, "plot": Markup(one.plot)} for one in self.sections]  # noqa: S704 - our own SVG
        return _template().render(
            title=self.title,
            subtitle=self.subtitle,
            said=self.said,
            figures=self.figures,
            sections=sections,
            notes=notes,
            method=self.method,
        )


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html")


def analysis_page(values: Mapping[str, Any]) -> Page:
    """A page of ``report.analysis_values`` with the curves that ``work`` adds."""
    name, advice = str(values["trace"]), values["advice"]
    ceilings = [
        (text, share)
        for text, share in (
            ("anywhere", values["ceiling"]),
            ("in the same scope", values["ceiling_in_scope"]),
            ("in the same session", values["ceiling_in_session"]),
        )
        if share is not None
    ]
    sizes = telling(values["capacity"])
    made = {
        "ceiling": plots.bars("ceiling", ceilings, title="Share of prompt tokens that was seen before", label="share of prompt tokens"),
        "capacity": plots.lines(
            "capacity",
            [("hits", [tokens for tokens, _ in sizes], [share for _, share in sizes])],
            title="Hits by cache size",
            x_label="tokens of cache, over all replicas and without copies",
            y_label="share of prompt tokens",
            x_log=True,
            level=("endless cache", values["ceiling"]),
        ),
    }
    if values["gap_curve"]:
        made["gaps"] = _gaps(values)
    if values["concentration_curve"]:
        xs, ys = zip(*values["concentration_curve"], strict=True)
        made["concentration"] = plots.lines(
            "concentration",
            [("hits", xs, ys)],
            title="How few blocks get most hits",
            x_label="distinct blocks, the most used first, by rank (1 is all of them)",
            y_label="share of all hits",
        )
    rows = [(f"up to {tokens:,} tokens", share) for tokens, share in values["parting"]]
    made["parting"] = plots.bars("parting", rows, title="Where prompts leave what was seen before", label="share of requests")
    return Page(
        title=f"What {name} could reuse",
        subtitle=f"{values['requests']:,} requests over {values['span_s']:,.0f} s",
        said=f"{values['ceiling']:.1%} of the prompt tokens could be reused. The traffic looks like {advice['kind']}: {advice['because']}.",
        figures=(
            ("Ceiling", f"{values['ceiling']:.1%}"),
            ("Prompt tokens", f"{values['prompt_tokens']:,}"),
            ("Answer tokens", f"{values['output_tokens']:,}"),
            ("Distinct prompt tokens", f"{values['distinct_tokens']:,}"),
            ("Exact", "yes" if values["sample"] == 1 else f"from {values['sample']:.1%} of the blocks"),
        ),
        sections=_analysis_sections(values, made),
        method=ANALYSIS_METHOD,
        plots=made,
    )


def _gaps(values: Mapping[str, Any]) -> str:
    xs, ys = zip(*values["gap_curve"], strict=True)
    marks = [(word, values[f"gap_{word}_s"]) for word in ("p50", "p80", "p95")]
    return plots.lines(
        "gaps",
        [("reuse", xs, ys)],
        title="How long ago what is reused was used before",
        x_label="seconds since the previous use",
        y_label="share of reused tokens",
        x_log=True,
        marks=marks,
    )


def _analysis_sections(values: Mapping[str, Any], made: Mapping[str, str]) -> tuple[Section, ...]:
    advice, found = values["advice"], []
    found.append(Section(f"Class: {advice['kind']}", lines=(f"Seen: {advice['because']}.",), bullets=tuple(advice["advice"])))
    isolation = "The gaps between the bars are the price of keeping sessions and scopes apart."
    found.append(Section("Ceiling by scope", plot=made["ceiling"], caption=isolation))
    rows = tuple((f"{tokens:,}", f"{share:.1%}") for tokens, share in telling(values["capacity"]))
    found.append(
        Section("Capacity", plot=made["capacity"], caption="What a cache of so many tokens gets.", head=("Tokens of cache", "Hits"), rows=rows)
    )
    if "gaps" in made:
        told = ", ".join(f"{word} {values[f'gap_{word}_s']:,.0f} s" for word in ("p50", "p80", "p95"))
        found.append(Section("Reuse gaps", plot=made["gaps"], caption=f"A cache must hold what it is to reuse for that long: {told}."))
    said = f"The most used tenth of the blocks gets {values['top_tenth']:.0%} of the hits; {values['never_reused']:.0%} are never used again."
    found.append(
        Section("Concentration", lines=(said,), plot=made.get("concentration", ""), caption="A steep beginning: few prefixes are worth most.")
    )
    branches = tuple((f"{one['tokens']:,} tokens", f"{one['branches']:,}", f"{one['requests']:,}") for one in values["branches"])
    found.append(
        Section(
            "First divergence",
            lines=(f"From the first {values['branch_requests']:,} requests. A prompt parts where its first block begins that nobody sent before.",),
            plot=made["parting"],
            caption="By how far into the prompt; one bar for each doubling.",
            head=("After", "Continuations", "Requests") if branches else (),
            rows=branches,
        )
    )
    return tuple(found)


_HEAD = ("Policy", "TTFT mean", "p50", "p95", "p99", "Hits", "of ceiling", "Within objective", "Answered", "Refused")


def _row(run: Mapping[str, Any], slo_s: float | None) -> tuple[str, ...]:
    times = [f"{run[f'ttft_{word}_s']:.3f} s" for word in ("mean", "p50", "p95", "p99")]
    of_ceiling = f"{run['hit_share'] / run['ceiling']:.0%}" if run["ceiling"] else "-"
    within = "no objective" if slo_s is None else f"{run['slo_share']:.1%}"
    return (run["name"], *times, f"{run['hit_share']:.1%}", of_ceiling, within, f"{run['answered']:,}", f"{run['refused']:,}")


def _ttft(runs: Sequence[Mapping[str, Any]], slo_s: float | None) -> str:
    series = []
    for run in runs:
        times = run["ttft_curve_s"]
        shares = [place / max(1, len(times) - 1) for place in range(len(times))]
        series.append((run["name"], [max(1e-3, one) for one in times], shares))
    marks = [] if slo_s is None else [("objective", slo_s)]
    return plots.lines(
        "ttft",
        series,
        title="Time to first token",
        x_label="seconds to the first token",
        y_label="share of requests that had it by then",
        x_log=True,
        marks=marks,
    )


def _hits(runs: Sequence[Mapping[str, Any]]) -> str:
    rows, ceiling = [(run["name"], run["hit_share"]) for run in runs], runs[0]["ceiling"]
    return plots.bars("hits", rows, title="Hit rate", label="share of prompt tokens that engines found cached", mark=("ceiling", ceiling))


def replay_page(values: Mapping[str, Any]) -> Page:
    """A page of a replay's values: the policies side by side."""
    runs, slo_s = values["runs"], values["slo_ttft_s"]
    best = min(runs, key=lambda run: run["ttft_p99_s"])
    made = {"ttft": _ttft(runs, slo_s), "hits": _hits(runs)}
    said = f"{best['name']} has the least p99 of the time to first token, {best['ttft_p99_s']:.3f} s." if len(runs) > 1 else ""
    beside = "How close a policy comes to the line, which no policy passes."
    return Page(
        title=f"Policies on {values['trace']}",
        subtitle=f"{values['requests']:,} requests; {values['fleet']}",
        said=said,
        figures=(
            ("Ceiling", f"{runs[0]['ceiling']:.1%}"),
            ("Objective", "none" if slo_s is None else f"{slo_s:g} s"),
            ("Policies", str(len(runs))),
        ),
        sections=(
            Section("Figures", head=_HEAD, rows=tuple(_row(run, slo_s) for run in runs)),
            Section("Time to first token", plot=made["ttft"], caption="Further left is sooner; the upper end is the tail."),
            Section("Hit rate beside the ceiling", plot=made["hits"], caption=beside),
        ),
        method=REPLAY_METHOD,
        plots=made,
    )


_CHANGES = (
    ("mean_change", "TTFT, mean"),
    ("p99_change", "TTFT, p99"),
    ("hit_points", "Hit rate, points"),  # one axis for all in the plot, so their unit stands in the name
    ("slo_points", "Within objective, points"),
)


def review_page(values: Mapping[str, Any]) -> Page:
    """A page of a review's values: the candidate beside the current policy, with intervals."""
    runs, found = [values["current"], values["candidate"]], values["comparison"]
    changes = [(text, found[name]) for name, text in _CHANGES if found[name] is not None]
    made = {"ttft": _ttft(runs, values["slo_ttft_s"]), "hits": _hits(runs)}
    sure = [(text, one["value"], one["low"], one["high"]) for text, one in changes if one["low"] is not None]
    if sure:
        made["changes"] = plots.intervals("changes", sure, title="Changes with their intervals", label="candidate against current policy")
    rows = [(text, *_told(one, "{:+.1%}")) for text, one in changes]
    rows.append(("Prompt tokens saved", *_told(found["tokens_saved"], "{:+,.0f}")))
    assumed = tuple(values["assumed"])
    return Page(
        title=f"{values['candidate']['name']} instead of {values['current']['name']} on {values['trace']}",
        subtitle=f"{values['requests']:,} requests, {values['replays']} replays of each policy; {values['fleet']}",
        said=values["sentence"],
        figures=(
            ("Requests compared", f"{found['requests']:,}"),
            ("Conversations or minutes", f"{found['groups']:,}"),
            ("Ceiling", f"{values['current']['ceiling']:.1%}"),
        ),
        sections=(
            Section("Differences", head=("Figure", "Candidate against current", "95 % interval"), rows=tuple(rows)),
            Section("With their intervals", plot=made.get("changes", ""), caption="Left of zero: sooner, or fewer. A bar across zero tells nothing."),
            Section("Figures", head=_HEAD, rows=tuple(_row(run, values["slo_ttft_s"]) for run in runs)),
            Section("Time to first token", plot=made["ttft"], caption="Of all replays together."),
            Section("Hit rate beside the ceiling", plot=made["hits"]),
            *((Section("What is assumed of the fleet", bullets=assumed),) if assumed else ()),
        ),
        method=f"{values['method']} {REPLAY_METHOD}",
        plots=made,
    )


def _told(one: Mapping[str, Any], form: str) -> tuple[str, str]:
    """A figure and its interval; without one the figure would be read as a finding, and is left out."""
    if one["low"] is None:
        return "-", "too little traffic"
    return form.format(one["value"]), f"{form.format(one['low'])} to {form.format(one['high'])}"


PAGES = {"analyze": analysis_page, "replay": replay_page, "review": review_page}
