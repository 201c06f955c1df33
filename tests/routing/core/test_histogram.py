"""Histograms: merging is adding, quantiles keep the stated error, and bytes come back as they were."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.histogram import LAST_BUCKET, RELATIVE_ERROR, SMALLEST, Histogram, HistogramError, bucket

values = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e9), st.integers(0, 10**7).map(float)), max_size=60)
shares = st.floats(0.0, 1.0)


@given(values, values, values)
def test_merging_is_associative_and_commutative_and_the_same_as_counting_together(one: list[float], two: list[float], three: list[float]) -> None:
    a, b, c = Histogram.of(one), Histogram.of(two), Histogram.of(three)
    assert a.plus(b) == b.plus(a)
    assert a.plus(b).plus(c) == a.plus(b.plus(c)) == Histogram.of([*one, *two, *three])
    assert a.plus(b).total == len(one) + len(two)


@given(st.lists(st.floats(SMALLEST * 1.01, 1e8), min_size=1, max_size=80), shares)
def test_a_quantile_is_within_the_stated_error_of_the_nearest_rank(found: list[float], share: float) -> None:
    exact = sorted(found)[min(len(found), max(1, math.ceil(share * len(found)))) - 1]
    got = Histogram.of(found).quantile(share)
    assert got is not None
    assert abs(got - exact) <= exact * RELATIVE_ERROR * (1 + 1e-9)


@given(values)
def test_bytes_come_back_as_they_were(found: list[float]) -> None:
    made = Histogram.of(found)
    assert Histogram.decode(made.encode()) == made


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_buckets_keep_the_order_of_values(one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert 0 <= bucket(low) <= bucket(high) <= LAST_BUCKET


def test_zeros_are_counted_and_nothing_has_no_quantile() -> None:
    assert Histogram.of([0, 0, 5]).quantile(0.5) == 0.0
    assert Histogram({}).quantile(0.5) is None
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            Histogram.of([value])


@pytest.mark.parametrize("data", [b"", b"\x91\x01", b"\x92\x01\x00", b"\x92\xff\x01", b"\x94\x01\x01\x00\x01", b"\x92\xcd\x10\x00\x01", b"\xa1x"])
def test_other_bytes_are_refused(data: bytes) -> None:
    """Odd, empty counts, going back, the same bucket twice, beyond the last, no list."""
    with pytest.raises(HistogramError):
        Histogram.decode(data)
