"""Estimates follow the evidence, within bounds, and forget slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.core.calibration import DEFAULT_FIXED_S, DEFAULT_RATE, ByteRatio, Calibration


def _observe(calibration: Calibration, rate: float, count: int, *, expected_s: float | None = None, now_s: float = 0.0, tokens: float = 4000) -> None:
    for _ in range(count):
        ttft_s = DEFAULT_FIXED_S + tokens / rate
        calibration.observe_ttft(
            tokens_ahead=0, uncached_tokens=tokens, idle=True, ttft_s=ttft_s, expected_s=ttft_s if expected_s is None else expected_s, now_s=now_s
        )


def test_before_there_is_evidence_the_pool_is_believed() -> None:
    calibration = Calibration()
    assert calibration.rate(None, 0) == DEFAULT_RATE
    assert calibration.rate(3000.0, 0) == 3000.0
    _observe(calibration, 1000, 7)
    assert calibration.rate(3000.0, 0) == 3000.0
    _observe(calibration, 1000, 1)
    assert abs(calibration.rate(3000.0, 0) - 1000) < 1


def test_small_prompts_teach_nothing_about_speed() -> None:
    calibration = Calibration()
    _observe(calibration, 10, 50, tokens=1999)
    assert calibration.own_rate is None


def test_one_odd_sample_moves_nothing() -> None:
    calibration = Calibration()
    _observe(calibration, 5000, 20)
    _observe(calibration, 50, 1)
    assert abs(calibration.rate(5000.0, 0) - 5000) < 1


def test_a_replica_at_a_quarter_of_its_speed_is_believed_after_five_answers() -> None:
    calibration = Calibration()
    _observe(calibration, 8000, 30)
    _observe(calibration, 2000, 5, expected_s=0.53)
    assert abs(calibration.rate(8000.0, 0) - 2000) < 1


def test_a_recovered_replica_climbs_a_tenth_for_ten_answers() -> None:
    calibration = Calibration()
    _observe(calibration, 2000, 64)
    _observe(calibration, 8000, 40)
    rate = calibration.rate(8000.0, 0)
    assert 2000 < rate <= 2000 * 1.1**5


def test_silence_drifts_back_to_the_pool() -> None:
    calibration = Calibration()
    _observe(calibration, 2000, 20)
    assert calibration.rate(4000.0, 60) == calibration.rate(4000.0, 0)
    assert abs(calibration.rate(4000.0, 120) - 3000) < 2
    assert abs(calibration.rate(4000.0, 1200) - 4000) < 1


def test_the_fixed_cost_is_a_low_percentile_of_small_prompts_on_an_idle_replica() -> None:
    calibration = Calibration()
    for number in range(20):
        calibration.observe_ttft(tokens_ahead=0, uncached_tokens=10, idle=number % 2 == 0, ttft_s=0.1 + number / 1000, expected_s=1, now_s=0)
    assert len(calibration.fixed) == 10
    assert abs(calibration.fixed_s - 0.102) < 1e-9


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e6), st.floats(0, 1e4)), max_size=80), st.floats(1, 1e5))
def test_whatever_is_observed_the_rate_stays_within_four_times_the_pools(samples: list[tuple[float, float, float]], pool: float) -> None:
    calibration = Calibration()
    for ahead, uncached, ttft_s in samples:
        calibration.observe_ttft(tokens_ahead=ahead, uncached_tokens=uncached, idle=True, ttft_s=ttft_s, expected_s=0.1, now_s=0)
        calibration.observe_reuse(predicted_tokens=ahead, cached_tokens=int(uncached))
    assert pool / 4 <= calibration.rate(pool, 0) <= pool * 4
    assert 0 <= calibration.kappa <= 1.5


def test_reuse_that_does_not_come_true_lowers_trust() -> None:
    calibration = Calibration()
    for _ in range(64):
        calibration.observe_reuse(predicted_tokens=1000, cached_tokens=0)
    assert calibration.kappa < 0.2
    for _ in range(200):
        calibration.observe_reuse(predicted_tokens=0, cached_tokens=500)
    assert calibration.kappa < 0.2  # what was not predicted says nothing


def test_bytes_per_token_is_learned_quickly_and_nonsense_is_ignored() -> None:
    ratio = ByteRatio()
    for _ in range(40):
        ratio.observe(600, 200)
        ratio.observe(600, 0)
        ratio.observe(10**9, 1)
    assert abs(ratio.bytes_per_token - 3) < 0.01
    assert ratio.tokens(300) in (99, 100)
