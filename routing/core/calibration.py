"""What a replica's speed has been, learned from answers: network, fixed cost, prefill rate, decode interference, tiers, and how wrong we were.

    TTFT = network + (tokens / v + fixed) * (1 + gamma * decodes)

All estimators are medians or slow averages over bounded windows, so that one odd sample moves nothing:

* network: the 10th percentile of how long the engine takes to answer a question that costs it nothing (its health page).
* fixed cost: the 10th percentile of TTFT less network, on an idle replica with next to nothing to compute.
* prefill rate v: the formula above solved for v, from samples of at least ``MIN_TOKENS``; the median of the last ``WINDOW`` once there are
  ``ENOUGH``, before that the pool's median or ``DEFAULT_RATE``. It climbs at most 10 % for each 10 samples; but five samples in a row that say
  something else are believed at once: below half of what was expected their median, above one and a half times the rate the least of them. It is
  held within a quarter and four times the pool's median, and drifts back to it after 60 s of silence (half-life 60 s). An answer that confirms it
  ends the silence, one that contradicts it does not: a replica that is well again keeps being sent what its first quick answers need to be believed.
* gamma: the slope of TTFT over what it would have been, against the number of decodes, about their means: a level that is always there is the
  rate's, so the two do not fight over it. Ridge to ``PRIOR_GAMMA``, as if ``PRIOR_WEIGHT`` had been seen, and held within [0, ``MOST_GAMMA``].
* tier rates: tokens/s that come out of a lower tier of the cache, from answers most of whose hit was there; unknown before ``ENOUGH`` of them.
* sigma: 1.4826 * MAD of log(TTFT / expected), a standard deviation where errors are log-normal.
* reuse share: tokens that came out of the cache over tokens of prompts, a ratio of two moving averages over about ``WINDOW`` answers: what a block of
  this cache is worth. 1 until there are ``ENOUGH``, so that nothing is thought worthless before it was seen to be.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW = 64
ENOUGH = 8
MIN_TOKENS = 2000
SMALL_TOKENS = 64
DEFAULT_RATE = 8000.0  # tokens/s
DEFAULT_FIXED_S = 0.03
SILENCE_S = 60.0
HALF_LIFE_S = 60.0
IN_A_ROW = 5
FASTER = 1.5
PRIOR_GAMMA = 0.004
MOST_GAMMA = 0.02
PRIOR_WEIGHT = 4000.0  # (noise of a ratio, 0.25, over the prior's own spread, 0.004) squared
MOST_NETWORK_S = 1.0
MOST_TIERS = 4


@dataclass(slots=True)
class Calibration:
    """One replica's estimates. ``now_s`` is monotonic and given by the caller."""

    rates: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    fixed: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    own_rate: float | None = None  # tokens/s
    rate_at_s: float = 0.0
    ceiling: float = 0.0  # how far the rate may have climbed
    since_ceiling: int = 0
    slow_in_a_row: int = 0
    fast_in_a_row: int = 0
    gamma: float = PRIOR_GAMMA
    round_trips: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    stretches: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))  # (tokens, TTFT - network, decodes)
    log_errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # log(TTFT / expected)
    tiers: dict[str, deque[float]] = field(default_factory=dict)  # samples of tokens/s, by tier
    samples: int = 0
    prompts: int = 0  # answers that said how much came from the cache
    prompt_tokens_mean: float = 0.0
    cached_tokens_mean: float = 0.0
    fixed_s: float = DEFAULT_FIXED_S  # of a first token that neither prompt length nor network explains
    network_s: float = 0.0

    def observe_ttft(
        self,
        *,
        tokens_ahead: float,
        uncached_tokens: float,
        idle: bool,
        ttft_s: float,
        expected_s: float,
        now_s: float,
        decodes: float = 0.0,
        tier: str | None = None,
        tier_tokens: float = 0.0,
    ) -> None:
        """Learn from one first token. ``idle``: nothing was queued or decoding there at dispatch; ``decodes`` were running. ``tier_tokens`` of its
        hit came from the lower ``tier``."""
        if ttft_s > 0 and expected_s > 0:
            self.log_errors.append(math.log(ttft_s / expected_s))
        net_s = max(0.0, ttft_s - self.network_s)
        tokens = tokens_ahead + uncached_tokens
        if tier is not None and tier_tokens >= MIN_TOKENS:
            self._observe_tier(tier, tier_tokens, net_s, tokens, decodes)
            return
        if idle and uncached_tokens < SMALL_TOKENS:
            self.observe_fixed(net_s)
        if tokens < MIN_TOKENS:
            return
        self.stretches.append((tokens, net_s, decodes))
        sample = tokens / max(1e-3, net_s / (1.0 + self.gamma * max(0.0, decodes)) - self.fixed_s)
        self._observe_rate(sample, ttft_s, expected_s, now_s)
        self.samples += 1
        if self.samples % ENOUGH == 0 and self.own_rate is not None:
            self.gamma = interference(self.stretches, rate=self.own_rate, fixed_s=self.fixed_s)

    def _observe_rate(self, sample: float, ttft_s: float, expected_s: float, now_s: float) -> None:
        self.rates.append(sample)
        slow = ttft_s > 2 * expected_s and (self.own_rate is None or sample * FASTER < self.own_rate)
        fast = self.own_rate is not None and sample > FASTER * self.own_rate
        self.slow_in_a_row = self.slow_in_a_row + 1 if slow else 0
        self.fast_in_a_row = self.fast_in_a_row + 1 if fast else 0
        if self.own_rate is None or not (slow or fast):  # what contradicts a rate does not renew it: silence goes on until the contrary is believed
            self.rate_at_s = now_s
        if max(self.slow_in_a_row, self.fast_in_a_row) >= IN_A_ROW:  # the replica changed, not the weather: believe the last five
            self.rate_at_s = now_s
            recent = list(self.rates)[-IN_A_ROW:]
            self.own_rate = self.ceiling = median(recent) if slow else min(recent)
            self.rates.clear()
            self.rates.extend(recent * 2 if slow else [self.own_rate] * ENOUGH)
            self.stretches.clear()
            self.slow_in_a_row = self.fast_in_a_row = self.since_ceiling = 0
            return
        if len(self.rates) < ENOUGH:
            return
        target = median(self.rates)
        if self.own_rate is None:
            self.own_rate = self.ceiling = target
            return
        self.since_ceiling += 1
        if self.since_ceiling >= 10:
            self.ceiling, self.since_ceiling = self.own_rate, 0
        self.own_rate = min(target, self.ceiling * 1.1)

    def _observe_tier(self, tier: str, tier_tokens: float, net_s: float, tokens: float, decodes: float) -> None:
        """What is left of the time when computing is taken off was spent on moving tokens; nothing can be said before the rate is known."""
        if self.own_rate is None or (tier not in self.tiers and len(self.tiers) >= MOST_TIERS):
            return
        moving_s = net_s / (1.0 + self.gamma * max(0.0, decodes)) - self.fixed_s - tokens / self.own_rate
        self.tiers.setdefault(tier, deque(maxlen=WINDOW)).append(tier_tokens / max(1e-3, moving_s))

    def observe_reuse(self, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Learn how much of what it is sent the engine finds in its cache."""
        self.prompts += 1
        weight = 1 / min(self.prompts, WINDOW)
        self.prompt_tokens_mean += (prompt_tokens - self.prompt_tokens_mean) * weight
        self.cached_tokens_mean += (min(prompt_tokens, cached_tokens) - self.cached_tokens_mean) * weight

    @property
    def reuse_share(self) -> float:
        """Cached over prompt tokens, in [0, 1]; 1 before ``ENOUGH`` answers."""
        if self.prompts < ENOUGH or self.prompt_tokens_mean <= 0:
            return 1.0
        return max(0.0, min(1.0, self.cached_tokens_mean / self.prompt_tokens_mean))

    def observe_network(self, seconds: float) -> None:
        """How long the engine took to answer a question that costs it nothing. Only a low percentile counts, and only once there are ``ENOUGH``: what
        is over it was somebody's load, and routers that each took a first odd one for the truth would place cold prefixes apart."""
        self.round_trips.append(min(MOST_NETWORK_S, max(0.0, seconds)))
        if len(self.round_trips) >= ENOUGH:
            self.network_s = _tenth_percentile(self.round_trips)

    def observe_fixed(self, seconds: float, times: int = 1) -> None:
        """A first token without anything to compute took ``seconds``, network left out."""
        self.fixed.extend([seconds] * times)
        if len(self.fixed) >= ENOUGH:
            self.fixed_s = _tenth_percentile(self.fixed)

    @property
    def sigma(self) -> float | None:
        """Spread of log(TTFT / expected); None before ``ENOUGH`` answers."""
        if len(self.log_errors) < ENOUGH:
            return None
        middle = median(self.log_errors)
        return 1.4826 * median(abs(error - middle) for error in self.log_errors)

    @property
    def error(self) -> float | None:
        """Median of the size of log(TTFT / expected): how far expectations are off in the middle; None before ``ENOUGH`` answers."""
        return median(map(abs, self.log_errors)) if len(self.log_errors) >= ENOUGH else None

    def tier_rate(self, tier: str) -> float | None:
        """Tokens/s out of a lower tier; None where it was not measured."""
        samples = self.tiers.get(tier, ())
        return median(samples) if len(samples) >= ENOUGH else None

    def rate(self, pool_median: float | None, now_s: float) -> float:
        """Prefill rate in tokens/s, > 0, given the median of the pool's known rates (None: nobody knows yet)."""
        middle = pool_median or DEFAULT_RATE
        if self.own_rate is None:
            return middle
        rate = min(4 * middle, max(middle / 4, self.own_rate))
        silent_s = now_s - self.rate_at_s - SILENCE_S
        if silent_s > 0:
            rate = middle + (rate - middle) * 0.5 ** (silent_s / HALF_LIFE_S)
        return rate


def _tenth_percentile(values: Collection[float]) -> float:
    return sorted(values)[len(values) // 10]


def interference(stretches: Sequence[tuple[float, float, float]], *, rate: float, fixed_s: float) -> float:
    """Gamma from (tokens, seconds, decodes): in ``ratio = c * (1 + gamma * decodes)`` the slope over the level, by ridge regression about the means.

    ``ratio`` is seconds over ``tokens / rate + fixed_s``; a wrong rate scales all ratios and leaves gamma alone. Ratios beyond four times their
    median count as four times.
    """
    if len(stretches) < ENOUGH:
        return PRIOR_GAMMA
    ratios = [seconds / (tokens / rate + fixed_s) for tokens, seconds, _ in stretches]
    middle = median(ratios)
    ratios = [min(4 * middle, max(middle / 4, ratio)) for ratio in ratios]
    count = len(ratios)
    mean_ratio, mean_decodes = sum(ratios) / count, sum(decodes for _, _, decodes in stretches) / count
    if mean_ratio <= 0:
        return PRIOR_GAMMA
    varied = sum((decodes - mean_decodes) ** 2 for _, _, decodes in stretches)
    together = sum((ratio - mean_ratio) * (decodes - mean_decodes) for ratio, (_, _, decodes) in zip(ratios, stretches, strict=True))
    gamma = PRIOR_GAMMA
    for _ in range(4):  # the level depends on gamma, weakly
        level = mean_ratio / (1.0 + gamma * mean_decodes)
        gamma = min(MOST_GAMMA, max(0.0, (together / level + PRIOR_WEIGHT * PRIOR_GAMMA) / (varied + PRIOR_WEIGHT)))
    return gamma


@dataclass(slots=True)
class ByteRatio:
    """Prompt bytes per token of one endpoint, learned from the engines' own usage fields."""

    bytes_per_token: float = 4.0
    samples: int = 0

    def observe(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """A moving average, fast at first; ratios outside [0.5, 64] are somebody's mistake and are ignored."""
        if prompt_tokens < 1 or not 0.5 <= prompt_bytes / prompt_tokens <= 64:
            return
        self.samples += 1
        self.bytes_per_token += (prompt_bytes / prompt_tokens - self.bytes_per_token) / min(self.samples, 20)

    def tokens(self, count_bytes: int) -> int:
        return int(count_bytes / self.bytes_per_token)
