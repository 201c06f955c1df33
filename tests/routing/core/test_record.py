"""Decision records: read back as written, and believed only from the router whose name they bear."""

from __future__ import annotations

import random
import uuid
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from routing.core import record
from routing.core.record import AttemptRecord, CandidateRecord, DecisionRecord, Outcome, RecordError, saved_us, wants_candidates

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.none() | st.integers(0, 2**31)
candidates = st.builds(
    CandidateRecord,
    replica_id=texts,
    replica_name=texts,
    refusal=st.none() | texts,
    matched_tokens=st.integers(0, 2**31),
    score_s=numbers,
    terms=st.dictionaries(texts, numbers, max_size=2),
)
records = st.builds(
    DecisionRecord,
    id=st.uuids(),
    tenant_id=st.uuids(),
    started_at=numbers,
    route=texts,
    outcome=st.sampled_from(get_args(Outcome)),
    status=st.integers(100, 599),
    router_id=texts,
    config_version=st.integers(0, 2**62),
    endpoint_id=st.none() | st.uuids(),
    cached_tokens=counts,
    prompt_tokens=counts,
    ttft_s=st.none() | numbers,
    slo_attainable=st.booleans(),
    attempts=st.lists(st.builds(AttemptRecord, replica_id=texts, status=counts, error=st.none() | texts), max_size=2).map(tuple),
    candidates=st.lists(candidates, max_size=2).map(tuple),
)
keys = st.binary(min_size=32, max_size=32)
entries = st.tuples(keys, texts, st.binary(max_size=40))  # records key, router id, data


@given(records)
def test_a_record_reads_back_as_it_was_written(one: DecisionRecord) -> None:
    assert record.decode(record.encode(one)) == one


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        record.decode(data)


@given(records, st.integers(0, 10_000))
def test_a_cut_record_is_refused(one: DecisionRecord, place: int) -> None:
    data = record.encode(one)
    with pytest.raises(RecordError):
        record.decode(data[: place % len(data)])


@given(keys, texts, st.binary(max_size=40))
def test_an_authentic_entry_is_believed(key: bytes, router: str, data: bytes) -> None:
    record.verify(key, router, data, record.authenticate(key, router, data))


@given(entries, entries)
def test_another_key_router_or_content_is_not(own: tuple[bytes, str, bytes], other: tuple[bytes, str, bytes]) -> None:
    mac = record.authenticate(*own)
    assume(all(one != two for one, two in zip(own, other, strict=True)))
    for mixed in ((other[0], own[1], own[2]), (own[0], other[1], own[2]), (own[0], own[1], other[2])):
        with pytest.raises(RecordError):
            record.verify(*mixed, mac)


@given(keys, texts, st.binary(max_size=40), st.binary(max_size=32))
def test_a_wrong_mac_of_any_length_is_not_believed(key: bytes, router: str, data: bytes, mac: bytes) -> None:
    assume(mac != record.authenticate(key, router, data))
    with pytest.raises(RecordError):
        record.verify(key, router, data, mac)


def _made(**fields: Any) -> DecisionRecord:
    given: dict[str, Any] = {"id": uuid.UUID(int=9999), "tenant_id": uuid.UUID(int=1), "started_at": 0.0, "route": "chat", "outcome": "ok"}
    return DecisionRecord(**{**given, "status": 200, "router_id": "r", "config_version": 1, **fields})


@pytest.mark.parametrize(
    ("fields", "asked", "why"),
    [
        ({}, False, None),
        ({}, True, "asked"),
        ({"outcome": "client_error"}, False, None),
        ({"outcome": "client_cancelled"}, False, None),
        ({"outcome": "upstream_error"}, False, "error"),
        ({"outcome": "refused"}, False, "error"),
        ({"attempts": (AttemptRecord("a", error="connect"), AttemptRecord("b"))}, False, "error"),
        ({"alarm": "cached_more_than_owned"}, False, "alarm"),
        ({"slo_ttft_s": 1.0, "ttft_s": 1.5}, False, "slo"),
        ({"slo_ttft_s": 1.0, "ttft_s": 0.5}, False, None),
        ({"slo_attainable": False}, False, "slo"),
        ({"id": uuid.UUID(int=99)}, False, "sample"),
        ({"id": uuid.UUID(int=100)}, False, None),
    ],
)
def test_candidates_are_kept_where_somebody_will_look(fields: dict[str, Any], asked: bool, why: str | None) -> None:
    assert wants_candidates(_made(**fields), asked=asked, share=0.01) == why


def test_a_sample_of_random_ids_is_about_its_share() -> None:
    draw = random.Random(7)
    kept = sum(wants_candidates(_made(id=uuid.UUID(int=draw.getrandbits(128))), asked=False, share=0.01) is not None for _ in range(20_000))
    assert 150 < kept < 250  # 200 expected, 14 is one standard deviation
    assert wants_candidates(_made(), asked=False, share=1.0) == "sample"


def test_saved_time_is_cached_tokens_at_the_learned_rate() -> None:
    assert saved_us(_made(cached_tokens=4000, prefill_tokens_per_s=8000.0)) == 500_000
    unknown: list[dict[str, Any]] = [{}, {"cached_tokens": 10}, {"cached_tokens": -5, "prefill_tokens_per_s": 10.0}]
    for fields in (*unknown, {"cached_tokens": 5, "prefill_tokens_per_s": 0.0}):
        assert saved_us(_made(**fields)) == 0
    assert saved_us(_made(cached_tokens=5, prefill_tokens_per_s=float("nan"))) == 0
