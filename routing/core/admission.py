"""Commit a request to its replica now, or let it wait where it can still go elsewhere.

Late binding: a request is held only for others' work, never for its own prefill. While even the least WAIT of all replicas is over
min(:data:`SLO_SHARE` of the TTFT target, :data:`MAX_WAIT_S`) a prompt waits in the router, where the next replica to be free can take it. The least
and not the chosen one's: whoever waits for a busy holder would hold up all who stand behind and could go elsewhere. An idle
replica always commits, so the coldest and longest prompt on an idle fleet leaves at once, whatever its target.
While every replica has as many requests as it may, nobody is committed.
"""

from __future__ import annotations

from routing.core.types import Decision

SLO_SHARE = 0.5
MAX_WAIT_S = 2.0


def bound_s(ttft_slo_s: float | None) -> float:
    """The longest WAIT, in seconds, that a request is committed to."""
    return MAX_WAIT_S if ttft_slo_s is None else min(SLO_SHARE * ttft_slo_s, MAX_WAIT_S)


def commits(decision: Decision, ttft_slo_s: float | None) -> bool:
    """Whether the decision should be carried out now."""
    if decision.full:
        return False
    return decision.candidates.least_wait_s() <= bound_s(ttft_slo_s)
