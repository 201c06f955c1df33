"""A past decision under another policy, from what its record holds: which replica it would have gone to, and what would have been expected there.

One step ahead and no further: load and residency are those that the policy of the time had led to. A record holds each candidate's terms in seconds,
already multiplied by the weights of its policy; dividing by those gives what the scorers said, and the new policy's weights are put in their place.
What a record does not hold (a prompt's own order of replicas, the pool's rate where nothing was priced) is not guessed: the decision is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing.core.policy import RoutingPolicy
from routing.core.record import CandidateRecord, DecisionRecord

NO_CANDIDATES = "its candidates were not kept"
NOBODY = "no replica could be chosen"
NO_ORDER = "the policy goes by the prompt's own order of replicas, which records do not hold"
NO_TERMS = "it was decided under a policy that does not weigh what this one weighs"
UNKNOWN_POLICY = "it was decided under a version that this endpoint does not refer to"


@dataclass(frozen=True, slots=True)
class Rescored:
    """One candidate under the new policy; empty terms where it scores no seconds."""

    replica_id: str
    score_s: float
    terms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Redone:
    """One decision, before and after. ``candidates`` are best first."""

    before: CandidateRecord
    after: CandidateRecord
    candidates: tuple[Rescored, ...]

    @property
    def differs(self) -> bool:
        return self.before.replica_id != self.after.replica_id


def redo(record: DecisionRecord, old: RoutingPolicy | None, new: RoutingPolicy, *, turn: int) -> Redone | str:
    """The decision under ``new``. ``old`` is the policy that took it; ``turn`` counts decisions, for round robin.

    Whatever the record cannot tell apart goes to the replica that was chosen.

    Returns:
        The decision again, or why it cannot be had.
    """
    if old is None:
        return UNKNOWN_POLICY
    if not record.candidates:
        return NO_CANDIDATES
    eligible = sorted((one for one in record.candidates if one.refusal is None), key=lambda one: one.replica_id)
    if not eligible:
        return NOBODY
    before = next((one for one in eligible if one.replica_id == record.replica_id), None)
    if before is None:
        return NO_CANDIDATES
    if new.policy in ("bounded_hash", "session"):
        return NO_ORDER
    if new.policy in ("ettft", "weighted"):
        scored = _by_seconds(record, eligible, old, new)
        if scored is None:
            return NO_TERMS
        ranks, terms = scored
    else:
        ranks, terms = {one.replica_id: _rank(one, eligible, new, turn) for one in eligible}, {}
    best_first = sorted(eligible, key=lambda one: (ranks[one.replica_id], one.replica_id != before.replica_id, one.replica_id))
    return Redone(
        before=before,
        after=best_first[0],
        candidates=tuple(_rescored(one, terms.get(one.replica_id, {})) for one in best_first),
    )


def _rescored(candidate: CandidateRecord, terms: dict[str, float]) -> Rescored:
    return Rescored(replica_id=candidate.replica_id, score_s=sum(terms.values()), terms=terms)


Ranks = dict[str, tuple[float, ...]]


def _by_seconds(
    record: DecisionRecord, eligible: Sequence[CandidateRecord], old: RoutingPolicy, new: RoutingPolicy
) -> tuple[Ranks, dict[str, dict[str, float]]] | None:
    """Ranks as ``ettft`` and ``weighted`` have them, near-ties included, and the terms they come from."""
    terms: dict[str, dict[str, float]] = {}
    if old.price_auto != new.price_auto and factors(new).get("external_price"):
        return None  # the price of the moment is in no record
    for candidate in eligible:
        found = _terms(record, candidate, factors(old), factors(new))
        if found is None:
            return None
        terms[candidate.replica_id] = found
    scores = {replica_id: sum(found.values()) for replica_id, found in terms.items()}
    best_s = min(scores.values())
    within_s = new.tie_within_s(best_s)
    ranks: Ranks = {}
    for candidate in eligible:
        score_s = scores[candidate.replica_id]
        near = score_s <= best_s + within_s
        ranks[candidate.replica_id] = (0, candidate.uncached_tokens, candidate.in_flight) if near else (1, score_s, candidate.in_flight)
    return ranks, terms


def _terms(record: DecisionRecord, candidate: CandidateRecord, old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float] | None:
    found = {}
    for name, factor in new.items():
        if factor == 0:
            found[name] = 0.0
            continue
        if old.get(name, 0.0) > 0 and name in candidate.terms:
            said_s = candidate.terms[name] / old[name]
        elif name == "slo_guard":
            said_s = 0.0 if record.slo_ttft_s is None else max(0.0, candidate.expected_ttft_s - 0.8 * record.slo_ttft_s)
        else:
            return None
        found[name] = factor * said_s
    return found


def factors(policy: RoutingPolicy) -> dict[str, float]:
    """What a policy multiplies each scorer's seconds by, its own coefficients included. A price that the pool's wait sets is taken as a scorer's."""
    if policy.policy not in ("ettft", "weighted", "session"):
        return {}
    own = {"external_price": 1.0 if policy.price_auto else policy.price_of_recomputation, "pressure": policy.pressure}
    return {name: weight * own.get(name, 1.0) for name, weight in policy.weights}


def _rank(candidate: CandidateRecord, eligible: Sequence[CandidateRecord], policy: RoutingPolicy, turn: int) -> tuple[float, ...]:
    if policy.policy == "round_robin":
        return ((list(eligible).index(candidate) - turn) % len(eligible),)
    if policy.policy == "longest_prefix":
        matched = min(candidate.matched_tokens, policy.prefix_tokens)
        return (candidate.in_flight >= policy.concurrency_threshold, -matched, candidate.in_flight)
    return (candidate.in_flight,)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Decisions that could not be redone, by why."""

    why: str
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Decisions before and after. Sums run over the decisions that could be redone; ``left_out`` counts the others by why."""

    redone: int
    differing: int
    ttft_before_s: float | None  # expected, mean
    ttft_after_s: float | None
    cached_before: float | None  # expected, mean, tokens
    cached_after: float | None
    left_out: tuple[LeftOut, ...]


def summary(found: Sequence[Redone | str]) -> Summary:
    """Sum up decisions that were redone, and reasons why others were not."""
    redone = [one for one in found if isinstance(one, Redone)]
    reasons = [one for one in found if isinstance(one, str)]
    count = len(redone)

    def over(values: Sequence[float]) -> float | None:
        return sum(values) / count if count else None

    return Summary(
        redone=count,
        differing=sum(one.differs for one in redone),
        ttft_before_s=over([one.before.expected_ttft_s for one in redone]),
        ttft_after_s=over([one.after.expected_ttft_s for one in redone]),
        cached_before=over([one.before.expected_cached_tokens for one in redone]),
        cached_after=over([one.after.expected_cached_tokens for one in redone]),
        left_out=tuple(LeftOut(reason, reasons.count(reason)) for reason in sorted(set(reasons))),
    )
