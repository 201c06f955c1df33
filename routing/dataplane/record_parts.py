"""What a record keeps of a decision, in the record's own types."""

from __future__ import annotations

from routing.core.record import CandidateRecord, Outcome, TrialRecord
from routing.core.snapshot import PolicyEntry
from routing.core.types import Candidate, Trial
from routing.dataplane.errors import ApiError


def trial(seen: Trial | None, policy: PolicyEntry | None) -> TrialRecord | None:
    """What the record says of the policy that did not decide."""
    if seen is None or policy is None:
        return None
    return TrialRecord(
        policy=policy.spec.get("policy", "ettft"),
        policy_version=policy.version,
        placed=seen.placed,
        replica_id=seen.other.replica_id,
        replica_name=seen.other.replica_name,
        expected_ttft_s=seen.other.expected_ttft_s,
        expected_cached_tokens=seen.other.expected_cached_tokens,
    )


def candidate(one: Candidate) -> CandidateRecord:
    """One replica as weighed."""
    return CandidateRecord(
        replica_id=one.replica_id,
        replica_name=one.replica_name,
        refusal=one.refusal,
        matched_tokens=one.matched_tokens,
        expected_cached_tokens=one.expected_cached_tokens,
        uncached_tokens=one.uncached_tokens,
        expected_ttft_s=one.expected_ttft_s,
        score_s=one.score_s,
        queued_tokens=one.queued_tokens,
        in_flight=one.in_flight,
        evidence=one.evidence,
        evidence_age_s=one.evidence_age_s,
        residency=one.residency,
        terms=one.terms,
        dp_rank=one.dp_rank,
    )


def outcome(error: ApiError) -> Outcome:
    """How a request ended whose answer is an error."""
    if error.code == "upstream_timeout":
        return "timeout"
    if error.code == "upstream_error":
        return "upstream_error"
    return "client_error" if error.status < 500 and error.status != 429 else "refused"
