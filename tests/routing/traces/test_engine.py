"""The block engine against the simulator's engine, on the same submissions."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.simulator.config import EngineConfig, TimeModel
from routing.simulator.engine import Engine
from routing.simulator.submission import Submission
from routing.traces.engine import BlockEngine

SIZE = 16
Arrival = tuple[float, int, tuple[int, ...], int]  # s, prompt tokens, block ids, output tokens
Outcome = dict[int, tuple[float, float, int, int]]  # first token s, end s, cached tokens, preemptions


def _tokens(arrival: Arrival, number: int) -> tuple[int, ...]:
    """Token ids such that equal block ids are equal tokens, and everything beyond them is the request's own."""
    _, prompt_tokens, ids, _ = arrival
    shared = [one * SIZE + place for one in ids for place in range(SIZE)][:prompt_tokens]
    return tuple(shared + [(1 << 30) + number * 4096 + place for place in range(prompt_tokens - len(shared))])


def by_tokens(arrivals: list[Arrival], config: EngineConfig) -> Outcome:
    engine, now_s, place = Engine(config), 0.0, 0
    first: dict[int, tuple[float, int]] = {}
    outcome: Outcome = {}
    while place < len(arrivals) or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, arrivals[place][0])
        while place < len(arrivals) and arrivals[place][0] <= now_s:
            output = tuple((1 << 40) + place * 4096 + index for index in range(arrivals[place][3]))
            engine.submit(Submission(request_id=str(place), token_ids=_tokens(arrivals[place], place), output_token_ids=output), arrivals[place][0])
            place += 1
        result = engine.step(now_s)
        now_s += result.duration_s
        for one in result.outputs:
            if one.index == 0:
                first[int(one.request_id)] = (now_s, one.cached_tokens)
            if one.finished is not None:
                began_s, cached = first[int(one.request_id)]
                outcome[int(one.request_id)] = (began_s, now_s, cached, one.finished.preemptions)
    return outcome


def by_blocks(arrivals: list[Arrival], config: EngineConfig) -> Outcome:
    engine = BlockEngine(config)
    first: dict[int, tuple[float, int]] = {}
    outcome: Outcome = {}
    queue: list[tuple[float, int, int]] = [(arrival[0], 1, number) for number, arrival in enumerate(arrivals)]
    heapq.heapify(queue)
    end_s = 0.0
    while queue:
        now_s, kind, number = heapq.heappop(queue)
        if kind == 0:
            if not engine.stretching or now_s != end_s:  # the stretch was cut
                continue
            tokens, ends = engine.complete()
            for token in tokens:
                first[token.request] = (token.at_s, token.cached_tokens)
            for ended in ends:
                began_s, cached = first[ended.request]
                outcome[ended.request] = (began_s, ended.at_s, cached, ended.preemptions)
        elif kind == 1:
            if engine.stretching:
                end_s = engine.cut(now_s)
                heapq.heappush(queue, (end_s, 0, 0))
            _, prompt_tokens, ids, output_tokens = arrivals[number]
            engine.submit(number, prompt_tokens, output_tokens, [one.to_bytes(8, "big") for one in ids], now_s)
        elif engine.stretching or not engine.has_work:
            continue
        else:
            end_s = engine.begin(now_s)
            heapq.heappush(queue, (end_s, 0, 0))
            continue
        heapq.heappush(queue, (now_s, 2, 0))
    return outcome


def _same(arrivals: list[Arrival], config: EngineConfig) -> int:
    """Both engines agree; returns how often they preempted."""
    expected, found = by_tokens(arrivals, config), by_blocks(arrivals, config)
    assert found.keys() == expected.keys() == set(range(len(arrivals)))
    for number, (first_s, end_s, cached, preemptions) in expected.items():
        assert found[number][2:] == (cached, preemptions), number
        assert found[number][:2] == pytest.approx((first_s, end_s), abs=1e-6), number
    return sum(one[3] for one in expected.values())


def _arrivals(seed: int, count: int, gap_s: float, *, longest: int) -> list[Arrival]:
    """Prompts of a small tree: every block id names its whole path."""
    draw, at_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(1 / gap_s)
        path, ids = 1, []
        for _ in range(draw.randint(0, 7)):
            path = path * 3 + draw.randint(0, 2)
            ids.append(path)
        prompt = len(ids) * SIZE + draw.randint(1, 3 * SIZE)
        found.append((at_s, prompt, tuple(ids), draw.randint(1, max(1, longest - prompt))))
    return found


@pytest.mark.parametrize("blocks", [13, 20, 40, 400])
@pytest.mark.parametrize("budget", [24, 64, 2048])
def test_both_engines_agree_with_ample_and_with_scarce_blocks(blocks: int, budget: int) -> None:
    config = EngineConfig(blocks=blocks, block_size_tokens=SIZE, max_model_len_tokens=12 * SIZE, max_num_seqs=8, max_num_batched_tokens=budget)
    _same(_arrivals(blocks + budget, 80, 0.1, longest=11 * SIZE), config)


def test_they_agree_when_sequences_are_preempted() -> None:
    config = EngineConfig(blocks=24, block_size_tokens=SIZE, max_model_len_tokens=12 * SIZE, max_num_seqs=8, max_num_batched_tokens=256)
    assert _same(_arrivals(5, 60, 0.05, longest=12 * SIZE), config) > 5


def test_a_long_stretch_of_growing_steps_is_cut_at_the_first_boundary() -> None:
    time = TimeModel(step_s=0.001, decode_s_per_sequence=0.0, decode_s_per_context_token=0.001)
    engine = BlockEngine(EngineConfig(blocks=10, block_size_tokens=512, max_model_len_tokens=4096, time=time))
    engine.submit(1, 10, 450, [], 0.0)
    engine.begin(0.0)
    engine.complete()
    whole_s = engine.begin(1.0)
    boundary_s, context = 1.0, 10
    while boundary_s < 40.0:
        boundary_s += 0.001 + context * 0.001
        context += 1
    assert engine.cut(40.0) == pytest.approx(boundary_s, abs=1e-9) != pytest.approx(whole_s)
    engine.complete()
    assert engine.begin(boundary_s) == pytest.approx(whole_s)


@given(st.integers(0, 10_000), st.sampled_from([13, 17, 60]), st.sampled_from([0.01, 0.2, 2.0]), st.sampled_from([16, 100]))
@settings(max_examples=40, deadline=None)
def test_they_agree_on_any_arrivals(seed: int, blocks: int, gap_s: float, budget: int) -> None:
    config = EngineConfig(blocks=blocks, block_size_tokens=SIZE, max_model_len_tokens=12 * SIZE, max_num_seqs=6, max_num_batched_tokens=budget)
    _same(_arrivals(seed, 25, gap_s, longest=12 * SIZE), config)
