"""The split of a request's time: it adds up, whatever went in, and names what was made to happen."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.cause import ESTIMATED, MISSES, PARTS, Known, Times, Work, folded, main, missed, split

_seconds = st.floats(0, 1e5) | st.just(0.0)
_tokens = st.integers(0, 200_000)
_times = st.builds(
    Times,
    total_s=_seconds,
    router_s=_seconds,
    queue_s=_seconds,
    retry_s=_seconds,
    transfer_s=_seconds,
    serving_s=_seconds,
    first_token_s=st.none() | _seconds,
    silent_s=_seconds,
)
_work = st.builds(
    Work,
    prompt_tokens=_tokens,
    warm_tokens=_tokens,
    rate=st.floats(1, 1e6),
    pool_rate=st.floats(1, 1e6),
    fixed_s=_seconds,
    wait_s=_seconds,
    behind_s=_seconds,
    others_s=_seconds | st.just(math.inf),
    completion_tokens=_tokens,
    token_s=st.none() | st.floats(0, 1),
    learned=st.booleans(),
)
_known = st.builds(
    Known,
    matched=_tokens,
    pending=st.booleans(),
    elsewhere=_tokens,
    sent=_tokens,
    last_turn=_tokens,
    lost=st.booleans(),
    apart=st.booleans(),
    former=_tokens,
)


@given(_times, _work, st.dictionaries(st.sampled_from(MISSES), _tokens))
def test_the_parts_add_up_to_the_whole_exactly(times: Times, work: Work, misses: dict[str, int]) -> None:
    parts = split(times, work, misses)
    assert sum(parts.values()) == round(times.total_s * 1e6)
    assert all(value > 0 for value in parts.values())
    assert set(parts) <= set(PARTS)
    assert sum(folded(parts).values()) == sum(parts.values())


@given(_times, _work, st.dictionaries(st.sampled_from(MISSES), _tokens))
def test_others_take_no_longer_than_they_were_there(times: Times, work: Work, misses: dict[str, int]) -> None:
    """And nothing at all where nobody was, whatever was expected of them."""
    assert split(times, work, misses).get("queue_engine", 0) <= round(min(work.others_s, 1e6) * 1e6)
    assert "queue_engine" not in split(times, replace(work, others_s=0.0), misses)


@given(_known, _tokens, _tokens, st.integers(0, 64))
def test_missed_tokens_add_up_to_what_was_not_cached(known: Known, cached: int, warm: int, rounding: int) -> None:
    counts = missed(known, cached_tokens=cached, warm_tokens=warm, rounding_tokens=rounding)
    assert sum(counts.values()) == max(0, warm - cached)
    assert all(count > 0 for count in counts.values())


@pytest.mark.parametrize(
    ("known", "cached", "counts"),
    [
        (Known(), 0, {"never_seen": 1000}),
        (Known(matched=900), 896, {"never_seen": 104}),  # four tokens are rounding
        (Known(matched=900), 0, {"evicted": 900, "never_seen": 100}),
        (Known(matched=900, pending=True), 0, {"not_ready": 900, "never_seen": 100}),
        (Known(matched=100, elsewhere=800), 100, {"policy": 700, "never_seen": 200}),
        (Known(sent=700, last_turn=700, lost=True), 0, {"replica_lost": 700, "never_seen": 300}),
        (Known(sent=700, apart=True), 0, {"other_pool": 700, "never_seen": 300}),
        (Known(sent=700, lost=True, apart=True), 0, {"replica_lost": 700, "never_seen": 300}),
        (Known(sent=700, last_turn=700), 0, {"evicted": 700, "never_seen": 300}),
        (Known(matched=64, sent=64, last_turn=800), 64, {"changed": 736, "never_seen": 200}),
        (Known(former=800), 0, {"namespace_changed": 800, "never_seen": 200}),
        (Known(matched=2000), 1000, {}),
    ],
)
def test_each_missing_token_has_one_reason(known: Known, cached: int, counts: dict[str, int]) -> None:
    assert missed(known, cached_tokens=cached, warm_tokens=1000, rounding_tokens=16) == counts


def test_a_stream_s_time_by_hand() -> None:
    times = Times(total_s=5.0, router_s=0.01, queue_s=0.5, retry_s=0.29, serving_s=4.2, first_token_s=2.2)
    work = Work(prompt_tokens=8001, warm_tokens=8000, rate=8000, pool_rate=8000, fixed_s=0.1, wait_s=0.2, others_s=math.inf)
    parts = split(times, work, {"evicted": 8000})
    assert parts == {
        "ideal": 100_125,
        "router": 10_000,
        "queue_router": 500_000,
        "retry": 290_000,
        "missed_evicted": 1_000_000,
        "generation": 2_000_000,
        "queue_engine": 1_099_875,
    }
    assert main(parts, late=False) == "generation"
    assert main(parts, late=True) == "queue_engine"


def test_a_slow_replica_pays_for_its_slowness_alone() -> None:
    """At a quarter of its pool's rate the same tokens cost four times as much: three of the four are the replica's."""
    times = Times(total_s=4.0, serving_s=4.0, first_token_s=4.0)
    parts = split(times, Work(prompt_tokens=8000, warm_tokens=7999, rate=2000, pool_rate=8000), {"never_seen": 7999})
    assert parts["missed_never_seen"] == 999_875
    assert parts["slow_replica"] == 3_000_000
    assert main(parts, late=False) == "slow_replica"


def test_time_that_nothing_known_explains_is_called_so() -> None:
    idle = split(Times(total_s=3.0, serving_s=3.0, first_token_s=3.0), Work(prompt_tokens=100, warm_tokens=96), {})
    assert main(idle, late=False) == "unexplained"
    busy = split(Times(total_s=3.0, serving_s=3.0, first_token_s=3.0), Work(prompt_tokens=100, warm_tokens=96, wait_s=1.0, others_s=3.0), {})
    assert main(busy, late=False) == "queue_engine"


def test_estimates_never_take_more_than_was_measured() -> None:
    parts = split(
        Times(total_s=0.5, serving_s=0.5, first_token_s=0.5), Work(prompt_tokens=8001, warm_tokens=8000), {"evicted": 6000, "changed": 2000}
    )
    assert parts["missed_evicted"] == pytest.approx(3 * parts["missed_changed"], rel=1e-4)
    assert "queue_engine" not in parts


def test_before_a_rate_was_measured_an_idle_replica_is_as_slow_as_it_looks() -> None:
    times, work = Times(total_s=2.5, serving_s=2.5, first_token_s=2.5), Work(prompt_tokens=8001, warm_tokens=8000, learned=False)
    assert split(times, work, {"evicted": 8000})["missed_evicted"] == pytest.approx(2.5e6, rel=0.001)
    assert split(times, replace(work, learned=True), {"evicted": 8000})["unexplained"] == pytest.approx(1.5e6, rel=0.001)
    assert split(times, replace(work, others_s=math.inf), {"evicted": 8000})["queue_engine"] == pytest.approx(1.5e6, rel=0.001)
    assert split(times, replace(work, others_s=math.inf, learned=True), {"evicted": 8000})["queue_engine"] == pytest.approx(1e6, rel=0.001)
    hung = split(replace(times, total_s=60.0, serving_s=60.0, first_token_s=60.0), work, {"evicted": 8000})
    assert main(hung, late=False) == "unexplained"


def test_a_whole_answer_s_generation_is_estimated() -> None:
    times = Times(total_s=2.0, serving_s=2.0)
    known = split(times, Work(prompt_tokens=10, completion_tokens=101, token_s=0.015), {})
    assert known["generation"] == 1_500_000
    unknown = split(times, Work(prompt_tokens=10, completion_tokens=101), {})
    assert unknown["generation"] > 1_900_000
    work = Work(prompt_tokens=700, completion_tokens=101, others_s=math.inf, wait_s=0.001, behind_s=1.0, learned=False)
    shared = split(times, work, {})
    assert shared["queue_engine"] == 1000, "a replica that hardly anybody else uses is not what took the time"
    assert main(shared, late=False) == "generation"
    paced = split(times, replace(work, token_s=0.01, learned=True), {})
    assert paced["queue_engine"] > 900_000, "what is above the usual pace is others', where others were"
    left = split(times, replace(work, token_s=0.01, learned=True, others_s=0.2), {})
    assert left["queue_engine"] == 200_000, "and no longer than they were there"


def test_time_in_which_the_replica_did_not_answer_is_called_so() -> None:
    """Of a request without a first token what was before it is estimated as ever; of a stream it is not taken for generation."""
    work = Work(prompt_tokens=100, warm_tokens=96)
    hung = split(Times(total_s=50.0, serving_s=50.0, silent_s=49.0), work, {})
    assert hung["no_answer"] == 49_000_000
    assert main(hung, late=False) == "no_answer"
    assert hung["unexplained"] < 1_000_000
    broken = split(Times(total_s=50.0, serving_s=50.0, first_token_s=1.0, silent_s=40.0), work, {})
    assert (broken["no_answer"], broken["generation"]) == (40_000_000, 9_000_000)
    assert "no_answer" not in split(Times(total_s=50.0, serving_s=50.0), work, {})


def test_what_nobody_measured_does_not_grow_into_the_generation_of_a_whole_answer() -> None:
    """Its end is all that was measured, so nothing says that the prompt took longer. The first token of a stream does."""
    work = Work(prompt_tokens=112, warm_tokens=96, fixed_s=0.03, completion_tokens=40, learned=False)
    whole = split(Times(total_s=0.288, serving_s=0.288), work, {"never_seen": 16})
    assert whole["ideal"] == 32_000
    assert whole["generation"] == 254_000
    streamed = split(Times(total_s=0.288, serving_s=0.288, first_token_s=0.1), work, {"never_seen": 16})
    assert streamed["ideal"] > 90_000


def test_nothing_is_read_that_an_engine_does_not_say() -> None:
    """Of the engine: three counts of its usage. The recordings have them, and no time that a request spent in the engine's queue."""
    vectors = Path("tests/vectors/vllm-0.32")
    said = "".join(path.read_text() for path in vectors.rglob("*.json"))
    for field in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert field in said
    for path in vectors.rglob("*.json"):
        for usage in _named(json.loads(path.read_text()), "usage"):
            assert not [name for name in usage if "queue" in name or "time" in name]
    assert {"ideal", "queue_engine", "slow_replica"} <= ESTIMATED
    assert not ESTIMATED & {"router", "queue_router", "retry", "no_answer", "transfer"}


def _named(value: object, name: str) -> list[dict[str, object]]:
    if isinstance(value, dict):
        own = [value[name]] if isinstance(value.get(name), dict) else []
        return own + [found for inner in value.values() for found in _named(inner, name)]
    return [found for inner in value for found in _named(inner, name)] if isinstance(value, list) else []
