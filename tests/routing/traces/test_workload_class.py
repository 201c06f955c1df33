"""Classes of traffic: each made-up workload is told for what it is, and the advice comes from its figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import pytest

from routing.traces import workloads
from routing.traces.analysis import analyse
from routing.traces.request import TraceRequest
from routing.traces.workload_class import Advice, classify
from routing.traces.workloads import BLOCK_TOKENS, blocks_of, request


def _advice(requests: Iterable[TraceRequest]) -> Advice:
    return classify(analyse(sorted(requests, key=lambda one: one.at_s), BLOCK_TOKENS))


def _conversations(prompt: int, grown: int, turns: int, count: int) -> Iterable[TraceRequest]:
    for who in range(count):
        for turn in range(turns):
            tokens = prompt + turn * grown
            blocks = blocks_of([("system", 1024), (f"talk {who}", tokens)])
            yield TraceRequest(who * 3.0 + turn * 60.0, 1024 + tokens, 200, blocks, session=str(who))


def _mostly_single() -> Iterable[TraceRequest]:
    """Most conversations have one turn, but what is reused is reused in the long ones."""
    return chain(_conversations(400, 0, 1, 120), (replace(one, session=f"long {one.session}") for one in _conversations(6000, 6000, 3, 30)))


def _records() -> Iterable[TraceRequest]:
    return (request(float(number), [("instruction", 4096), (f"record {number}", 900)], 40) for number in range(200))


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("long generation", lambda: workloads.long_outputs(1, count=200, per_s=1)),
        ("weak reuse", lambda: workloads.weak_reuse(1, count=200, per_s=1)),
        ("coding or agent", lambda: _conversations(60_000, 2000, 15, 5)),
        ("batch", _records),
        ("RAG", lambda: workloads.rag(1, count=400, per_s=1)),
        ("chat", lambda: _conversations(800, 700, 6, 40)),
        ("chat", _mostly_single),
    ],
)
def test_each_kind_is_told(kind: str, requests: object) -> None:
    assert _advice(requests()).kind == kind  # type: ignore[operator]


def test_a_change_early_in_every_prompt_is_pointed_out() -> None:
    dated = [request(float(number), [("system", 512), (f"date {number}", 512), ("tools", 4096)], 100) for number in range(100)]
    advice = _advice(dated)
    assert any("part after 512 tokens" in line for line in advice.advice)
    settled = [request(float(number), [("system", 4608), (f"date {number}", 512)], 100) for number in range(100)]
    assert not any("part after" in line for line in _advice(settled).advice)


def test_the_price_of_keeping_scopes_apart_is_named() -> None:
    apart = chain.from_iterable(
        (request(float(number), [("shared", 4096), (f"own {number}", 1024)], 10, scope=scope) for number in range(place, 60, 3))
        for place, scope in enumerate(("a", "b", "c"))
    )
    assert any("Keeping scopes apart costs" in line for line in _advice(apart).advice)


def test_a_short_trace_is_not_told_to_need_more_cache_than_it_has_tokens() -> None:
    """The curve's sizes are powers of two; a trace that needs all it has is told its own size. What needs less gets the curve's."""
    whole = _advice(request(float(number), [(f"in turn {number % 3}", 4096)], 9) for number in range(60)).advice
    assert any(line.startswith("All of it is 12,288 distinct tokens") for line in whole)
    assert not any("16,384" in line for line in whole)
    assert any(" tokens of cache, over all replicas and without copies, get 90 %" in line for line in _advice(_conversations(800, 700, 6, 10)).advice)
    long = _advice(chain(_conversations(6000, 6000, 3, 30), (request(900.0 + number, [(f"once {number}", 8192)], 9) for number in range(60)))).advice
    assert any("tokens of cache, over all replicas and without copies" in line for line in long)


def test_how_long_caches_must_hold_is_said_in_time() -> None:
    """Turns are a minute apart, so that is what the advice names; a trace without reuse names none."""
    assert any("95 % within " in line and line.endswith((" seconds.", " minutes.")) for line in _advice(_conversations(800, 700, 6, 40)).advice)
    assert not any("is reused within" in line for line in _advice(request(float(n), [(f"once {n}", 900)], 9) for n in range(99)).advice)
