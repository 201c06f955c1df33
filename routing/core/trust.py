"""How far predictions of residency came true: every answer's cached tokens against what the router expected of that engine and namespace.

A :class:`Trust` is one account (a namespace at a target, or all of one tenant's namespaces there). It keeps two ledgers, for predictions from the
engine's events and for those from history, since the one says nothing of the other. Each ledger has

* kappa: tokens realised over tokens predicted, a ratio of two moving averages over about ``WINDOW`` answers. Predicted is what the scheduler's
  confidence made of the match before kappa, so confidence times kappa is without bias, whatever the confidence was;
* the last ``WINDOW`` answers: the share that came exactly true within block rounding, and the median error in tokens.

From the events' ledger follows a verdict, which moves one step at a time and only on answers that came after the step before:

    fine -> relearn (replay, or the engine's full reports) -> demote (history decides) -> flag (somebody must look)

and back to fine on answers that come true. A step needs predictions that fail, and that history alone would have made no worse: blocks evicted
while a request waits in an engine's queue speak against neither, and kappa discounts them. Demoted and flagged accounts are tried again after a
while, later each time. The likely cause is named from the answers themselves. Whether a salt was honoured is not judged here: an alarm raises an
audit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from statistics import median
from typing import Literal

from routing.core.last_block import LastBlock

Verdict = Literal["fine", "relearn", "demote", "flag"]
Cause = Literal["template_mismatch", "block_size", "events_lost", "eviction_faster_than_events", "unknown"]

WINDOW = 64
_SEVERITY: dict[Verdict, int] = {"fine": 0, "relearn": 1, "demote": 2, "flag": 3}
PRIOR = 8  # answers that the first belief, that all comes true, is worth
ENOUGH = 8  # answers until an account speaks for itself
MOST_RATIO = 1.25  # of realised to predicted, in one answer: what the confidence left out, not what nobody predicted
DEFAULT_BLOCK_TOKENS = 16
HISTORY_ROUNDING_TOKENS = 32  # history compares blocks of 128 bytes, of 512 beyond a prompt's first 4 KB
SILENCE_S = 600.0  # after which kappa drifts back to 1
HALF_LIFE_S = 600.0

DWELL = 16  # answers after a step until the next one
RELEARN_ANSWERS = 4 * DWELL
BAD_SHARE_EXACT = 0.5
BAD_KAPPA = 0.7
GOOD_SHARE_EXACT = 0.75
GOOD_KAPPA = 0.85
MAX_FAILURES = 3  # relearnings in vain until somebody must look
FULL_SHARE = 0.9  # of a cache that the router's own traffic fills: from there on each prompt pushes another out
RETRY_S = 600.0  # until the first new attempt; doubles
MAX_RETRY_S = 3600.0
_HOPELESS = frozenset({"template_mismatch", "block_size"})  # what no relearning repairs


def engine_rule(prompt_tokens: int, block_tokens: int) -> int:
    """The most prompt tokens that an engine takes from its cache: whole blocks, and never the last token. Observed on vLLM 0.32."""
    return max(0, prompt_tokens - 1) // block_tokens * block_tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and what had been predicted of it, in tokens.

    ``matched_tokens`` is the match that the prediction rests on, ``predicted_tokens`` that match at its confidence, before kappa. ``exact``: the
    prediction came from events, and ``history_tokens`` is the match that history would have made in its place; None: nobody asked it.
    ``counted_tokens`` is the router's own count of the prompt where it is exact; ``pressure`` the share of the engine's cache that the router
    believes in use; ``gaps`` counts events known to be lost at the target so far. ``withheld``: the match leaves out a block that the engine
    holds and computes anew (:mod:`routing.core.last_block`).
    """

    matched_tokens: int
    predicted_tokens: float
    cached_tokens: int
    prompt_tokens: int
    exact: bool
    history_tokens: int | None = None
    block_tokens: int | None = None
    counted_tokens: int | None = None
    age_s: float = 0.0
    pressure: float = 0.0
    gaps: int = 0
    withheld: bool = False

    @property
    def rounding_tokens(self) -> int:
        """Errors below this many tokens are block rounding."""
        return self.block_tokens or DEFAULT_BLOCK_TOKENS


_COLUMNS = 6  # matched, cached, age in s, pressure, count difference, matched by history
_UNKNOWN = -1e9


@dataclass(slots=True)
class Ledger:
    """The answers to one kind of prediction."""

    answers: int = 0
    predicted_mean: float = 0.0
    cached_mean: float = 0.0
    last_s: float = 0.0
    recent: array[float] = field(default_factory=lambda: array("f"))  # the window, row after row: small, and without objects
    came_true: array[int] = field(default_factory=lambda: array("b"))

    def observe(self, answer: Answer, now_s: float) -> None:
        self.answers += 1
        self.last_s = now_s
        if answer.predicted_tokens >= 1:
            cached = min(float(answer.cached_tokens), MOST_RATIO * answer.predicted_tokens)
            if self.predicted_mean == 0.0:
                self.predicted_mean = self.cached_mean = answer.predicted_tokens
            weight = max(2 / (WINDOW + 1), 1 / (self.answers + PRIOR))
            self.predicted_mean += (answer.predicted_tokens - self.predicted_mean) * weight
            self.cached_mean += (cached - self.cached_mean) * weight
        difference = _UNKNOWN if answer.counted_tokens is None else float(answer.prompt_tokens - answer.counted_tokens)
        error = answer.cached_tokens - answer.matched_tokens
        history = _UNKNOWN if answer.history_tokens is None else answer.history_tokens
        self.recent.extend((answer.matched_tokens, answer.cached_tokens, answer.age_s, answer.pressure, difference, history))
        self.came_true.append(abs(error) < answer.rounding_tokens)
        if len(self.came_true) > WINDOW:
            del self.recent[:_COLUMNS], self.came_true[:1]

    def kappa(self, now_s: float) -> float:
        """In [0, ``MOST_RATIO``]; 1 where nothing is known, and again after long silence."""
        if self.predicted_mean == 0.0:
            return 1.0
        kappa = self.cached_mean / self.predicted_mean
        silent_s = now_s - self.last_s - SILENCE_S
        return kappa if silent_s <= 0 else 1.0 + (kappa - 1.0) * 0.5 ** (silent_s / HALF_LIFE_S)

    def share_exact(self, last: int = WINDOW) -> float | None:
        """Share of the last answers that came true within block rounding."""
        kept = self.came_true[-last:]
        return sum(kept) / len(kept) if kept else None

    def errors_tokens(self) -> list[float]:
        """Realised less predicted, of the answers in the window."""
        return [cached - matched for matched, cached in zip(self.recent[::_COLUMNS], self.recent[1::_COLUMNS], strict=True)]

    def ratio(self, last: int) -> float | None:
        """Tokens realised over tokens matched in the last answers; None where nothing was matched."""
        matched = self.recent[::_COLUMNS][-last:]
        cached = self.recent[1::_COLUMNS][-last:]
        total = sum(matched)
        return None if total == 0 else sum(min(one, most) for one, most in zip(cached, matched, strict=True)) / total

    def no_worse_than_history(self, last: int) -> bool:
        """Whether history would not clearly have done better: its own rounding and a quarter of its errors are no difference."""
        columns = [self.recent[column::_COLUMNS][-last:] for column in (0, 1, 5)]
        rows = [(matched, cached, history) for matched, cached, history in zip(*columns, strict=True) if history != _UNKNOWN]
        errors = sum(abs(cached - matched) for matched, cached, _ in rows)
        allowed = sum(1.25 * abs(cached - history) + HISTORY_ROUNDING_TOKENS for _, cached, history in rows)
        return bool(rows) and errors <= allowed


def cause(ledger: Ledger, *, block_tokens: int | None, gaps: int) -> Cause:
    """What most likely makes the predictions in the window fail; ``gaps`` are events lost during it. The most certain evidence comes first."""
    columns = [list(ledger.recent[column::_COLUMNS]) for column in range(_COLUMNS)]
    matched, cached, ages, pressures, differences, histories = columns
    known = [difference for difference in differences if difference != _UNKNOWN]
    if len(known) >= ENOUGH and sum(difference != 0 for difference in known) * 2 >= len(known):
        return "template_mismatch"
    if _other_multiple(cached, block_tokens or DEFAULT_BLOCK_TOKENS):
        return "block_size"
    if gaps > 0:
        return "events_lost"
    if _shortfall_grows(matched, cached, ages) or _shortfall_grows(matched, cached, pressures) or _pushed_out(matched, cached, pressures, histories):
        return "eviction_faster_than_events"
    return "unknown"


def _other_multiple(cached: Sequence[float], block_tokens: int) -> bool:
    """Whether the size of which hits of many lengths are all multiples is not the block size. By chance: about one in 2 ** ENOUGH."""
    lengths = {round(tokens) for tokens in cached if tokens >= 1}
    return len(lengths) >= ENOUGH and gcd(*lengths) != block_tokens


def _shortfall_grows(matched: Sequence[float], cached: Sequence[float], measure: Sequence[float]) -> bool:
    """Whether the predictions with the higher measure fell shorter by far than those with the lower."""
    pairs = sorted((size, max(0.0, most - one) / most) for most, one, size in zip(matched, cached, measure, strict=True) if most >= 1)
    half = len(pairs) // 2
    if half < ENOUGH or pairs[0][0] == pairs[-1][0]:
        return False
    low = sum(short for _, short in pairs[:half]) / half
    high = sum(short for _, short in pairs[-half:]) / half
    return high >= 0.15 and high >= 2 * low


def _pushed_out(matched: Sequence[float], cached: Sequence[float], pressures: Sequence[float], histories: Sequence[float]) -> bool:
    """Whether most predictions that fell short were of prompts that history had forgotten by half or more, at a full cache.

    History forgets in the order in which the router's own traffic fills the cache: what it no longer expects was pushed out by that, and the events
    that will say so are late. An engine whose events are wrong disappoints history as well.
    """
    rows = zip(matched, cached, pressures, histories, strict=True)
    short = [(most, pressure, history) for most, one, pressure, history in rows if most - one > HISTORY_ROUNDING_TOKENS and history != _UNKNOWN]
    pushed_out = sum(pressure >= FULL_SHARE and 2 * history <= most for most, pressure, history in short)
    return len(short) >= ENOUGH and 2 * pushed_out >= len(short)


@dataclass(frozen=True, slots=True)
class Change:
    """A verdict that changed."""

    before: Verdict
    after: Verdict
    cause: Cause | None


@dataclass(slots=True)
class Trust:
    """One account. ``now_s`` is monotonic and given by the caller."""

    events: Ledger = field(default_factory=Ledger)
    history: Ledger = field(default_factory=Ledger)
    last_block: LastBlock = field(default_factory=LastBlock)
    verdict: Verdict = "fine"
    cause: Cause | None = None
    failures: int = 0
    since_s: float = 0.0  # when the verdict was given
    since_answers: int = 0  # answers to predictions from events since then
    gaps_before: int = 0

    def ledger(self, *, exact: bool) -> Ledger:
        return self.events if exact else self.history

    def believes_events(self) -> bool:
        """Whether predictions may rest on the engine's events."""
        return self.verdict in ("fine", "relearn")

    def relearns(self) -> bool:
        """Whether help is wanted: for a while after the verdict, not for as long as it stands."""
        return self.verdict == "relearn" and self.since_answers < RELEARN_ANSWERS

    def observe(self, answer: Answer, now_s: float) -> Change | None:
        """Take in an answer; returns the change of verdict, if it makes one. Where nothing was promised and nothing found, nothing is learned."""
        if answer.matched_tokens == 0 and answer.cached_tokens == 0:
            return None
        if self.events.answers == 0:
            self.gaps_before = answer.gaps
        self.ledger(exact=answer.exact).observe(answer, now_s)
        if not answer.exact:
            return None
        if answer.block_tokens is not None:
            held_tokens = answer.matched_tokens + (answer.block_tokens if answer.withheld else 0)
            self.last_block.observe(held_tokens=held_tokens, cached_tokens=answer.cached_tokens, block_tokens=answer.block_tokens)
        self.since_answers += 1
        if not self.believes_events() or self.since_answers < DWELL:
            return None
        exact, ratio = self.events.share_exact(DWELL), self.events.ratio(DWELL)
        if exact is None:
            return None
        if self.verdict == "relearn" and exact >= GOOD_SHARE_EXACT and (ratio is None or ratio >= GOOD_KAPPA):
            self.failures = 0
            return self._become("fine", None, now_s, answer.gaps)
        if (exact >= BAD_SHARE_EXACT and (ratio is None or ratio >= BAD_KAPPA)) or self.events.no_worse_than_history(DWELL):
            return None
        why = cause(self.events, block_tokens=answer.block_tokens, gaps=answer.gaps - self.gaps_before)
        if self.verdict == "fine":
            return self._become("relearn", why, now_s, answer.gaps)
        self.failures += 1
        hopeless = why in _HOPELESS or self.failures >= MAX_FAILURES
        return self._become("flag" if self.failures > 1 and hopeless else "demote", why, now_s, answer.gaps)

    def retry(self, now_s: float) -> Change | None:
        """Try a demoted or flagged account's events again, when its time has come."""
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** max(0, self.failures - 1))
        if self.believes_events() or now_s - self.since_s < wait_s:
            return None
        return self._become("relearn", self.cause, now_s, self.gaps_before)

    def _become(self, verdict: Verdict, why: Cause | None, now_s: float, gaps: int) -> Change:
        change = Change(before=self.verdict, after=verdict, cause=why)
        self.verdict, self.cause, self.since_s, self.since_answers, self.gaps_before = verdict, why, now_s, 0, gaps
        return change


@dataclass(frozen=True, slots=True)
class Report:
    """What is shown of a target. ``median_error_tokens`` is of the magnitude; None: no answers yet."""

    kappa: float
    answers: int
    share_exact: float | None
    median_error_tokens: float | None
    verdict: Verdict
    cause: Cause | None
    withholds: bool = False  # it computes the last block anew that it holds of a prompt


def summary(accounts: Sequence[Trust], now_s: float) -> Report:
    """Several tenants' accounts of one target as one. Medians over tenants: the odd prompts of one do not decide for all."""
    exact = any(account.events.answers for account in accounts)
    ledgers = [account.ledger(exact=exact) for account in accounts if account.ledger(exact=exact).answers]
    errors = [abs(error) for ledger in ledgers for error in ledger.errors_tokens()]
    shares = [share for ledger in ledgers if (share := ledger.share_exact()) is not None]
    verdict, why = common_verdict(accounts)
    return Report(
        kappa=median([ledger.kappa(now_s) for ledger in ledgers]) if ledgers else 1.0,
        answers=sum(ledger.answers for ledger in ledgers),
        share_exact=sum(shares) / len(shares) if shares else None,
        median_error_tokens=median(errors) if errors else None,
        verdict=verdict,
        cause=why,
    )


def common_verdict(accounts: Iterable[Trust]) -> tuple[Verdict, Cause | None]:
    """The median verdict of the tenants who have seen enough, the milder of two, and its cause."""
    judged = sorted(
        (account for account in accounts if account.events.answers >= ENOUGH), key=lambda account: (_SEVERITY[account.verdict], account.cause or "")
    )
    if not judged:
        return "fine", None
    middle = judged[(len(judged) - 1) // 2]
    return middle.verdict, middle.cause
