"""What is kept of a run and signed: every row of the matrix with its verdict, every probe in numbers, nothing of what was sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from namespaces.audit.case import Outcome, Probe, Seen
from namespaces.audit.statistics import failure_rate_bound
from namespaces.audit.timing import Times, smallest_gap
from namespaces.core.identity import SCHEMA
from routing.models import AuditRun
from routing.services.audits.execution import Findings, Tried
from routing.services.audits.targets import Target

FORMAT = "saltroute-audit/1"
MICROSECONDS = 1_000_000


def cases(findings: Findings) -> list[dict[str, Any]]:
    """The verdicts alone, for lists and pages."""
    return [
        {
            "name": tried.case.name,
            "title": tried.case.title,
            "rows": list(tried.case.rows),
            "outcome": tried.verdict.outcome.value,
            "reason": tried.verdict.reason,
            "odd": tried.verdict.odd,
            "rounds": tried.rounds,
            "negative_probes": tried.verdict.negative_probes,
            "controls_seen": _controls(tried),
        }
        for tried in findings.tried
    ]


def _controls(tried: Tried) -> int:
    """Positive controls that were answered. In a case that passed each of them hit."""
    return sum(probe.expect.value == "hit" and seen.status == 200 for probe, seen in tried.sent)


def bound_ppm(findings: Findings) -> int | None:
    """The upper 95 % bound of the failure rate, in parts per million; None unless the run passed."""
    return round(failure_rate_bound(findings.negatives) * MICROSECONDS) if findings.outcome is Outcome.PASS else None


def evidence(run: AuditRun, target: Target, findings: Findings, *, slug: str, build: str, block_tokens: int, finished_at: datetime) -> dict[str, Any]:
    """The document; whole numbers and texts only, so that it has one spelling."""
    return {
        "format": FORMAT,
        "identity_schema": SCHEMA,
        "run": str(run.id),
        "tenant": {"id": str(target.tenant_id), "slug": slug},
        "endpoint": {"id": str(target.endpoint_id), "name": target.endpoint_name, "epochs": target.epochs},
        "pool": {"id": str(target.pool_id), "name": target.pool_name},
        "replica": {"id": str(target.replica_id), "name": target.replica_name, "engine": target.engine, "build": build},
        "trigger": run.trigger,
        "started_at_us": _us(run.started_at),
        "finished_at_us": _us(finished_at),
        "outcome": findings.outcome.value,
        "reason": findings.reason,
        "judged_by": "reported cached tokens, held against times" if findings.reported else "times to first token",
        "block_tokens": block_tokens,
        "template_tokens": findings.baseline_tokens,
        "probes": findings.probes,
        "negative_probes": findings.negatives,
        "failure_rate_bound_ppm": bound_ppm(findings),
        "computed_tokens": findings.computed_tokens,
        "discarded_rounds": findings.discarded_rounds,
        "times": _times(findings.times),
        "cases": [
            {**shown, "times": _times(tried.times), "probes": _probes(tried)} for shown, tried in zip(cases(findings), findings.tried, strict=True)
        ],
    }


def _probes(tried: Tried) -> list[list[Any]]:
    """[label, scope, route, stream, expected, status, cached tokens, prompt tokens, time to first token in microseconds] of each, as sent."""
    return [_probe(probe, seen) for probe, seen in tried.sent]


def _probe(probe: Probe, seen: Seen) -> list[Any]:
    ttft_us = None if seen.ttft_s is None else round(seen.ttft_s * MICROSECONDS)
    return [probe.label, probe.scope, probe.route, probe.stream, probe.expect.value, seen.status, seen.cached_tokens, seen.prompt_tokens, ttft_us]


def _times(times: Times | None) -> dict[str, Any] | None:
    """``p`` values in parts per billion, rounded up; ``detectable_gap_ppm`` is the least distance of distributions that the sample can find."""
    if times is None:
        return None
    gap = smallest_gap(times.negatives, times.misses)
    return {
        "reading": times.reading.value,
        "negatives": times.negatives,
        "first_uses": times.misses,
        "hits": times.hits,
        "control_p_ppb": -int(-times.control_p * 1e9 // 1),
        "negative_p_ppb": -int(-times.negative_p * 1e9 // 1),
        "control_shift_us": round(times.control_shift_s * MICROSECONDS),
        "negative_shift_us": round(times.negative_shift_s * MICROSECONDS),
        "detectable_gap_ppm": round(gap * MICROSECONDS) if gap <= 1 else None,
    }


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * MICROSECONDS)
