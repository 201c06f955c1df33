"""Ceilings, capacity curves, gaps: small traces with known answers, and plain models beside the fast code."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.traces.analysis import Analysis, Branch, Report, analyse, ceiling
from routing.traces.request import TraceRequest
from routing.traces.stack import LeafFirstStack

SIZE = 10


def _path(steps: Sequence[int]) -> tuple[int, ...]:
    """Block ids along a path of a tree: each names its whole path."""
    ids, path = [], 1
    for step in steps:
        path = path * 4 + step
        ids.append(path)
    return tuple(ids)


def _request(steps: Sequence[int], at_s: float = 0.0, own: int = 0, session: str = "", scope: str = "") -> TraceRequest:
    return TraceRequest(at_s, max(1, len(steps) * SIZE + own), 1, _path(steps), session=session, scope=scope)


traces = st.lists(st.builds(_request, st.lists(st.integers(0, 2), max_size=6), own=st.integers(0, 9)), max_size=40)


def naive_ceiling(requests: Sequence[TraceRequest]) -> float:
    """Every prompt against every earlier one."""
    hit = 0
    for place, one in enumerate(requests):
        best = 0
        for before in requests[:place]:
            shared = 0
            while shared < min(len(one.blocks), len(before.blocks)) and one.blocks[shared] == before.blocks[shared]:
                shared += 1
            best = max(best, shared)
        hit += min(best * SIZE, one.prompt_tokens)
    return hit / max(1, sum(one.prompt_tokens for one in requests))


def naive_lru(requests: Sequence[TraceRequest], capacity_blocks: int) -> float:
    """A list of blocks, most recent last, leaves touched first; one capacity at a time."""
    cache: list[int] = []
    hit = 0
    for one in requests:
        for place, block in enumerate(one.blocks):
            if block not in cache:
                break
            hit += min(SIZE, one.prompt_tokens - place * SIZE)
        for block in reversed(one.blocks):
            if block in cache:
                cache.remove(block)
            cache.append(block)
        del cache[: max(0, len(cache) - capacity_blocks)]
    return hit / max(1, sum(one.prompt_tokens for one in requests))


@given(traces)
def test_the_ceiling_is_what_comparing_all_pairs_gives(requests: list[TraceRequest]) -> None:
    expected = naive_ceiling(requests)
    assert ceiling(requests, SIZE) == pytest.approx(expected)
    assert analyse(requests, SIZE).ceiling == pytest.approx(expected)


@given(traces, st.lists(st.integers(1, 30), min_size=1, max_size=4, unique=True).map(sorted))
def test_the_capacity_curve_is_what_a_leaf_first_cache_of_each_size_hits(requests: list[TraceRequest], blocks: list[int]) -> None:
    analysis = Analysis(SIZE, capacities_tokens=[one * SIZE for one in blocks])
    for one in requests:
        analysis.add(one)
    for (_, share), capacity in zip(analysis.report().capacity, blocks, strict=True):
        assert share == pytest.approx(naive_lru(requests, capacity))


def test_a_trace_by_hand() -> None:
    requests = [
        _request((0, 0), at_s=0.0, session="a", scope="x"),
        _request((0, 0, 1), at_s=8.0, session="a", scope="x"),  # 20 of 30 tokens seen before, by its session
        _request((0, 1), at_s=16.0, session="b", scope="x"),  # 10 of 20, by its scope
        _request((0, 1), at_s=24.0, session="c", scope="y"),  # 20 of 20, by another scope
    ]
    report = analyse(requests, SIZE)
    assert (report.requests, report.prompt_tokens, report.span_s, report.sessions) == (4, 90, 24.0, 3)
    assert report.ceiling == pytest.approx(50 / 90)
    assert report.ceiling_in_scope == pytest.approx(30 / 90)
    assert report.ceiling_in_session == pytest.approx(20 / 90)
    assert report.gap_p50_s == pytest.approx(8.0, rel=0.1)
    assert report.distinct_tokens == 40
    assert report.never_reused == pytest.approx(1 / 4)
    assert report.sample == 1.0


def test_where_prompts_part_is_found() -> None:
    requests = [TraceRequest(float(number), 30, 1, (7, 8, 100 + number)) for number in range(50)]
    report = analyse(requests, SIZE)
    assert report.branches == (Branch(tokens=20, branches=50, requests=50),)


def test_a_point_that_few_requests_passed_is_left_out() -> None:
    requests = [TraceRequest(float(number), 30, 1, (7, 8, 100 + number)) for number in range(19)]
    assert analyse(requests, SIZE).branches == ()


def _zipf_trace(count: int) -> list[TraceRequest]:
    """One block in every prompt, then conversations that grow."""
    draw = random.Random(3)
    lengths: dict[int, int] = {}
    found = []
    for number in range(count):
        who = min(int(draw.paretovariate(0.7)), 100_000)
        lengths[who] = min(40, lengths.get(who, 0) + draw.randint(1, 6))
        blocks = (0, *(who * 64 + place + 1 for place in range(lengths[who])))
        found.append(TraceRequest(float(number), len(blocks) * SIZE, 1, blocks))
    return found


def _figures(report: Report) -> list[float]:
    return [report.ceiling, report.never_reused, *(share for _, share in report.capacity)]


def test_a_sample_is_close_to_the_whole_even_when_everybody_shares_one_block() -> None:
    requests = _zipf_trace(2000)
    capacities = [100 * SIZE, 500 * SIZE, 2500 * SIZE]
    reports = []
    for limit in (50_000, 600):
        analysis = Analysis(SIZE, limit=limit, capacities_tokens=capacities)
        for one in requests:
            analysis.add(one)
        reports.append(analysis.report())
        assert len(analysis._stack) <= limit
    whole, sampled = reports
    assert whole.sample == 1.0
    assert sampled.sample <= 0.25
    for expected, found in zip(_figures(whole), _figures(sampled), strict=True):
        assert found == pytest.approx(expected, abs=0.05)
    assert sampled.distinct_tokens == pytest.approx(whole.distinct_tokens, rel=0.1)


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True), max_size=40))
@settings(max_examples=50)
def test_distances_survive_the_renumbering_of_slots(prompts: list[list[int]]) -> None:
    stack = LeafFirstStack(31)
    plain: list[int] = []
    for prompt in prompts:
        for block in prompt:
            found = stack.look(block)
            assert (None if found is None else found[0]) == (len(plain) - 1 - plain.index(block) if block in plain else None)
        stack.touch(prompt, 0.0)
        for block in reversed(prompt):
            if block in plain:
                plain.remove(block)
            plain.append(block)
    assert len(stack) == len(plain)
