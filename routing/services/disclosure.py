"""What of a decision its tenant may read.

On its own pools everything. On a pool of the platform's: its own terms and one rounded wait of the pool. Names of replicas, their load and what
others keep there are the platform's, so they are left out, and so are a candidate's sums, from which they could be worked out. The estimate for the
request as a whole stays: the time it then took, which is the tenant's own, says as much.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from routing.core import cause_words
from routing.core.cause import ESTIMATED, OF_THE_REPLICA, PARTS, folded
from routing.core.ranks import OTHER_RANK
from routing.core.record import CandidateRecord, CauseRecord, DecisionRecord

WAIT_STEP_S = 0.5
_OWN_TERMS = frozenset({"prefill", "external_price"})  # what the request itself costs; the other terms tell of others


class CandidateOut(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as weighed. On a pool of the platform's ``replica`` is a number of this decision alone, and what tells of others is null."""

    replica: str
    replica_id: str | None
    chosen: bool
    refusal: str | None
    matched_tokens: int
    expected_cached_tokens: float
    uncached_tokens: float
    evidence: str
    evidence_age_s: float
    residency: str | None  # how far the replica's KV events could be trusted
    terms: dict[str, float]  # seconds
    expected_ttft_s: float | None
    score_s: float | None
    queued_tokens: float | None
    in_flight: int | None
    dp_rank: int | None = None  # the engine's data-parallel rank, where requests name one


class AttemptOut(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch."""

    replica: str
    status: int | None
    error: str | None
    duration_s: float
    dp_rank: int | None = None  # the engine's data-parallel rank that it named


class PartOut(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the request's time; routing.core.cause says what each means. ``replica`` stands for all that tells of others on a platform's pool."""

    part: str
    seconds: float
    estimated: bool


class BlindOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice blind to caches (fewest requests in flight) was expected to take; ``saved_s`` is that less what the choice here was."""

    replica: str
    expected_ttft_s: float
    saved_s: float


class CauseOut(msgspec.Struct, frozen=True, kw_only=True):
    """Why the request took its time, or why it was refused. The parts add up to its time. Token counts are of the prompt."""

    sentence: str
    main: str | None
    parts: list[PartOut]
    missed_tokens: dict[str, int]
    warm_tokens: int
    diverged_tokens: int | None
    diverged_bytes: int | None
    last_turn_tokens: int
    blind: BlindOut | None


class Disclosed(msgspec.Struct, frozen=True, kw_only=True):
    """A decision as its tenant may read it. ``record`` is the rest of the record, without candidates, attempts and the replica."""

    replica: str | None
    replica_id: str | None
    pool_wait_s: float | None  # the shortest wait on the platform's pool, rounded up
    candidates: list[CandidateOut]
    attempts: list[AttemptOut]
    cause: CauseOut | None
    record: dict[str, Any]


def disclose(record: DecisionRecord, *, own_replica_ids: set[str] | None) -> Disclosed:
    """Take from ``record`` what may be read. ``own_replica_ids`` None: the reader is the platform, and reads everything."""
    shown = names(record, own_replica_ids)

    def own(replica_id: str) -> bool:
        return own_replica_ids is None or replica_id in own_replica_ids

    foreign = [candidate for candidate in record.candidates if not own(candidate.replica_id) and candidate.refusal is None]
    rest = msgspec.to_builtins(record)
    for name in ("candidates", "attempts", "cause", "replica_id", "replica_name"):
        rest.pop(name, None)
    for name in ("trial", "transfer"):  # other replicas that the record names
        if (part := rest.get(name)) is not None:
            rest[name] = _part(part, shown, own=own(part["replica_id"]))
    found = Disclosed(
        replica=None if record.replica_id is None else shown.get(record.replica_id, record.replica_name),
        replica_id=record.replica_id if record.replica_id is not None and own(record.replica_id) else None,
        pool_wait_s=None if record.policy == "weighted" else _rounded_wait(foreign),  # its terms are seconds times weights, which no record holds
        candidates=[
            _candidate(one, shown, own=own(one.replica_id), chosen=one.replica_id == record.replica_id and one.refusal != OTHER_RANK)
            for one in record.candidates
            if one.refusal != OTHER_RANK or own(one.replica_id)  # what a shared replica is made of is the platform's
        ],
        attempts=[
            AttemptOut(
                replica=shown[one.replica_id],
                status=one.status,
                error=one.error,
                duration_s=one.duration_s,
                dp_rank=one.dp_rank if own(one.replica_id) else None,
            )
            for one in record.attempts
        ],
        cause=None,
        record=rest,
    )
    if record.cause is None:
        return found
    refusals = [one.refusal for one in found.candidates]
    return msgspec.structs.replace(found, cause=_cause(record, record.cause, shown, refusals, own=_all_own(record, own_replica_ids)))


def _all_own(record: DecisionRecord, own_replica_ids: set[str] | None) -> bool:
    """Whether every replica of the decision may be read, whether or not its candidates were kept."""
    if own_replica_ids is None:
        return True
    named = {record.replica_id, *(one.replica_id for one in record.attempts), *(one.replica_id for one in record.candidates)}
    if record.cause is not None:
        named.add(record.cause.blind_replica_id)
    return named - {None} <= own_replica_ids


def _cause(record: DecisionRecord, cause: CauseRecord, names: dict[str, str], refusals: list[str | None], *, own: bool) -> CauseOut:
    parts_us = dict(cause.parts_us) if own else folded(cause.parts_us)
    blind = None
    if own and cause.blind_replica_id is not None and cause.blind_ttft_s is not None and record.expected_ttft_s is not None:
        blind = BlindOut(
            replica=names.get(cause.blind_replica_id) or cause.blind_replica_name or cause.blind_replica_id,
            expected_ttft_s=cause.blind_ttft_s,
            saved_s=cause.blind_ttft_s - record.expected_ttft_s,
        )
    said = cause_words.refused(record.status, record.error_code, refusals) if record.outcome == "refused" else cause_words.sentence(cause, parts_us)
    estimated = ESTIMATED | {"replica"} | (frozenset() if record.stream else {"generation"})  # of a whole answer only the end is measured
    return CauseOut(
        sentence=said,
        main="replica" if not own and cause.main in OF_THE_REPLICA else cause.main,
        parts=[PartOut(part=part, seconds=parts_us[part] / 1e6, estimated=part in estimated) for part in (*PARTS, "replica") if part in parts_us],
        missed_tokens=dict(cause.missed_tokens),
        warm_tokens=cause.warm_tokens,
        diverged_tokens=cause.diverged_tokens,
        diverged_bytes=cause.diverged_bytes,
        last_turn_tokens=cause.last_turn_tokens,
        blind=blind,
    )


def _part(part: dict[str, Any], shown: dict[str, str], *, own: bool) -> dict[str, Any]:
    """What the record says of one more replica, without what would tell of others' load."""
    kept = {name: value for name, value in part.items() if own or not (name.startswith("expected_") and name.endswith("_s"))}
    kept["replica"] = shown.get(kept.pop("replica_id"), "a replica")
    kept.pop("replica_name", None)
    return kept


def names(record: DecisionRecord, own_replica_ids: set[str] | None) -> dict[str, str]:
    """A name for each replica of the decision: its own where that may be read, else "replica 1" and so on, in the order of ids.

    The order of candidates is that of their scores, and would tell of their load.
    """
    known = {candidate.replica_id: candidate.replica_name for candidate in record.candidates}
    if record.replica_id is not None:
        known.setdefault(record.replica_id, record.replica_name or record.replica_id)
    for attempt in record.attempts:
        known.setdefault(attempt.replica_id, attempt.replica_id)
    if record.trial is not None:
        known.setdefault(record.trial.replica_id, record.trial.replica_name)
    found: dict[str, str] = {}
    hidden = 0
    for replica_id, name in sorted(known.items()):
        if own_replica_ids is None or replica_id in own_replica_ids:
            found[replica_id] = name
        else:
            hidden += 1
            found[replica_id] = f"replica {hidden}"
    return found


def own_terms(terms: dict[str, float], *, own: bool) -> dict[str, float]:
    """The terms of a candidate that may be read."""
    return {name: value for name, value in terms.items() if own or name in _OWN_TERMS}


def _rounded_wait(candidates: list[CandidateRecord]) -> float | None:
    waits = [candidate.terms["wait"] for candidate in candidates if "wait" in candidate.terms]
    return math.ceil(min(waits) / WAIT_STEP_S) * WAIT_STEP_S if waits else None


def _candidate(candidate: CandidateRecord, names: dict[str, str], *, own: bool, chosen: bool) -> CandidateOut:
    return CandidateOut(
        replica=names[candidate.replica_id],
        replica_id=candidate.replica_id if own else None,
        chosen=chosen,
        refusal=candidate.refusal if own or candidate.refusal is None else "not available",
        matched_tokens=candidate.matched_tokens,
        expected_cached_tokens=candidate.expected_cached_tokens,
        uncached_tokens=candidate.uncached_tokens,
        evidence=candidate.evidence,
        evidence_age_s=candidate.evidence_age_s if own or candidate.evidence != "event" else 0.0,  # since anybody's latest event there
        residency=candidate.residency if own else None,
        terms=own_terms(candidate.terms, own=own),
        expected_ttft_s=candidate.expected_ttft_s if own else None,
        score_s=candidate.score_s if own else None,
        queued_tokens=candidate.queued_tokens if own else None,
        in_flight=candidate.in_flight if own else None,
        dp_rank=candidate.dp_rank if own else None,
    )
