"""Rollups and usage: sums that do not depend on how records were batched, and that are the sum of the records."""

from __future__ import annotations

import functools
import uuid
from datetime import date
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from routing.core.record import DecisionRecord, saved_us
from routing.core.rollup import MINUTE_S, SUMS, Key, Rollup, Usage, UsageKey, decode_histograms, rollups, usage, usages, width_s

_ids = st.sampled_from([uuid.UUID(int=1), uuid.UUID(int=2)])
_tokens = st.none() | st.integers(0, 100_000)
_times = st.none() | st.floats(0, 100)
records = st.builds(
    DecisionRecord,
    id=st.uuids(),
    tenant_id=_ids,
    started_at=st.floats(1_700_000_000, 1_700_000_200),
    route=st.just("chat"),
    outcome=st.sampled_from(["ok", "upstream_error", "refused"]),
    status=st.just(200),
    router_id=st.just("r"),
    config_version=st.just(1),
    endpoint_id=st.none() | _ids,
    key_id=st.none() | _ids,
    replica_id=st.sampled_from([None, "a", "b"]),
    error_code=st.sampled_from([None, "no_replica"]),
    prompt_tokens=_tokens,
    cached_tokens=_tokens,
    completion_tokens=_tokens,
    matched_tokens=st.integers(0, 100_000),
    expected_cached_tokens=st.floats(0, 100_000) | st.just(float("nan")),
    ttft_s=_times,
    e2e_s=_times,
    queue_s=_times,
    slo_ttft_s=_times,
    prefill_tokens_per_s=st.none() | st.floats(0, 100_000),
)
many = st.lists(records, max_size=25)


def _merged(*parts: dict[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for part in parts:
        for key, value in part.items():
            found[key] = found[key].plus(value) if key in found else value
    return found


@given(many, st.integers(0, 25), st.randoms(use_true_random=False))
def test_batches_and_their_order_change_nothing(found: list[DecisionRecord], cut: int, draw: Any) -> None:
    whole, shuffled = (rollups(found), usages(found)), list(found)
    draw.shuffle(shuffled)
    assert _merged(rollups(shuffled[cut:]), rollups(shuffled[:cut])) == whole[0]
    assert _merged(usages(shuffled[cut:]), usages(shuffled[:cut])) == whole[1]


@given(many)
def test_totals_are_the_sum_of_the_records(found: list[DecisionRecord]) -> None:
    total = functools.reduce(Rollup.plus, rollups(found).values(), Rollup())
    used = functools.reduce(Usage.plus, usages(found).values(), Usage())
    expected = {
        "requests": len(found),
        "input_tokens": sum(one.prompt_tokens or 0 for one in found),
        "cached_tokens": sum(one.cached_tokens or 0 for one in found),
        "output_tokens": sum(one.completion_tokens or 0 for one in found),
        "saved_us": sum(saved_us(one) for one in found),
    }
    assert used._asdict() == expected
    assert (total.requests, total.prompt_tokens, total.cached_tokens, total.completion_tokens, total.saved_us) == tuple(expected.values())
    assert sum(total.codes.values()) == sum(one.error_code is not None for one in found)
    for name in ("ttft_s", "queue_s", "prompt_tokens"):
        assert (total.histograms[name].total if name in total.histograms else 0) == sum(getattr(one, name) is not None for one in found)


@given(many)
def test_histograms_come_back_from_their_bytes(found: list[DecisionRecord]) -> None:
    for one in rollups(found).values():
        assert decode_histograms(one.encoded_histograms()) == one.histograms
        assert all(isinstance(getattr(one, name), int) for name in SUMS)


def _record(**fields: Any) -> DecisionRecord:
    given_fields: dict[str, Any] = {
        "id": uuid.UUID(int=9),
        "tenant_id": uuid.UUID(int=1),
        "started_at": 1_700_000_039.5,
        "route": "chat",
        "outcome": "ok",
    }
    return DecisionRecord(**{**given_fields, "status": 200, "router_id": "r", "config_version": 1, **fields})


def test_a_record_lands_in_its_minute_and_its_day() -> None:
    one = _record(endpoint_id=uuid.UUID(int=3), key_id=uuid.UUID(int=4), replica_id="a")
    ((key, _),) = rollups([one]).items()
    assert key == Key(uuid.UUID(int=1), 1_699_999_980, MINUTE_S, uuid.UUID(int=3), None, "a", "ok")
    ((used, _),) = usages([one]).items()
    assert used == UsageKey(uuid.UUID(int=1), date(2023, 11, 14), uuid.UUID(int=4), None, uuid.UUID(int=3))


def test_reuse_is_counted_only_where_the_engine_told_of_it() -> None:
    told = _record(prompt_tokens=100, cached_tokens=60, matched_tokens=900, expected_cached_tokens=70.4)
    silent = _record(prompt_tokens=100, cached_tokens=None, matched_tokens=90)
    (found,) = rollups([told, silent]).values()
    assert (found.prompt_tokens, found.reported_prompt_tokens, found.matched_tokens, found.expected_tokens, found.cached_tokens) == (
        200,
        100,
        100,
        70,
        60,
    )


def test_numbers_no_engine_could_mean_are_bounded() -> None:
    assert usage(_record(prompt_tokens=-5, cached_tokens=10**18, completion_tokens=None)).input_tokens == 0
    assert usage(_record(cached_tokens=10**18)).cached_tokens == 2**40


def test_time_per_token_needs_a_stream_of_two_tokens_that_ended_well() -> None:
    usual: dict[str, Any] = {"ttft_s": 1.0, "e2e_s": 3.0, "completion_tokens": 21}
    assert rollups([_record(**usual)]).popitem()[1].histograms["tpot_s"].total == 1
    for change in ({"ttft_s": None}, {"completion_tokens": 1}, {"outcome": "incomplete"}):
        assert "tpot_s" not in rollups([_record(**{**usual, **change})]).popitem()[1].histograms


def test_rows_grow_wider_with_age() -> None:
    assert [width_s(age_s) for age_s in (0, 6 * 3600, 8 * 3600, 24 * 3600, 26 * 3600)] == [60, 60, 600, 600, 3600]
