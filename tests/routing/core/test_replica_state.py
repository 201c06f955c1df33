"""States of replicas: sums in any order, shares out of sums, and nothing that a router could not have seen."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import record, replica_state
from routing.core.record import RecordError
from routing.core.replica_state import ReplicaState, Sums, decode, encode, sums, utilisation


def state(**fields: Any) -> ReplicaState:
    usual: dict[str, Any] = {
        "id": uuid.UUID(int=1),
        "tenant_id": uuid.UUID(int=2),
        "replica_id": uuid.UUID(int=3),
        "router_id": "r",
        "started_at": 1.8e9,
        "observed_us": 15_000_000,
    }
    return ReplicaState(**{**usual, **fields})


_counts = st.integers(0, 10**6)
many = st.lists(st.tuples(*[_counts] * len(Sums._fields)).map(lambda values: Sums(*values)), max_size=8)


@given(many, st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_order(found: list[Sums], draw: Any) -> None:
    shuffled = list(found)
    draw.shuffle(shuffled)
    assert functools.reduce(Sums.plus, found, Sums()) == functools.reduce(Sums.plus, shuffled, Sums())


def test_shares_and_rates_are_quotients_of_sums() -> None:
    """So a state that was lost, or came twice, changes none of them."""
    one = sums(state(busy_us=6_000_000, event_us=15_000_000, evicted_blocks=30, kv_used_ppm=250_000, resident_blocks=100, distinct_blocks=80))
    for found in (one, one.plus(one)):
        assert (found.busy_share, found.evicted_per_s, found.kv_used, found.resident, found.duplication) == (0.4, 2.0, 0.25, 100.0, 1.25)
    silent = sums(state())
    assert (silent.busy_share, silent.evicted_per_s, silent.kv_used, silent.resident, silent.duplication) == (0.0, None, None, None, None)
    assert utilisation([]) is None
    assert utilisation([one]) == pytest.approx(0.4)
    assert utilisation([one, one]) == pytest.approx(0.64)


def test_a_state_comes_back_and_its_mac_is_of_no_record() -> None:
    """The same bytes as a record have another MAC: neither can be passed off as the other."""
    one = state(kv_used_ppm=1, resident_blocks=0)
    data = encode(one)
    assert decode(data) == one
    mac = replica_state.authenticate(b"k" * 32, "r", data)
    replica_state.verify(b"k" * 32, "r", data, mac)
    assert mac != record.authenticate(b"k" * 32, "r", data)
    for key, router, said in ((b"l" * 32, "r", mac), (b"k" * 32, "s", mac), (b"k" * 32, "r", record.authenticate(b"k" * 32, "r", data))):
        with pytest.raises(RecordError):
            replica_state.verify(key, router, data, said)


@pytest.mark.parametrize(
    "wrong",
    [
        {"observed_us": 0},
        {"observed_us": 3_600_000_001},
        {"busy_us": 15_000_001},
        {"busy_us": -1},
        {"event_us": 15_000_001},
        {"request_us": 10**15},
        {"kv_used_ppm": 1_000_001},
        {"evicted_blocks": -1},
        {"resident_blocks": 2**41},
    ],
)
def test_what_nobody_could_have_seen_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(RecordError, match="out of range"):
        decode(encode(state(**wrong)))
    assert decode(encode(state(observed_us=3_600_000_000, busy_us=1)))


def test_other_bytes_are_refused() -> None:
    for data in (b"", b"\xc1", msgspec.msgpack.encode({"id": 1})):
        with pytest.raises(RecordError):
            decode(data)
