"""Two policies over the same requests: how far apart they are, and how sure that is. Pure but for numpy: figures in, figures out.

Each policy was replayed several times, each time with other arrivals within a tenth of a second (the same for both), since a queue that turns on who
came first must not decide a review. Resampled are these runs and the conversations: requests of one conversation resemble each other, so a request
is no sample of its own. Requests without a conversation are grouped by the minute.

What the intervals do not hold: that the fleet is a model, and that another hour brings other traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from routing.traces.request import TraceRequest
from routing.traces.runs import NO_ANSWER

RESAMPLES = 1000
MIN_GROUPS = 20  # conversations or minutes below which no interval is given
MIN_REQUESTS = 100
COVERS = 0.95
GROUP_S = 60.0
METHOD = (
    f"95 % intervals from {RESAMPLES} resamples of replays and conversations (minutes, where no conversation is known). They hold what this"
    " traffic varies by; not that the fleet is a model, nor that tomorrow's traffic is another."
)


@dataclass(frozen=True, slots=True)
class Runs:
    """What each request got in each replay, by [replay, request]. ``ttft_s`` is ``NO_ANSWER`` where it was refused or cut."""

    ttft_s: NDArray[np.float32]
    cached_tokens: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the bounds of its interval; both None where there is too little to resample."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool:
        """Whether zero is outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The candidate beside the current policy, over ``requests`` that both answered in every replay.

    Changes of times are shares of the current policy's: -0.12 is 12 % sooner. ``hit_points`` is a difference of shares; ``tokens_saved`` are prompt
    tokens of the whole trace that only the candidate found cached.
    """

    requests: int
    groups: int
    mean_change: Interval
    p99_change: Interval
    hit_points: Interval
    slo_points: Interval | None
    tokens_saved: Interval


def groups_of(requests: Sequence[TraceRequest]) -> NDArray[np.int64]:
    """The number of each request's conversation, or of its minute."""
    known: dict[str, int] = {}
    names = (one.session or f"\0{int(one.at_s // GROUP_S)}" for one in requests)
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def compare(
    current: Runs, candidate: Runs, *, prompt_tokens: NDArray[np.int64], groups: NDArray[np.int64], slo_s: float | None, seed: int = 1
) -> Comparison:
    """Hold the candidate against the current policy; the same figures and seed give the same answer."""
    answered = ((current.ttft_s != NO_ANSWER) & (candidate.ttft_s != NO_ANSWER)).all(axis=0)
    before, after = current.ttft_s[:, answered].astype(np.float64), candidate.ttft_s[:, answered].astype(np.float64)
    hits = (candidate.cached_tokens[:, answered].astype(np.float64) - current.cached_tokens[:, answered]) if answered.any() else before
    tokens = prompt_tokens[answered].astype(np.float64)
    _, group = np.unique(groups[answered], return_inverse=True)
    figures = _Figures(before, after, hits, tokens, slo_s)
    runs, requests = before.shape
    count = int(group.max()) + 1 if requests else 0
    whole = figures.of(np.ones(runs), np.ones(requests)) if requests else np.zeros(5)
    sure = count >= MIN_GROUPS and requests >= MIN_REQUESTS
    drawn = figures.resampled(group, count, np.random.default_rng(seed)) if sure else None
    found = [_interval(float(whole[place]), None if drawn is None else drawn[:, place]) for place in range(5)]
    return Comparison(
        requests=requests,
        groups=count,
        mean_change=found[0],
        p99_change=found[1],
        hit_points=found[2],
        slo_points=None if slo_s is None else found[3],
        tokens_saved=found[4],
    )


def _interval(value: float, drawn: NDArray[np.float64] | None) -> Interval:
    if drawn is None:
        return Interval(value)
    low, high = np.quantile(drawn, [(1 - COVERS) / 2, (1 + COVERS) / 2])
    return Interval(value, float(low), float(high))


class _Figures:
    """Weighted figures of both policies. Times are sorted once; a resample is only other weights."""

    def __init__(
        self, before: NDArray[np.float64], after: NDArray[np.float64], hits: NDArray[np.float64], tokens: NDArray[np.float64], slo_s: float | None
    ) -> None:
        self.before, self.after, self.hits, self.tokens = before, after, hits, tokens
        self.within = np.zeros_like(before) if slo_s is None else (after <= slo_s).astype(np.float64) - (before <= slo_s)
        self.orders = [(side.ravel()[order], order) for side in (before, after) for order in (np.argsort(side, axis=None, kind="stable"),)]

    def of(self, runs: NDArray[np.float64], requests: NDArray[np.float64]) -> NDArray[np.float64]:
        """[change of the mean, of p99, points of hits, points of the objective, tokens saved] under weights of runs and of requests."""
        runs = runs / runs.sum()
        share = requests / requests.sum()
        means = [float(runs @ side @ share) for side in (self.before, self.after)]
        weights = np.outer(runs, requests).ravel()
        tails = []
        for ordered, order in self.orders:
            summed = np.cumsum(weights[order])
            tails.append(float(ordered[min(len(ordered) - 1, int(np.searchsorted(summed, 0.99 * summed[-1])))]))
        hits = runs @ self.hits
        return np.array(
            [
                _change(*means),
                _change(*tails),
                float(hits @ share) / max(1e-9, float(self.tokens @ share)),
                float(runs @ self.within @ share),
                float(hits @ share) * len(requests),
            ]
        )

    def resampled(self, group: NDArray[np.int64], count: int, draw: np.random.Generator) -> NDArray[np.float64]:
        """:meth:`of` for each resample, by [resample, figure]."""
        runs = len(self.before)
        found = np.empty((RESAMPLES, 5))
        for place in range(RESAMPLES):
            of_runs = np.bincount(draw.integers(0, runs, runs), minlength=runs).astype(np.float64)
            of_groups = np.bincount(draw.integers(0, count, count), minlength=count).astype(np.float64)
            found[place] = self.of(of_runs, of_groups[group])
        return found


def _change(before: float, after: float) -> float:
    return 0.0 if before == after else (after - before) / max(1e-9, before)


# ---- in words ----------------------------------------------------------------------------------------------------------


def verdict(found: Comparison) -> str:
    """``faster``, ``slower`` or ``none``, by the tail where it differs, else by the mean; ``mixed`` where the two contradict each other."""
    told = {"faster" if one.value < 0 else "slower" for one in (found.p99_change, found.mean_change) if one.differs}
    return "mixed" if len(told) == 2 else next(iter(told), "none")


def sentence(found: Comparison) -> str:
    """The outcome in one sentence."""
    if found.mean_change.low is None:
        return (
            f"No difference can be told: {_counted(found.requests, 'request')} in {_counted(found.groups, 'group')} are too few (at least"
            f" {MIN_REQUESTS} in {MIN_GROUPS}; a group is a conversation, or a minute where no conversation is known)."
        )
    if not any((one.value, one.low, one.high) != (0.0, 0.0, 0.0) for one in (found.p99_change, found.mean_change)):
        return "No difference can be told: every request had its first token at the same time under both."
    told = [f"{_told(one)} {where}" for one, where in ((found.p99_change, "at p99"), (found.mean_change, "in the mean")) if one.differs]
    if not told:
        near = ", ".join(f"{where} {_range(one)}" for one, where in ((found.p99_change, "p99"), (found.mean_change, "mean")))
        return f"No difference can be told: the candidate's time to first token changes by {near}, and zero is within both."
    return f"The candidate is {' and '.join(told)}."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _told(one: Interval) -> str:
    low, high = sorted(abs(bound) for bound in (one.low or 0.0, one.high or 0.0))
    return f"{_percent(abs(one.value))} % [{_percent(low)}, {_percent(high)}] {'faster' if one.value < 0 else 'slower'}"


def _range(one: Interval) -> str:
    return f"{100 * one.value:+.1f} % [{100 * (one.low or 0.0):+.1f}, {100 * (one.high or 0.0):+.1f}]"


def _percent(share: float) -> str:
    """Whole per cents from ten on, tenths below."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"
