"""What a replica's speed has been, learned from answers: prefill rate, fixed cost, and how far predictions of residency came true.

All estimators are medians or slow averages over bounded windows, so that one odd sample moves nothing:

* prefill rate: (queued at dispatch + uncached) / (TTFT - fixed), from samples of at least ``MIN_TOKENS``; the median of the last ``WINDOW`` once
there are
  ``ENOUGH``, before that the pool's median or ``DEFAULT_RATE``. It climbs at most 10 % for each 10 samples, steps down at once after 5 residuals in a
  row above 2, is held within a quarter and four times the pool's median, and drifts back to it after 60 s of silence (half-life 60 s).
* fixed cost: the 10th percentile of TTFT on an idle replica with next to nothing to compute. It contains the network.
* kappa: cached tokens reported over cached tokens predicted, a moving average over about 32 answers; above 1 it is not trusted further.
"""

from __future__ import annotations

from collections import deque
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
    kappa: float = 1.0

    def observe_ttft(self, *, tokens_ahead: float, uncached_tokens: float, idle: bool, ttft_s: float, expected_s: float, now_s: float) -> None:
        """Learn from one first token. ``idle``: nothing was queued or decoding there at dispatch."""
        if idle and uncached_tokens < SMALL_TOKENS:
            self.fixed.append(ttft_s)
        tokens = tokens_ahead + uncached_tokens
        if tokens < MIN_TOKENS:
            return
        sample = tokens / max(1e-3, ttft_s - self.fixed_s)
        self.rates.append(sample)
        self.rate_at_s = now_s
        self.slow_in_a_row = self.slow_in_a_row + 1 if ttft_s > 2 * expected_s else 0
        if self.slow_in_a_row >= 5:  # the replica changed, not the weather: believe the last five
            recent = list(self.rates)[-5:]
            self.rates.clear()
            self.rates.extend(recent * 2)
            self.own_rate = self.ceiling = median(recent)
            self.slow_in_a_row = self.since_ceiling = 0
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

    def observe_reuse(self, *, predicted_tokens: float, cached_tokens: int) -> None:
        """Compare what the engine reports as cached with what was believed resident."""
        if predicted_tokens >= 1:
            ratio = min(1.5, cached_tokens / predicted_tokens)
            self.kappa += (ratio - self.kappa) / 32

    @property
    def fixed_s(self) -> float:
        """Seconds of a first token that no prompt length explains."""
        if len(self.fixed) < ENOUGH:
            return DEFAULT_FIXED_S
        return sorted(self.fixed)[len(self.fixed) // 10]

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
