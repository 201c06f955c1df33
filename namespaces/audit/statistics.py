"""Two-sample statistics for audits of engines that do not report cached tokens."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence


def ks_faster_p(suspected: Sequence[float], slow: Sequence[float]) -> float:
    """One-sided two-sample Kolmogorov-Smirnov test: the p-value of "``suspected`` is not faster than ``slow``".

    Small means that the suspected times lie below the slow ones. Ties count against rejection. Uses the asymptotic bound
    exp(-2 D^2 nm/(n+m)), which is conservative for the sample sizes in use (100 and more).

    Raises:
        ValueError: a sample is empty.
    """
    if not suspected or not slow:
        raise ValueError("both samples need values")
    left, right = sorted(suspected), sorted(slow)
    gap = max(bisect_right(left, value) / len(left) - bisect_right(right, value) / len(right) for value in left)
    size = len(left) * len(right) / (len(left) + len(right))
    return 1.0 if gap <= 0 else math.exp(-2 * gap * gap * size)


def median(values: Sequence[float]) -> float:
    """The middle value; of an even count, the mean of the two middle ones.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def failure_rate_bound(clean_probes: int) -> float:
    """Upper 95 % bound of the failure rate after ``clean_probes`` probes without a failure: the rule of three, 3/n, at most 1."""
    return min(1.0, 3 / clean_probes) if clean_probes else 1.0
