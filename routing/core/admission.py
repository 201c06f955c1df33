"""Commit a request to its replica now, or let it wait where it can still go elsewhere.

Late binding: a request is held only for others' work, never for its own prefill. While the chosen replica's WAIT is over
min(:data:`SLO_SHARE` of the TTFT target, :data:`MAX_WAIT_S`) a prompt waits in the router, where the next replica to be free can take it. An idle
replica always commits, so the coldest and longest prompt on an idle fleet leaves at once, whatever its target.
While every replica has as many requests as it may, nobody is committed.
"""

from __future__ import annotations

from routing.core.types import Candidate, Decision

SLO_SHARE = 0.5
MAX_WAIT_S = 2.0


def bound_s(ttft_slo_s: float | None) -> float:
    """The longest WAIT, in seconds, that a request is committed to."""
    return MAX_WAIT_S if ttft_slo_s is None else min(SLO_SHARE * ttft_slo_s, MAX_WAIT_S)


def commits(decision: Decision, ttft_slo_s: float | None) -> bool:
    """Whether the decision should be carried out now."""
    if decision.full:
        return False
    if any(candidate.refusal is None and _idle(candidate) for candidate in decision.candidates):
        return True
    return decision.chosen.wait_s <= bound_s(ttft_slo_s)


def _idle(candidate: Candidate) -> bool:
    return candidate.in_flight == 0 and candidate.wait_s == 0.0
