"""A request's cause in one sentence, for people. Pure; it names no replica and no load, so that whoever may read the parts may read it."""

from __future__ import annotations

from collections.abc import Mapping

from routing.core.record import CauseRecord

_NOTABLE_SHARE = 0.15  # of the whole; what takes less is not worth a clause
_NOTABLE_US = 20_000
_MISSED: Mapping[str, str] = {
    "missed_evicted": "that had been sent there before and were no longer cached",
    "missed_not_ready": "that a request still in flight was to leave there",
    "missed_policy": "that another replica held, because the policy chose otherwise",
    "missed_replica_lost": "that were cached on a replica which restarted or is out of service",
    "missed_changed": "behind a change of the prompt's earlier text",
    "missed_namespace_changed": "that are cached under the identity which the request had before",
    "missed_never_seen": "that nobody had sent before",
}
_OTHERS: Mapping[str, str] = {
    "router": "reading and deciding in the router",
    "queue_router": "waiting in the router's queue",
    "queue_engine": "others' work at the replica (estimated)",
    "retry": "attempts that failed",
    "transfer": "moving its cache between replicas",
    "slow_replica": "a replica slower than its pool (estimated)",
    "generation": "generating the answer",
    "unexplained": "nothing that is known of",
    "replica": "others' work or slowness at the replica (estimated)",
}


def sentence(cause: CauseRecord, parts_us: Mapping[str, int]) -> str:
    """Why the request took its time. ``parts_us`` are the parts as the reader may see them; they have the same sum as the record's."""
    total_us = sum(parts_us.values())
    excess = sorted(((value, part) for part, value in parts_us.items() if part != "ideal"), reverse=True)
    main = cause.main if cause.main in parts_us else excess[0][1] if excess else None
    if main is None or parts_us[main] < min(_NOTABLE_US, total_us):
        return f"It took {_time(total_us)}, about what a warm and idle replica takes."
    others = [(value, part) for value, part in excess if part != main and value >= max(_NOTABLE_US, _NOTABLE_SHARE * total_us)]
    clauses = [_clause(cause, main, parts_us[main]), *(_clause(cause, part, value) for value, part in others[:2])]
    return f"Of {_time(total_us)}, {'; '.join(clauses)}."


def _clause(cause: CauseRecord, part: str, value_us: int) -> str:
    if part not in _MISSED:
        return f"{_time(value_us)} went to {_OTHERS.get(part, part.replace('_', ' '))}"
    tokens = cause.missed_tokens.get(part.removeprefix("missed_"), 0)
    said = f"about {_time(value_us)} went to computing {tokens:,} prompt tokens {_MISSED[part]}"
    if part == "missed_changed" and cause.diverged_tokens is not None:
        said += f" (it first differs from the conversation's last turn at about token {cause.diverged_tokens:,}, byte {cause.diverged_bytes:,})"
    return said


def _time(value_us: int) -> str:
    if value_us < 999_500:
        return f"{value_us / 1000:.0f} ms"
    return f"{value_us / 1e6:.2f} s" if value_us < 120e6 else f"{value_us / 60e6:.1f} min"
