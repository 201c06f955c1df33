"""What a trial of a candidate policy has shown, from its decisions. Pure: decisions in, figures with their uncertainty out.

Predictions are paired: each decision holds what both policies expected at the same instant. What was realised is not: a request went one way only, so
the arms are compared as two samples, from the first request on that the candidate placed, so that both saw the same hours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964  # two-sided 95 %
MIN_SAMPLE = 30  # below it no interval is given: the normal approximation would promise too much
METHOD = (
    "95 % intervals: normal approximation for means and differences of means, Wilson for shares, order statistics for percentiles;"
    f" none below {MIN_SAMPLE} decisions. Requests of one conversation resemble each other, so true intervals are wider."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One decision of a trial. ``live_*`` and ``candidate_*`` are what each policy expected of its own choice; the rest is what came of it."""

    at_s: float  # unix
    placed: bool  # by the candidate
    agreed: bool  # both chose the same replica
    live_ttft_s: float
    candidate_ttft_s: float
    live_cached_tokens: float
    candidate_cached_tokens: float
    ttft_s: float | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with the bounds of its interval; both None where the sample is too small for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A set of values in one unit. All None: there are none."""

    count: int
    mean: Estimate | None = None
    p50: Estimate | None = None
    p95: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """What one policy's own placements led to. Times in seconds; cached tokens as engines reported them."""

    requests: int
    ttft_s: Sample
    cached_tokens: Sample


@dataclass(frozen=True, slots=True)
class Report:
    """A trial in figures. Differences are candidate minus live: below zero, the candidate is quicker."""

    decisions: int
    agreement: Estimate | None  # share of decisions in which both chose the same replica
    live_ttft_s: Sample  # predicted
    candidate_ttft_s: Sample
    ttft_difference_s: Estimate | None  # predicted, paired
    tokens_saved: float  # predicted: prompt tokens that the candidate would not have computed but the live policy did, over all decisions
    tokens_saved_each: Estimate | None  # for a decision
    live: Arm  # realised, since the candidate first placed a request
    candidate: Arm
    realised_difference_s: Estimate | None
    realised_cached_difference: Estimate | None  # tokens for a request

    @property
    def before_the_first(self) -> int:
        """Decisions of before the candidate placed its first request, all where it placed none. No arm has them: those hours only one side saw."""
        return self.decisions - self.live.requests - self.candidate.requests


def report(seen: Sequence[Seen]) -> Report:
    """Sum up the decisions of one trial, in any order."""
    saved = [one.candidate_cached_tokens - one.live_cached_tokens for one in seen]
    first_s = min((one.at_s for one in seen if one.placed), default=math.inf)
    live = _arm([one for one in seen if not one.placed and one.at_s >= first_s])
    candidate = _arm([one for one in seen if one.placed])
    return Report(
        decisions=len(seen),
        agreement=share(sum(one.agreed for one in seen), len(seen)),
        live_ttft_s=sample([one.live_ttft_s for one in seen]),
        candidate_ttft_s=sample([one.candidate_ttft_s for one in seen]),
        ttft_difference_s=mean([one.candidate_ttft_s - one.live_ttft_s for one in seen]),
        tokens_saved=math.fsum(saved),
        tokens_saved_each=mean(saved),
        live=live[0],
        candidate=candidate[0],
        realised_difference_s=difference(candidate[1], live[1]),
        realised_cached_difference=difference(candidate[2], live[2]),
    )


def _arm(seen: Sequence[Seen]) -> tuple[Arm, list[float], list[float]]:
    times = [one.ttft_s for one in seen if one.ttft_s is not None]
    cached = [float(one.cached_tokens) for one in seen if one.cached_tokens is not None]
    return Arm(requests=len(seen), ttft_s=sample(times), cached_tokens=sample(cached)), times, cached


def sample(values: Sequence[float]) -> Sample:
    """Mean, median and 95th percentile of ``values``."""
    ordered = sorted(values)
    return Sample(count=len(ordered), mean=mean(ordered), p50=percentile(ordered, 0.5), p95=percentile(ordered, 0.95))


def mean(values: Sequence[float]) -> Estimate | None:
    """The mean with its normal interval; None of nothing."""
    count = len(values)
    if count == 0:
        return None
    middle = math.fsum(values) / count
    if count < MIN_SAMPLE:
        return Estimate(middle)
    half = Z * math.sqrt(_variance(values, middle) / count)
    return Estimate(middle, middle - half, middle + half)


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate | None:
    """Mean of ``first`` less mean of ``second``, two independent samples of unequal variance; None where one is empty."""
    if not first or not second:
        return None
    left, right = math.fsum(first) / len(first), math.fsum(second) / len(second)
    if min(len(first), len(second)) < MIN_SAMPLE:
        return Estimate(left - right)
    half = Z * math.sqrt(_variance(first, left) / len(first) + _variance(second, right) / len(second))
    return Estimate(left - right, left - right - half, left - right + half)


def _variance(values: Sequence[float], middle: float) -> float:
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def share(count: int, total: int) -> Estimate | None:
    """A share with its Wilson interval; None of nothing."""
    if total == 0:
        return None
    part = count / total
    if total < MIN_SAMPLE:
        return Estimate(part)
    scale = 1 + Z * Z / total
    middle = (part + Z * Z / (2 * total)) / scale
    half = Z * math.sqrt(part * (1 - part) / total + Z * Z / (4 * total * total)) / scale
    return Estimate(part, max(0.0, middle - half), min(1.0, middle + half))


def percentile(ordered: Sequence[float], level: float) -> Estimate | None:
    """The nearest-rank percentile of sorted values. Its interval is that of two order statistics; None where the sample does not reach so far out."""
    count = len(ordered)
    if count == 0:
        return None
    value = ordered[max(0, math.ceil(level * count) - 1)]
    spread = Z * math.sqrt(count * level * (1 - level))
    low, high = math.floor(count * level - spread), math.ceil(count * level + spread)
    if count < MIN_SAMPLE or low < 1 or high > count:
        return Estimate(value)
    return Estimate(value, ordered[low - 1], ordered[high - 1])
