"""Verdicts from times to first token alone: for engines that do not report cached tokens, and against engines whose report is not to be trusted.

Two stages, each a one-sided Kolmogorov-Smirnov test at ``ALPHA``; the second runs on probes of its own, so both together reject a true null once in
a million. Beside the test the shift must be a quarter of what a real hit saves, or it is noise that a large sample makes significant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from namespaces.audit.statistics import ks_faster_p, median

ALPHA = 1e-3
SHIFT_PART = 0.25  # of the positive control's shift


class Reading(StrEnum):
    """What the times say of some negative probes."""

    APART = "apart"  # as slow as first uses
    SHARED = "shared"  # faster than first uses, by a good part of what a hit saves
    BLIND = "blind"  # hits and first uses take the same time, or there are too few probes: times tell nothing


@dataclass(frozen=True, slots=True)
class Times:
    """The comparison in numbers; seconds. ``p`` values are upper bounds."""

    reading: Reading
    negatives: int
    misses: int
    hits: int
    control_p: float
    negative_p: float
    control_shift_s: float
    negative_shift_s: float


def read(*, negatives: Sequence[float], misses: Sequence[float], hits: Sequence[float], alpha: float = ALPHA) -> Times:
    """Compare negative probes with first uses (``misses``) and repeats (``hits``) of the same run; all are times to first token in seconds."""
    if not negatives or not misses or not hits:
        return Times(Reading.BLIND, len(negatives), len(misses), len(hits), 1.0, 1.0, 0.0, 0.0)
    control_p, negative_p = ks_faster_p(hits, misses), ks_faster_p(negatives, misses)
    control_shift_s, negative_shift_s = median(misses) - median(hits), median(misses) - median(negatives)
    if control_p >= alpha or smallest_gap(len(negatives), len(misses), alpha) > 1:
        reading = Reading.BLIND
    elif negative_p < alpha and negative_shift_s >= SHIFT_PART * control_shift_s:
        reading = Reading.SHARED
    else:
        reading = Reading.APART
    return Times(reading, len(negatives), len(misses), len(hits), control_p, negative_p, control_shift_s, negative_shift_s)


def smallest_gap(first: int, second: int, alpha: float = ALPHA) -> float:
    """The power of a sample in one number: the least distance of the distribution functions (0 to 1) that rejects at ``alpha``.

    Above 1 the sample can never reject. Two classes whose times do not overlap are 1 apart.
    """
    size = first * second / (first + second) if first and second else 0.0
    return math.sqrt(-math.log(alpha) / (2 * size)) if size else math.inf
