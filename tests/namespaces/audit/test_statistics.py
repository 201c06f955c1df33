"""The timing test: calm on equal samples, sure on different ones."""

from __future__ import annotations

import random

import pytest

from namespaces.audit.statistics import failure_rate_bound, ks_faster_p, median


def test_a_clear_shift_is_found_and_its_reverse_is_not() -> None:
    """Faster rejects at 1e-3 with 100 a side; slower never does: the test is one-sided."""
    draw = random.Random(7)
    misses = [draw.gauss(0.30, 0.03) for _ in range(100)]
    hits = [draw.gauss(0.20, 0.03) for _ in range(100)]
    assert ks_faster_p(hits, misses) < 1e-3
    assert ks_faster_p(misses, hits) > 0.5


def test_equal_distributions_reject_no_more_often_than_promised() -> None:
    """2,000 null comparisons at 1 %: the bound is conservative, so at most 1.5 % may reject."""
    draw = random.Random(11)
    rejected = sum(ks_faster_p([draw.random() for _ in range(100)], [draw.random() for _ in range(100)]) < 0.01 for _ in range(2000))
    assert 0 < rejected <= 30


def test_identical_samples_say_nothing() -> None:
    """All ties: no evidence."""
    assert ks_faster_p([1.0] * 50, [1.0] * 50) == 1.0


def test_small_helpers() -> None:
    """Median of odd and even counts; the rule of three."""
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert failure_rate_bound(60) == 0.05
    assert failure_rate_bound(0) == 1.0
    with pytest.raises(ValueError, match="no values"):
        median([])
    with pytest.raises(ValueError, match="both samples"):
        ks_faster_p([], [1.0])
