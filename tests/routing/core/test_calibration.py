"""Estimates follow the evidence, within bounds, and forget slowly."""

from __future__ import annotations

import copy
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.calibration import DEFAULT_FIXED_S, DEFAULT_RATE, MOST_GAMMA, PRIOR_GAMMA, ByteRatio, Calibration, interference


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


def test_a_rate_climbs_a_tenth_for_ten_answers() -> None:
    calibration = Calibration()
    _observe(calibration, 2000, 64)
    _observe(calibration, 2900, 40)
    rate = calibration.rate(8000.0, 0)
    assert 2000 < rate <= 2000 * 1.1**5


def test_a_replica_that_recovered_is_believed_after_five_answers() -> None:
    """The least of the five: whoever climbs at once must not climb too far."""
    calibration = Calibration()
    _observe(calibration, 2000, 64)
    _observe(calibration, 8000, 4)
    assert abs(calibration.rate(8000.0, 0) - 2000) < 1
    _observe(calibration, 7000, 1)
    assert abs(calibration.rate(8000.0, 0) - 7000) < 1


def test_a_missed_prefix_is_no_slowness() -> None:
    """The answers came late because more was computed than was expected; the replica computes as fast as ever."""
    calibration = Calibration()
    _observe(calibration, 8000, 30)
    _observe(calibration, 8000, 10, expected_s=0.01)
    assert abs(calibration.rate(8000.0, 0) - 8000) < 1


def test_silence_drifts_back_to_the_pool() -> None:
    calibration = Calibration()
    _observe(calibration, 2000, 20)
    assert calibration.rate(4000.0, 60) == calibration.rate(4000.0, 0)
    assert abs(calibration.rate(4000.0, 120) - 3000) < 2
    assert abs(calibration.rate(4000.0, 1200) - 4000) < 1


def test_an_answer_after_a_silence_renews_what_it_confirms_and_not_what_it_contradicts() -> None:
    """A replica that was slow and is well again is tried when its rate has drifted; that first quick answer must not make it slow anew, or nobody
    would send it the next four. If it still is slow, one answer says so."""
    calibration = Calibration()
    _observe(calibration, 2000, 20)
    assert calibration.rate(8000.0, 600) > 7900
    _observe(calibration, 8000, 1, now_s=600)
    assert calibration.rate(8000.0, 600) > 7900
    _observe(calibration, 8000, 3, now_s=700)
    assert calibration.rate(8000.0, 700) > 7900
    again = copy.deepcopy(calibration)
    _observe(calibration, 8000, 1, now_s=710)
    assert calibration.rate(8000.0, 710) == calibration.rate(8000.0, 770) == pytest.approx(8000)
    _observe(again, 2000, 1, now_s=710)
    assert again.rate(8000.0, 710) == again.rate(8000.0, 770) == pytest.approx(2000)


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
        calibration.observe_reuse(prompt_tokens=int(ahead), cached_tokens=int(uncached))
    assert pool / 4 <= calibration.rate(pool, 0) <= pool * 4
    assert 0 <= calibration.reuse_share <= 1


def test_what_a_cache_is_worth_is_the_share_of_tokens_found_in_it_and_nothing_is_worthless_unseen() -> None:
    """Worth 1 before eight answers; then cached over prompt tokens, and within a few windows of what is so now."""
    calibration = Calibration()
    for _ in range(7):
        calibration.observe_reuse(prompt_tokens=1000, cached_tokens=0)
    assert calibration.reuse_share == 1.0
    for _ in range(64):
        calibration.observe_reuse(prompt_tokens=1000, cached_tokens=0)
    assert calibration.reuse_share == 0.0
    for number in range(300):
        calibration.observe_reuse(prompt_tokens=3000 if number % 2 else 1000, cached_tokens=2700 if number % 2 else 100)
    assert calibration.reuse_share == pytest.approx(0.7, abs=0.02)  # by tokens, not by answers


def test_bytes_per_token_is_learned_quickly_and_nonsense_is_ignored() -> None:
    ratio = ByteRatio()
    for _ in range(40):
        ratio.observe(600, 200)
        ratio.observe(600, 0)
        ratio.observe(10**9, 1)
    assert abs(ratio.bytes_per_token - 3) < 0.01
    assert ratio.tokens(300) in (99, 100)


def _synthetic(gamma: float, decodes: list[float], *, rate: float = 8000.0, noise: float = 0.0) -> list[tuple[float, float, float]]:
    rng = random.Random(7)
    made = []
    for running in decodes:
        tokens = rng.uniform(2000, 30_000)
        made.append((tokens, (tokens / rate + DEFAULT_FIXED_S) * (1 + gamma * running) * rng.lognormvariate(0, noise), running))
    return made


@given(st.sampled_from([0.0, 0.002, 0.008, 0.015]), st.sampled_from([2000.0, 8000.0, 20_000.0]))
def test_gamma_is_the_slope_whatever_the_believed_rate(gamma: float, believed: float) -> None:
    """A rate that is wrong by a factor scales every ratio; the slope over the level stays."""
    stretches = _synthetic(gamma, [4.0 * number for number in range(64)], noise=0.1)
    assert abs(interference(stretches, rate=believed, fixed_s=0.0) - gamma) < 0.003


def test_a_level_of_decodes_that_is_always_there_is_the_rates() -> None:
    assert interference(_synthetic(0.02, [40.0] * 64, noise=0.1), rate=8000.0, fixed_s=0.03) == PRIOR_GAMMA


def test_gamma_stays_within_its_bounds_whatever_is_seen() -> None:
    assert interference(_synthetic(0.5, [4.0 * number for number in range(64)]), rate=8000.0, fixed_s=0.03) == MOST_GAMMA
    assert interference(_synthetic(-0.01, [1.0 * number for number in range(64)]), rate=8000.0, fixed_s=0.03) >= 0.0
    assert interference([], rate=8000.0, fixed_s=0.03) == PRIOR_GAMMA


def test_rate_and_gamma_are_learned_together() -> None:
    """Decodes slow half of the answers by more than half; the rate that is learned is that of an engine without decodes."""
    calibration, rng = Calibration(), random.Random(3)
    for _ in range(400):
        tokens, decodes = rng.uniform(2000, 20_000), rng.choice([0.0, 16.0, 32.0, 64.0])
        ttft_s = (DEFAULT_FIXED_S + tokens / 10_000) * (1 + 0.01 * decodes) * rng.lognormvariate(0, 0.1)
        calibration.observe_ttft(tokens_ahead=0, uncached_tokens=tokens, idle=False, ttft_s=ttft_s, expected_s=ttft_s, now_s=0, decodes=decodes)
    assert abs(calibration.gamma - 0.01) < 0.004
    assert abs(calibration.rate(10_000.0, 0) / 10_000 - 1) < 0.1


def test_network_is_taken_off_what_the_engine_took() -> None:
    near, far = Calibration(), Calibration()
    for _ in range(64):
        far.observe_network(0.2)
    for calibration, network_s in ((near, 0.0), (far, 0.2)):
        for _ in range(30):
            ttft_s = network_s + DEFAULT_FIXED_S + 4000 / 8000
            calibration.observe_ttft(tokens_ahead=0, uncached_tokens=4000, idle=True, ttft_s=ttft_s, expected_s=ttft_s, now_s=0)
    assert abs(far.rate(None, 0) - near.rate(None, 0)) < 1
    for _ in range(8):
        far.observe_network(1e9)
    assert far.network_s == 0.2


def test_sigma_is_the_spread_and_not_the_bias() -> None:
    calibration, rng = Calibration(), random.Random(5)
    assert (calibration.sigma, calibration.error) == (None, None)
    for _ in range(64):
        calibration.observe_ttft(tokens_ahead=0, uncached_tokens=10, idle=False, ttft_s=2 * rng.lognormvariate(0, 0.2), expected_s=1, now_s=0)
    assert calibration.sigma is not None
    assert abs(calibration.sigma - 0.2) < 0.08
    assert calibration.error is not None
    assert abs(calibration.error - math.log(2)) < 0.1


def test_a_tier_counts_once_eight_answers_came_out_of_it() -> None:
    calibration = Calibration()
    _observe(calibration, 8000, 30)
    for number in range(8):
        assert calibration.tier_rate("CPU") is None, number
        calibration.observe_ttft(
            tokens_ahead=0, uncached_tokens=800, idle=True, ttft_s=DEFAULT_FIXED_S + 0.1 + 0.25, expected_s=1, now_s=0, tier="CPU", tier_tokens=10_000
        )
    rate = calibration.tier_rate("CPU")
    assert rate is not None
    assert abs(rate - 40_000) < 10
    assert abs(calibration.rate(8000.0, 0) - 8000) < 1
