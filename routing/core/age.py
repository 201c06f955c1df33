"""The age constant tau: how fast a belief fades that nothing has confirmed, ``confidence = 0.80 * exp(-age / tau)``.

Learned for each endpoint and workload class from the answers themselves. Blocks that were last used ``age`` ago and came out of the cache lived that
long; those that did not were evicted on the way, when is what the estimate so far expects. Eviction at a constant rate then gives

    tau = (lived + PRIOR * tau_0) / (evicted + PRIOR)

over the last few hundred answers (older ones fade). Engines that report no cached tokens teach nothing of that; for them, and at first, tau_0
decides: the median gap between two uses of a prefix, over log 2, or a constant of the class while fewer than ``ENOUGH`` gaps were seen. Source:
exponential survival with censored observations by expectation maximisation, under a gamma prior.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

CLASSES = ("conversation", "single")  # with an earlier answer in the prompt, or without
DEFAULT_TAU_S = {"conversation": 300.0, "single": 60.0}
BOUNDS_S = (15.0, 3600.0)
PRIOR = 4.0  # evictions that the prior counts as
FADE = 1.0 / 256  # of what was seen before, with each answer
ENOUGH = 16
WINDOW = 64
MIN_GAP_S = 0.5  # less is a burst, not a reuse


@dataclass(slots=True)
class AgeConstant:
    """One endpoint's, for one workload class. All times in seconds."""

    workload: str = "conversation"
    lived_s: float = 0.0
    evicted: float = 0.0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def observe(self, *, age_s: float, predicted_tokens: float, cached_tokens: int | None) -> None:
        """A prompt came whose prefix was last used ``age_s`` ago; ``cached_tokens`` of the ``predicted_tokens`` (full confidence) were still there.
        None: the engine does not say."""
        if predicted_tokens < 1 or age_s < MIN_GAP_S or not math.isfinite(age_s):
            return
        self.gaps_s.append(age_s)
        if cached_tokens is None:
            return
        survived = min(1.0, max(0.0, cached_tokens / predicted_tokens))
        tau_s = self.tau_s
        before_s = tau_s - age_s / math.expm1(min(50.0, age_s / tau_s))  # when it was evicted, if it was by now
        self.lived_s += age_s * survived + before_s * (1.0 - survived) - self.lived_s * FADE
        self.evicted += (1.0 - survived) - self.evicted * FADE

    @property
    def prior_s(self) -> float:
        """What is believed before engines have said anything."""
        if len(self.gaps_s) < ENOUGH:
            return DEFAULT_TAU_S.get(self.workload, DEFAULT_TAU_S["conversation"])
        return _held(median(self.gaps_s) / math.log(2))

    @property
    def tau_s(self) -> float:
        return _held((self.lived_s + PRIOR * self.prior_s) / (self.evicted + PRIOR))


def _held(tau_s: float) -> float:
    return min(BOUNDS_S[1], max(BOUNDS_S[0], tau_s))


def workload(roles: tuple[object, ...]) -> str:
    """The class of a request by the roles of its messages; a prompt without messages is single."""
    return "conversation" if "assistant" in roles else "single"
