"""Who is weighed at all, of those that may serve a request: not the full, not the nearly exhausted, not too much of the just returned, not everybody.

* *full*: as many requests in flight as its declaration allows (``Replica.max_concurrency``). For every policy. If all are full, all are weighed and
  the decision says so: the request waits.
* *kv_full*: at least :data:`KV_LIMIT` of its KV cache is in use, so a further request preempts one that runs.
* *ramping*: it came back a moment ago (``Replica.ramp`` below 1) with an empty cache, and holds as many requests as that share of
  :data:`RAMP_LOAD` times the mean; everybody's cold prompts at once would bury it.
* *not_shortlisted*: in pools over :data:`MANY` replicas only the best by residency, by backlog and by rendezvous rank are weighed.

The last three are for policies that weigh seconds, and each is lifted where it would leave nobody.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from routing.core import ttft
from routing.core.types import Ask, Replica

FULL = "full"
KV_FULL = "kv_full"
RAMPING = "ramping"
NOT_SHORTLISTED = "not_shortlisted"

KV_LIMIT = 0.95
RAMP_LOAD = 1.25
RAMP_S = 20.0
RAMP_LEAST = 0.25
MANY = 64
BEST_RESIDENCY = 8
LEAST_BACKLOG = 8
BEST_RANK = 2


@dataclass(frozen=True, slots=True)
class Shortlist:
    """``kept`` are to be weighed; ``out`` are those that were not, each with its reason. ``full``: all were full and are kept for want of others."""

    kept: tuple[Replica, ...]
    out: tuple[Replica, ...]
    full: bool


def is_full(replica: Replica) -> bool:
    return replica.max_concurrency is not None and replica.in_flight >= replica.max_concurrency


def ramp(since_return_s: float) -> float:
    """The share of an ordinary load that a replica may take ``since_return_s`` after it came back, in [RAMP_LEAST, 1]."""
    return 1.0 if since_return_s >= RAMP_S else RAMP_LEAST + (1.0 - RAMP_LEAST) * max(0.0, since_return_s) / RAMP_S


def shortlist(ask: Ask, eligible: Sequence[Replica], *, by_seconds: bool) -> Shortlist:
    """Narrow ``eligible``, which is not empty and in an order that does not depend on the caller's. Nobody is kept twice, somebody always is."""
    out: list[Replica] = []
    kept = list(eligible)
    leaving = [one for one in kept if one.max_concurrency is not None and is_full(one)]
    all_full = len(leaving) == len(kept)
    kept = _without(kept, leaving, FULL, out)
    if by_seconds:
        kept = _without(kept, [one for one in kept if one.kv_used >= KV_LIMIT], KV_FULL, out)
        bound = RAMP_LOAD * (sum([one.in_flight for one in kept]) + 1) / len(kept)
        leaving = [one for one in kept if one.ramp < 1.0 and one.in_flight + 1 > max(1, math.ceil(one.ramp * bound))]
        kept = _without(kept, leaving, RAMPING, out)
        if len(kept) > MANY:
            best = _best(ask, kept)
            kept = _without(kept, [one for one in kept if one.id not in best], NOT_SHORTLISTED, out)
    return Shortlist(kept=tuple(kept), out=tuple(out), full=all_full)


def _without(kept: list[Replica], leaving: list[Replica], reason: str, out: list[Replica]) -> list[Replica]:
    if not leaving or len(leaving) == len(kept):
        return kept
    out += [replace(one, refusal=reason) for one in leaving]
    gone = {one.id for one in leaving}
    return [one for one in kept if one.id not in gone]


def _best(ask: Ask, kept: Sequence[Replica]) -> frozenset[str]:
    residency = heapq.nsmallest(BEST_RESIDENCY, kept, key=lambda one: (-ttft.expected_cached_tokens(ask, one), ttft.wait_s(one), one.id))
    backlog = heapq.nsmallest(LEAST_BACKLOG, kept, key=lambda one: (ttft.wait_s(one), one.in_flight, one.rank, one.id))
    rank = heapq.nsmallest(BEST_RANK, kept, key=lambda one: (one.rank, one.id))
    return frozenset(one.id for one in (*residency, *backlog, *rank))
