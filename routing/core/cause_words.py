"""A request's cause in one sentence, for people who know no more than the words of the glossary.

Pure; it names no replica and no load, so that whoever may read the parts may read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from routing.core import glossary
from routing.core.record import CauseRecord

_NOTABLE_SHARE = 0.15  # of the whole; what takes less is not worth a clause
_NOTABLE_US = 20_000
_NOTABLE_MISS_SHARE = 0.05  # what was there once and had to be computed again can be acted upon, so it is said from a smaller share on
_MISSED: Mapping[str, str] = {
    "missed_evicted": "that had been sent to a replica before, whose cache no longer held them (evicted)",
    "missed_not_ready": "that another request, not finished yet, was about to leave in the cache",
    "missed_policy": "that were in another replica's cache, where the policy did not send this request",
    "missed_replica_lost": "that were in the cache of a replica which has restarted or is out of service",
    "missed_other_pool": "that were sent to a replica of another pool, which this endpoint does not use",
    "missed_changed": "behind a place where the conversation's earlier text was changed",
    "missed_namespace_changed": "that were cached before their cache identity changed",
    "missed_never_seen": "that nobody had sent before",
}
_AGAIN = frozenset(_MISSED) - {"missed_never_seen"}
_OTHERS: Mapping[str, str] = {
    "router": "passed while the router read the request and chose a replica",
    "queue_router": "passed in the router's queue, until a replica had time",
    "queue_engine": "passed behind other requests at the replica (estimated)",
    "retry": "went to attempts that failed",
    "no_answer": "passed while the replica did not answer, and failed its health checks",
    "transfer": "passed while its cache was moved from one replica to another",
    "slow_replica": "would have been saved by the fastest kind of replica in the pool (estimated)",
    "generation": "passed from the first token to the end of the answer",
    "unexplained": "cannot be explained by anything that is known",
    "replica": "passed behind other requests at the replica, or because it was slow (estimated)",
}


def sentence(cause: CauseRecord, parts_us: Mapping[str, int]) -> str:
    """Why the request took its time. ``parts_us`` are the parts as the reader may see them; they have the same sum as the record's."""
    total_us = sum(parts_us.values())
    excess = sorted(((value, part) for part, value in parts_us.items() if part != "ideal"), reverse=True)
    main = cause.main if cause.main in parts_us else excess[0][1] if excess else None
    if main is None or parts_us[main] < min(_NOTABLE_US, total_us):
        return f"It took {_time(total_us)}, about what a replica takes that has the prompt in its cache and nothing else to do."
    others = [(value, part) for value, part in excess if part != main and value >= max(_NOTABLE_US, _NOTABLE_SHARE * total_us)][:2]
    if not any(part in _AGAIN for part in (main, *(part for _, part in others))):
        others += [(value, part) for value, part in excess if part in _AGAIN and value >= max(_NOTABLE_US, _NOTABLE_MISS_SHARE * total_us)][:1]
    clauses = [_clause(cause, main, parts_us[main]), *(_clause(cause, part, value) for value, part in others)]
    return f"Of the {_time(total_us)} that it took in all, {'; '.join(clauses)}."


def refused(status: int, code: str | None, refusals: Sequence[str | None]) -> str:
    """Why the request went nowhere. ``refusals`` are what speaks against each replica, as the reader may see it; None: nothing does."""
    said = f"Refused with {status}{f' ({code})' if code else ''}"
    if not refusals or not all(refusals):
        return f"{said} before any replica was asked."
    counts = Counter(one for one in refusals if one is not None)
    told = ", ".join(f"{number} {glossary.label('refusal', reason)}" for reason, number in sorted(counts.items()))
    return f"{said}: no replica could take it ({told})."


def _clause(cause: CauseRecord, part: str, value_us: int) -> str:
    if part not in _MISSED:
        return f"{_time(value_us)} {_OTHERS.get(part, 'went to ' + part.replace('_', ' '))}"
    tokens = cause.missed_tokens.get(part.removeprefix("missed_"), 0)
    said = f"about {_time(value_us)} went to computing {tokens:,} prompt tokens {_MISSED[part]}"
    if part == "missed_changed" and cause.diverged_tokens is not None:
        said += f" (it first differs from the last turn at about token {cause.diverged_tokens:,}, byte {cause.diverged_bytes:,})"
    return said


def _time(value_us: int) -> str:
    if value_us < 999_500:
        return f"{value_us / 1000:.0f} ms"
    return f"{value_us / 1e6:.2f} s" if value_us < 120e6 else f"{value_us / 60e6:.1f} min"
