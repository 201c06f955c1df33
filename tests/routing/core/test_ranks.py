"""Which ranks may be named, and which of them is."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import scheduler
from routing.core.exposition import read_load
from routing.core.policy import RoutingPolicy
from routing.core.ranks import MAX_RANKS, addressable
from routing.core.residency import HistoryIndex
from routing.core.types import Ask, Replica

ASK = Ask(prompt_tokens=8000, prefix_key=b"k")


@pytest.mark.parametrize(
    ("rows", "sources", "count"),
    [
        ([0, 1, 2], [0, 1, 2], 3),
        ([2, 0, 1], [], 3),
        ([0, 1], [0], 2),
        (None, [0, 1], 2),
        ([0], [0], 0),
        ([0], [0, 1], 0),
        ([3], [3], 0),
        ([2, 3], [2, 3], 0),
        ([0, 1], [2, 3], 0),
        ([0, 2], [], 0),
        ([], [0, 1], 0),
        (None, [], 0),
        (list(range(MAX_RANKS)), [], MAX_RANKS),
        (list(range(MAX_RANKS + 1)), [], 0),
    ],
)
def test_ranks_are_named_only_where_their_numbers_mean_one_thing(rows: list[int] | None, sources: list[int], count: int) -> None:
    """0, 1, ... without a gap, by metrics and events alike: a part of a larger deployment counts its own from 0, and shows others."""
    assert addressable(rows, sources) == count


def page(*rows: str) -> bytes:
    return "\n".join(rows).encode()


def test_loads_are_read_by_rank() -> None:
    """Each rank's own rows, whatever the order of labels; rows by reason are another family's."""
    text = page(
        'vllm:num_requests_running{engine="1",model_name="m"} 3.0',
        'vllm:num_requests_running{model_name="m",engine="0"} 1.0',
        'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0',
        'vllm:num_requests_waiting{engine="1",model_name="m"} 7.0',
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 5.0',
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5',
    )
    load = read_load("vllm", text)
    assert [(one.number, one.running, one.waiting, one.kv_used) for one in load.ranks or ()] == [(0, 1.0, 0.0, None), (1, 3.0, 7.0, 0.5)]
    assert (load.running, load.waiting) == (4.0, 7.0)
    assert read_load("sglang", text).ranks is None


def test_a_rank_that_served_nothing_yet_is_one_all_the_same() -> None:
    """Seen on vLLM 0.32: gauges of a rank appear with its first request, its counters are there from the start."""
    counters = [f'vllm:prompt_tokens_total{{engine="{one}",model_name="m"}} {one * 200}.0' for one in (0, 1)]
    gauges = ['vllm:num_requests_running{engine="1",model_name="m"} 2.0', 'vllm:num_requests_waiting{engine="1",model_name="m"} 1.0']
    fresh, first = read_load("vllm", page(*counters)), read_load("vllm", page(*counters, *gauges))
    assert [(one.number, one.running, one.waiting) for one in fresh.ranks or ()] == [(0, 0.0, 0.0), (1, 0.0, 0.0)]
    assert [(one.number, one.running, one.waiting) for one in first.ranks or ()] == [(0, 0.0, 0.0), (1, 2.0, 1.0)]
    assert (fresh.running, first.running) == (None, 2.0)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (["vllm:num_requests_running 1", "vllm:num_requests_waiting 1"], None),
        (['vllm:num_requests_running{engine="0"} 1', 'vllm:num_requests_waiting{engine="0"} 1'], 1),
        (['vllm:num_requests_running{engine="0"} 1', 'vllm:num_requests_running{engine="0"} 1', 'vllm:num_requests_waiting{engine="0"} 1'], 0),
        (['vllm:num_requests_running{engine="0"} 1', 'vllm:num_requests_running{engine="1"} 1', 'vllm:num_requests_waiting{engine="0"} 1'], 0),
    ],
    ids=["no labels", "one", "one twice", "one family short"],
)
def test_what_does_not_tell_ranks_apart_is_not_guessed_at(rows: list[str], found: int | None) -> None:
    """None: nothing is said of ranks. Empty: it cannot be used."""
    ranks = read_load("vllm", page(*rows)).ranks
    assert (None if ranks is None else len(ranks)) == found


def rank(number: int, **more: object) -> Replica:
    return dataclasses.replace(Replica(id="a", name="a", rank=bytes([number]), dp_rank=number), **more)  # type: ignore[arg-type]  # fields of a test


def test_the_rank_that_holds_the_prefix_is_named_until_its_queue_costs_more() -> None:
    """Reuse against queue, in seconds, as between replicas."""
    holds, empty = rank(1, matched_tokens=7000, confidence=0.9), rank(0)
    assert scheduler.best_rank(ASK, [empty, holds], RoutingPolicy()).dp_rank == 1
    busy = dataclasses.replace(holds, queued_tokens=60_000.0, in_flight=8)
    assert scheduler.best_rank(ASK, [empty, busy], RoutingPolicy()).dp_rank == 0


def test_a_rank_whose_cache_is_nearly_used_up_is_not_named_while_another_is_free() -> None:
    """As a replica; where all are full, the best of them is."""
    full = rank(1, matched_tokens=7000, confidence=0.9, kv_used=0.97)
    assert scheduler.best_rank(ASK, [rank(0), full], RoutingPolicy()).dp_rank == 0
    assert scheduler.best_rank(ASK, [rank(0, kv_used=0.96), full], RoutingPolicy()).dp_rank == 1


@pytest.mark.parametrize("policy", ["round_robin", "least_outstanding", "bounded_hash", "longest_prefix"])
def test_policies_that_weigh_no_seconds_choose_replicas_and_time_chooses_the_rank(policy: str) -> None:
    """What such a policy is called says nothing of caches inside one engine."""
    ranks = [rank(0), rank(1, matched_tokens=7000, confidence=0.9)]
    assert scheduler.best_rank(ASK, ranks, RoutingPolicy(policy=policy)).dp_rank == 1  # type: ignore[arg-type]  # names of policies


@given(st.lists(st.tuples(st.integers(0, 8000), st.floats(0, 1e5), st.integers(0, 20)), min_size=1, max_size=8), st.randoms())
def test_which_rank_is_named_does_not_hang_on_their_order(facts: list[tuple[int, float, int]], random: object) -> None:
    """Equal ranks are told apart by the prompt's own order of them."""
    ranks = [
        rank(number, matched_tokens=matched, confidence=0.8, queued_tokens=queued, in_flight=busy)
        for number, (matched, queued, busy) in enumerate(facts)
    ]
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    assert scheduler.best_rank(ASK, ranks, RoutingPolicy()) == scheduler.best_rank(ASK, shuffled, RoutingPolicy())


def test_what_was_sent_to_any_rank_explains_a_hit() -> None:
    """A header that was dropped on the way is no leak. The request itself explains nothing, and where history has gaps nobody can tell."""
    index, digests = HistoryIndex(), [bytes([number]) * 16 for number in range(8)]
    index.confirmed(b"n" * 16, digests[:6], "a#0", index.dispatched(b"n" * 16, digests[:6], "a#0"), 0.0)
    own = index.dispatched(b"n" * 16, digests, "a#1")
    assert index.explained_anywhere(b"n" * 16, digests, {"a": 0, "a#0": 0, "a#1": own}) == 6
    assert index.explained_anywhere(b"n" * 16, digests, {"a#1": own}) == 0
    assert index.explained_anywhere(b"n" * 16, digests, {"b": 0}) is None
    other = index.dispatched(b"n" * 16, digests, "a#0")
    index.dropped(b"n" * 16, digests, "a#0", other, certain=False)
    assert index.explained_anywhere(b"n" * 16, digests, {"a#0": 0, "a#1": own}) is None
