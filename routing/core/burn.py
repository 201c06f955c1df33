"""How fast an endpoint uses up what its objective allows to go wrong, and when that is worth waking somebody.

An objective "95 % within 2 s" allows 5 % of misses. The *burn rate* over a window is the share of misses there over that allowance: at 1 all of it
is used and no more, at 20 everything missed. A rule looks at a long window, which says that it matters, and at a short one, which says that it goes
on: both must burn. Once it fires it goes on until the short window burns at less than half of what it takes to fire, so that it does not flutter.
Source: multi-window, multi-burn-rate alerts as in "The Site Reliability Workbook" (Google, 2018), chapter 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WINDOWS_S = (300, 3600, 21_600)
MIN_MISSES = 5  # in the long window: one slow request of two at night is no incident
CEILING = 0.9  # of the burn at which everything misses: a rule must be able to fire, however loose the objective
RELEASE = 0.5


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of a window that counted, and how many of them missed."""

    total: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A pair of windows and the burn rate that both must reach."""

    name: str
    severity: str
    long_s: int
    short_s: int
    threshold: float


RULES = (
    Rule("fast", "critical", long_s=3600, short_s=300, threshold=14.4),
    Rule("slow", "warning", long_s=21_600, short_s=3600, threshold=6.0),
)


def rate(counts: Counts, share: float) -> float | None:
    """The burn rate of a window for an objective that ``share`` (0 to 1, below 1) of the requests must meet; None without requests."""
    return None if counts.total == 0 else counts.bad / counts.total / (1 - share)


def threshold(rule: Rule, share: float) -> float:
    """The burn rate at which a rule fires for an objective of this share: the rule's, or nearly all that can be."""
    return min(rule.threshold, CEILING / (1 - share))


def fires(rule: Rule, windows: Mapping[int, Counts], share: float, *, held: bool) -> bool:
    """Whether the rule fires; ``held``: it does already."""
    limit, short = threshold(rule, share), rate(windows[rule.short_s], share) or 0.0
    if held:
        return short >= RELEASE * limit
    long = windows[rule.long_s]
    return long.bad >= MIN_MISSES and (rate(long, share) or 0.0) >= limit and short >= limit
