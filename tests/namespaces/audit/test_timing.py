"""Verdicts from times: sharing is found, honest engines and blind ones are told apart from it."""

from __future__ import annotations

import random

import pytest

from namespaces.audit.timing import Reading, read, smallest_gap


def _drawn(seed: int, centre_s: float, count: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(centre_s, 0.01) for _ in range(count)]


HITS, MISSES = _drawn(1, 0.02, 60), _drawn(2, 0.15, 60)


@pytest.mark.parametrize("count", [5, 20, 100])
def test_negatives_as_fast_as_hits_are_shared(count: int) -> None:
    assert read(negatives=_drawn(3, 0.02, count), misses=MISSES, hits=HITS).reading is Reading.SHARED


@pytest.mark.parametrize("count", [5, 20, 100])
def test_negatives_as_slow_as_first_uses_are_apart(count: int) -> None:
    assert read(negatives=_drawn(3, 0.15, count), misses=MISSES, hits=HITS).reading is Reading.APART


def test_a_small_shift_is_noise_however_significant() -> None:
    """A tenth of what a hit saves: the test rejects, the verdict does not."""
    found = read(negatives=_drawn(3, 0.137, 400), misses=_drawn(2, 0.15, 400), hits=HITS)
    assert found.negative_p < 1e-3
    assert found.reading is Reading.APART


def test_without_a_control_that_shows_times_say_nothing() -> None:
    """An engine so fast that hits and first uses look alike."""
    assert read(negatives=_drawn(3, 0.02, 50), misses=_drawn(4, 0.02, 50), hits=HITS).reading is Reading.BLIND


@pytest.mark.parametrize(("negatives", "misses", "hits"), [([], MISSES, HITS), (HITS, [], HITS), (HITS, MISSES, []), (HITS[:3], MISSES, HITS)])
def test_too_few_probes_are_blind(negatives: list[float], misses: list[float], hits: list[float]) -> None:
    """Three probes can never reject at one in a thousand, so they must not pass either."""
    assert read(negatives=negatives, misses=misses, hits=hits).reading is Reading.BLIND


def test_the_null_is_rejected_at_most_as_often_as_promised() -> None:
    """3,000 honest audits of 20 against 60: one in a thousand each stage, and the shift's rule on top."""
    shared = 0
    for seed in range(3000):
        draw = random.Random(seed)
        misses, negatives = [draw.gauss(0.15, 0.03) for _ in range(60)], [draw.gauss(0.15, 0.03) for _ in range(20)]
        shared += read(negatives=negatives, misses=misses, hits=HITS).reading is Reading.SHARED
    assert shared <= 9


def test_the_power_of_a_sample() -> None:
    assert smallest_gap(3, 60) > 1 > smallest_gap(5, 60)
    assert 0.26 < smallest_gap(100, 100) < 0.27
    assert smallest_gap(0, 5) == float("inf")
