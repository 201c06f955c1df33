"""Choose a replica. Pure: the same ask, replicas and policy always give the same decision, whatever the order of the replicas."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

from routing.core import candidates, ttft
from routing.core.policy import RoutingPolicy
from routing.core.scorer import Field
from routing.core.scorers import REGISTER
from routing.core.types import Ask, Decision, NoReplica, Replica, Trial
from routing.core.weighing import Row, Weighed

Ordered = tuple[list[Row], Sequence[str]]  # best first, and the names of their terms
_BY_TIME = RoutingPolicy()
Rank = tuple[float, ...] | tuple[object, ...]


def decide(ask: Ask, replicas: Sequence[Replica], policy: RoutingPolicy) -> Decision | NoReplica:
    """Pick the eligible replica that ``policy`` likes best, and say what was weighed.

    Every candidate carries its expected time to first token whatever the policy, so policies can be compared on the same record.
    """
    ordered = sorted(replicas, key=lambda replica: replica.id)
    eligible = [replica for replica in ordered if replica.refusal is None]
    refused = [Row(replica) for replica in ordered if replica.refusal is not None]
    if not eligible:
        return NoReplica(candidates=Weighed(ask, refused))
    short = candidates.shortlist(ask, eligible, by_seconds=_weighs_seconds(ask, policy))
    best_first, names = _POLICIES[policy.policy](ask, short.kept, policy)
    seen = Weighed(ask, [*best_first, *map(Row, short.out), *refused], names)
    chosen = seen[0]
    attainable = ask.ttft_slo_s is None or chosen.expected_ttft_s <= ask.ttft_slo_s
    return Decision(policy=policy.policy, chosen=chosen, candidates=seen, attainable=attainable, full=short.full)


def decide_on_trial(
    ask: Ask, replicas: Sequence[Replica], live: RoutingPolicy, candidate: RoutingPolicy, canary_share: float
) -> tuple[Decision | NoReplica, Trial | None]:
    """The decision, and what the policy that did not make it would have chosen.

    The candidate decides for ``canary_share`` of all prompts, told apart by how they begin, so that a conversation stays on one side.
    """
    lot = int.from_bytes(hashlib.sha256(b"canary" + ask.prefix_key + ask.lot).digest()[:8], "big") / 2**64
    placed = lot < canary_share
    decision = decide(ask, replicas, candidate if placed else live)
    other = decide(ask, replicas, live if placed else candidate)
    if isinstance(decision, NoReplica) or isinstance(other, NoReplica):
        return decision, None
    return decision, Trial(placed=placed, other=other.chosen)


def best_rank(ask: Ask, ranks: Sequence[Replica], policy: RoutingPolicy) -> Replica:
    """Which data-parallel rank of one engine to name: by ``policy``, or by expected time where that does not weigh seconds. ``ranks`` are at least
    one, all of one replica, with loads, caches and rendezvous ranks of their own.
    """
    free = [one for one in ranks if one.kv_used < candidates.KV_LIMIT] or ranks
    best_first, _ = _by_seconds(ask, free, policy if _weighs_seconds(ask, policy) else _BY_TIME)
    return best_first[0].replica


def _weighs_seconds(ask: Ask, policy: RoutingPolicy) -> bool:
    return policy.policy in ("ettft", "weighted") or (policy.policy == "session" and ask.session_key is None)


def _by_seconds(ask: Ask, eligible: Sequence[Replica], policy: RoutingPolicy) -> Ordered:
    """``ettft`` and ``weighted``: least sum of scorer terms.

    Near-ties go to the least uncached work, then the least busy, then the rendezvous rank.
    """
    estimates = [ttft.estimate(ask, replica) for replica in eligible]
    field = Field(
        policy=policy,
        mean_prefill_tokens_per_s=sum([replica.prefill_tokens_per_s for replica in eligible]) / len(eligible),
        mean_wait_s=sum([one.wait_s for one in estimates]) / len(eligible),
        least_ttft_s=min([one.ttft_s for one in estimates]),
    )
    weights = dict(policy.weights)
    used = [scorer for scorer in REGISTER if scorer.name in weights]
    scorers = [(weights[scorer.name], scorer.seconds) for scorer in used]
    rows: list[Row] = []
    scores: list[float] = []
    for replica, estimate in zip(eligible, estimates, strict=True):
        terms = [weight * seconds(ask, replica, estimate, field) for weight, seconds in scorers]
        rows.append(Row(replica, estimate, terms))
        scores.append(sum(terms))
    best_s = min(scores)
    most_s = best_s + policy.tie_within_s(best_s)
    ranks: list[tuple[float, float, int, bytes, str, int]] = []
    for place, (replica, estimate, score_s) in enumerate(zip(eligible, estimates, scores, strict=True)):
        tied = score_s <= most_s
        ranks.append((not tied, estimate.uncached_tokens if tied else score_s, replica.in_flight, replica.rank, replica.id, place))
    return [rows[place] for *_, place in sorted(ranks)], [scorer.name for scorer in used]


def _ranked(key: Callable[[Ask, Replica, RoutingPolicy, Sequence[Replica]], Rank]) -> Callable[..., Ordered]:
    """A policy that orders the eligible replicas by a key and scores no seconds."""

    def order(ask: Ask, eligible: Sequence[Replica], policy: RoutingPolicy) -> Ordered:
        best_first = sorted(eligible, key=lambda replica: key(ask, replica, policy, eligible))
        return [Row(replica) for replica in best_first], ()

    return order


def _round_robin(ask: Ask, replica: Replica, _policy: RoutingPolicy, eligible: Sequence[Replica]) -> Rank:
    """Turn through the eligible replicas by the endpoint's request count."""
    position = [one.id for one in eligible].index(replica.id)
    return ((position - ask.sequence) % len(eligible),)


def _least_outstanding(_ask: Ask, replica: Replica, _policy: RoutingPolicy, _eligible: Sequence[Replica]) -> Rank:
    """Fewest requests in flight, then the least recently chosen."""
    return (replica.in_flight, replica.last_chosen, replica.id)


def _bounded_hash(_ask: Ask, replica: Replica, policy: RoutingPolicy, eligible: Sequence[Replica]) -> Rank:
    """Rendezvous hashing with bounded load: the prefix's own order of replicas, skipping those over ``load_factor`` times the mean.

    Source: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), over a rendezvous order in place of a ring.
    """
    # Rounded up, as in the source: otherwise nobody is within the bound while there are fewer requests than replicas.
    bound = math.ceil(policy.load_factor * (sum(one.in_flight for one in eligible) + 1) / len(eligible))
    return (replica.in_flight + 1 > bound, replica.rank, replica.id)


def _session(ask: Ask, eligible: Sequence[Replica], policy: RoutingPolicy) -> Ordered:
    """A request that names its session goes to that session's own replica, within the load bound; one that names none is placed by expected time.

    ``Replica.rank`` is then the session's order of replicas in place of the prompt's.
    """
    if ask.session_key is None:
        return _by_seconds(ask, eligible, policy)
    return _ranked(_bounded_hash)(ask, eligible, policy)


def _longest_prefix(_ask: Ask, replica: Replica, policy: RoutingPolicy, _eligible: Sequence[Replica]) -> Rank:
    """Longest match, counted up to ``prefix_tokens``, among replicas below the concurrency threshold; then the least busy."""
    matched = min(replica.matched_tokens, policy.prefix_tokens)
    return (replica.in_flight >= policy.concurrency_threshold, -matched, replica.in_flight, replica.last_chosen, replica.id)


_POLICIES: dict[str, Callable[..., Ordered]] = {
    "ettft": _by_seconds,
    "weighted": _by_seconds,
    "round_robin": _ranked(_round_robin),
    "least_outstanding": _ranked(_least_outstanding),
    "bounded_hash": _ranked(_bounded_hash),
    "session": _session,
    "longest_prefix": _ranked(_longest_prefix),
}
