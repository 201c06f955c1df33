"""Reports of an analysis and of a replay: plain text, and values for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from routing.traces.analysis import Report, telling
from routing.traces.measure import Summary
from routing.traces.workload_class import classify


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def analysis_lines(name: str, report: Report) -> Iterator[str]:
    """An analysis as text, one fact a line."""
    advice = classify(report)
    yield f"{name}: {report.requests:,} requests over {report.span_s:,.0f} s"
    yield f"prompt tokens: {report.prompt_tokens:,}; answer tokens: {report.output_tokens:,}; distinct prompt tokens: {report.distinct_tokens:,}"
    exact = "exact" if report.sample == 1 else f"estimated from {report.sample:.2%} of the distinct blocks"
    yield f"reusable with an endless cache: {_share(report.ceiling)} of prompt tokens ({exact})"
    yield f"  in the same scope {_share(report.ceiling_in_scope)}, in the same session {_share(report.ceiling_in_session)}"
    yield "reusable with a leaf-first LRU cache of so many tokens:"
    for tokens, share in telling(report.capacity):
        yield f"  {tokens:>12,}  {share:6.1%}"
    if report.gap_p50_s is not None:
        yield f"time since previous use, by tokens: p50 {report.gap_p50_s:,.0f} s, p80 {report.gap_p80_s:,.0f} s, p95 {report.gap_p95_s:,.0f} s"
    yield f"the most used tenth of the blocks gets {report.top_tenth:.0%} of the hits; {report.never_reused:.0%} of the blocks are never used again"
    if report.branches:
        yield f"where prompts part (first {report.branch_requests:,} requests):"
        for one in report.branches:
            yield f"  after {one.tokens:,} tokens into {one.branches:,} continuations, {one.requests:,} requests"
    yield f"class: {advice.kind} ({advice.because})"
    for line in advice.advice:
        yield f"  {line}"


def analysis_values(report: Report) -> dict[str, object]:
    """An analysis for JSON, with its class and advice."""
    return asdict(report) | {"advice": asdict(classify(report))}


def replay_lines(policy: str, summary: Summary, ceiling: float | None, *, slo_s: float | None) -> Iterator[str]:
    """A replay as text. ``ceiling``: the endless cache's share, where it is known; ``slo_s``: the objective, if there is one."""
    within = "" if slo_s is None else f"within {slo_s:g} s {summary.slo_share:.1%}; "
    beside = "" if ceiling is None else f" of {ceiling:.1%} possible"
    yield (
        f"{policy:18} TTFT mean {summary.ttft_mean_s:.3f} s, p50 {summary.ttft_p50_s:.3f}, p95 {summary.ttft_p95_s:.3f}, "
        f"p99 {summary.ttft_p99_s:.3f}; queue {summary.queue_mean_s:.3f} s; answer p50 {summary.e2e_p50_s:.2f} s, p99 {summary.e2e_p99_s:.2f} s"
    )
    yield (
        f"{'':18} hit {summary.hit_share:.1%}{beside}, expected {summary.expected_share:.1%}; evicted {summary.evicted_per_s:.1f} blocks/s; "
        f"{summary.copies:.2f} copies; {within}"
        f"{summary.answered:,} of {summary.requests:,} answered, {summary.refused} refused, {summary.cut} cut"
    )
    yield f"{'':18} utilisation " + " ".join(f"{share:.0%}" for share in summary.utilisation)
