"""Work over a trace: told step by step, broken off anywhere, gone on with to the same outcome; pages that hold nothing foreign."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from routing.traces import pages, plots, workloads
from routing.traces.request import TraceRequest
from routing.traces.work import Analyze, FleetShape, Head, NamedPolicy, Outcome, Replay, Review, Watcher, Work, perform

REQUESTS = [replace(one, session=f"s{place % 40}") for place, one in enumerate(workloads.rag(3, count=300, per_s=3.0))]
FLEET = FleetShape(speeds=(1.0, 0.5), cache_tokens=100_000)
EVIL = '<img src=x onerror="alert(1)">$\\frac{1}{2}$'
ETTFT, ROUND = NamedPolicy(name="now", spec={"policy": "ettft"}), NamedPolicy(name=EVIL, spec={"policy": "round_robin"})
WORKS: dict[str, Work] = {
    "analyze": Analyze(limit_blocks=1000),
    "replay": Replay(policies=(ETTFT, ROUND), fleet=FLEET, slo_ttft_s=2.0),
    "review": Review(current=ETTFT, candidate=ROUND, fleet=FLEET, slo_ttft_s=2.0, replays=2, assumed=(EVIL,)),
}


def _done(kind: str, *, before: bytes | None = None, requests: list[TraceRequest] = REQUESTS, **watch: Any) -> Outcome:
    head = Head(name=EVIL, block_tokens=512, timed=True, work=WORKS[kind], notes=("so it is",))
    return perform(head, iter(requests), count=len(requests), watcher=Watcher(**watch), before=before)


@cache
def _whole(kind: str) -> tuple[Outcome, tuple[tuple[int, int | None], ...]]:
    """Work that nothing breaks off, done once for all that look at it: its outcome, and what it told of its progress."""
    told: list[tuple[int, int | None]] = []
    outcome = _done(kind, progress=lambda done, total: told.append((done, total)), tell_s=0.0)
    return outcome, tuple(told)


class _Ends(Exception):
    pass


def _clock() -> Callable[[], float]:
    """A second later whenever it is asked."""
    seconds = iter(range(10_000_000))
    return lambda: float(next(seconds))


@pytest.mark.parametrize("kind", WORKS)
def test_work_that_is_broken_off_goes_on_to_the_same_outcome(kind: str) -> None:
    """Ended at each of its checkpoints in turn; what was done is not done again."""
    whole, _ = _whole(kind)
    before: bytes | None = None
    ends, told = 0, []
    while True:
        kept: list[bytes] = []

        def end(content: bytes, kept: list[bytes] = kept) -> None:
            kept.append(content)
            raise _Ends

        begun: list[int] = []
        try:
            outcome = _done(
                kind,
                before=before,
                checkpoint=end,
                progress=lambda done, _total, begun=begun: begun.append(done),
                checkpoint_s=2.0,
                clock=_clock(),
                tell_s=0.0,
            )
        except _Ends:
            before, ends = kept[0], ends + 1
            told.append(begun[0] if begun else 0)
        else:
            break
    assert ends >= 2
    assert outcome.values == whole.values
    assert outcome.html == whole.html
    if kind != "analyze":
        assert told == sorted(told)
        assert told[-1] >= len(REQUESTS)  # the first replay was not repeated


@pytest.mark.parametrize("kind", WORKS)
def test_progress_ends_where_it_said_it_would(kind: str) -> None:
    _, told = _whole(kind)
    runs = {"analyze": 1, "replay": 2, "review": 4}[kind]
    assert told[-1] == (runs * len(REQUESTS),) * 2
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {runs * len(REQUESTS)}


def test_a_checkpoint_of_other_work_is_passed_over() -> None:
    """Of another policy: nothing of it is in the outcome."""
    kept: list[bytes] = []
    _done("replay", checkpoint=kept.append)
    head = Head(name="t", block_tokens=512, timed=True, work=Replay(policies=(ROUND, ETTFT), fleet=FLEET))
    found = perform(head, iter(REQUESTS), count=len(REQUESTS), watcher=Watcher(), before=kept[-1])
    assert [run["policy"] for run in found.values["runs"]] == ["round_robin", "ettft"]


@pytest.mark.parametrize("kind", WORKS)
def test_a_page_is_whole_by_itself_and_holds_no_markup_of_others(kind: str) -> None:
    """No scripts, nothing from elsewhere, texts escaped, plots inline with ids of their own."""
    outcome, _ = _whole(kind)
    html = outcome.html
    assert EVIL not in html
    assert "&lt;img src=x onerror=" in html
    for foreign in ("<script", "<link", "<iframe", "@import", "url(http", "srcset", "<object"):
        assert foreign not in html.lower()
    assert set(re.findall(r"https?://[^\"' <]+", html)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<[a-z]+[^>]* (?:on\w+|style)=", html)
    assert "<img" not in html
    assert set(outcome.plots) == {"analyze": {"ceiling", "capacity", "gaps", "concentration", "parting"}}.get(
        kind, {"ttft", "hits"} | ({"changes"} if kind == "review" else set())
    )
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert all(svg in html for svg in outcome.plots.values())
    assert "so it is" in html


def test_plots_are_elements_and_attributes_alone() -> None:
    """What a strict Content-Security-Policy lets stand, and the same bytes for the same figures."""
    for svg in (
        plots.bars("one", [(EVIL, 0.4)], title=EVIL, label="share", mark=("ceiling", 0.5)),
        plots.lines("two", [("a", [1, 10, 100], [0, 0.5, 1]), ("b", [1, 2, 3], [1, 1, 1])], title="t", x_label="x", y_label="y", x_log=True),
        plots.intervals("three", [("mean", -0.1, -0.2, 0.0)], title="t", label="change"),
    ):
        assert set(re.findall(r"<(\w+)", svg)) <= {"svg", "title", "g", "defs", "path", "use", "clipPath", "rect"}
        assert not re.search(r"style|script|onerror=\"|<metadata|xlink|<!|<\?", svg.replace("&lt;img src=x onerror=", ""))
        assert "currentColor" in svg
    again = [plots.bars("one", [("a", 0.4)], title="t", label="share") for _ in range(2)]
    assert again[0] == again[1]


def test_a_trace_without_requests_is_no_work() -> None:
    for kind in WORKS:
        with pytest.raises(ValueError, match="holds no request"):
            _done(kind, requests=[])


def test_a_replay_of_isolated_scopes_shares_nothing_between_them() -> None:
    """Captured traffic: two scopes with equal text. The ceiling and the hits are those of a scope alone."""
    requests = [TraceRequest(float(place), 2048, 5, (0, 1, 2, 3), scope=f"n{1 + place % 2}") for place in range(20)]
    work = Replay(policies=(ETTFT,), fleet=FLEET)
    shared, isolated = (
        perform(Head(name="t", block_tokens=512, timed=True, work=work, isolated=isolated), iter(requests), count=20, watcher=Watcher()).values[
            "runs"
        ][0]
        for isolated in (False, True)
    )
    assert shared["ceiling"] == pytest.approx(19 / 20)
    assert isolated["ceiling"] == pytest.approx(18 / 20)
    assert isolated["hit_share"] < shared["hit_share"]


def test_a_page_beyond_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from routing.traces.work import TooLarge

    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1000)
    with pytest.raises(TooLarge):
        _done("analyze")


def test_numbers_on_an_axis_are_short() -> None:
    assert [plots.short(value) for value in (0.05, 20, 4096, 16_777_216, 2e9)] == ["0.05", "20", "4.1k", "16.8M", "2G"]


def test_a_figure_without_an_interval_is_left_out_of_the_page() -> None:
    """Beside a sentence that nothing can be told it would be read as a finding; one with its interval stands."""
    assert pages._told({"value": -0.385, "low": None, "high": None}, "{:+.1%}") == ("-", "too little traffic")
    assert pages._told({"value": -0.1, "low": -0.2, "high": -0.05}, "{:+.1%}") == ("-10.0%", "-20.0% to -5.0%")
