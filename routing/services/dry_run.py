"""A routing policy against what an endpoint decided lately: how much would have gone elsewhere, and what would have been expected of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, cast
from uuid import UUID

from routing import queries
from routing.core import dry_run
from routing.core.dry_run import Redone, Summary
from routing.core.policy import PolicyError, PolicyName, RoutingPolicy, compile_routing
from routing.core.record import DecisionRecord, wants_candidates
from routing.core.trial import Estimate
from routing.models import DecisionRow, Endpoint, PolicyVersion
from routing.services import disclosure, policies, trials

MAX_DECISIONS = 2000  # newest first
MAX_SCANNED = 100_000  # decisions, audits among them, in which those with candidates are looked for
WINDOW = timedelta(days=7)


GoesBy = Literal["score", "turn", "load", "match"]
_GOES_BY: dict[PolicyName, GoesBy] = {"round_robin": "turn", "least_outstanding": "load", "longest_prefix": "match"}  # the others score seconds


@dataclass(frozen=True, slots=True)
class Weighed:
    """One candidate of the example. Times and load are None where they would tell of others' load, and scores where the policy has none."""

    replica: str
    chosen_before: bool
    chosen_after: bool
    expected_ttft_s: float | None
    expected_cached_tokens: float
    terms_before: dict[str, float]
    terms_after: dict[str, float]
    score_before_s: float | None
    score_after_s: float | None
    matched_tokens: int  # those that the policy counts
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class Example:
    """One decision before and after: the newest that differs, else the newest. ``goes_by``: what the policy of the dry run orders replicas by."""

    decision_id: UUID
    started_at: float
    goes_by: GoesBy
    candidates: tuple[Weighed, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """``decisions`` were read, of which ``summary.redone`` could be redone. ``rounded`` as in a trial's report.

    Routers keep the candidates of a sample of all requests, and of every one that went wrong (an error, an alarm, a missed target): ``went_wrong``
    says how many of the read ones are of the latter, which therefore weigh more here than among all requests.
    """

    since: datetime
    decisions: int
    went_wrong: int
    truncated: bool
    rounded: bool
    summary: Summary
    example: Example | None


def version_or_document(*, tenant_id: UUID, endpoint: Endpoint, wanted: object, field: str) -> RoutingPolicy:
    """The policy that a dry run is of: a name, ``{name, version}``, ``{version}`` of the endpoint's own policy, or a document. Stores nothing.

    Raises:
        Invalid: no such policy or version, or a document that cannot run.
    """
    if isinstance(wanted, dict) and set(wanted) == {"version"}:
        wanted = {"name": endpoint.routing_policy.policy.name, **wanted}
    if isinstance(wanted, str) or (isinstance(wanted, dict) and "name" in wanted):
        wanted = policies.referred(tenant_id=tenant_id, kind="routing", wanted=wanted, field=field).spec
    return cast(RoutingPolicy, policies.compiled("routing", wanted, field=field))


def run(*, tenant_id: UUID, endpoint: Endpoint, policy: RoutingPolicy, whole: bool, own_replica_ids: set[str] | None, now: datetime) -> DryRun:
    """Redo the newest decisions under ``policy``: ``MAX_DECISIONS`` at most, of the newest ``MAX_SCANNED``, of the last ``WINDOW``.

    In the tenant's scope. ``whole`` as in :func:`routing.services.trials.report`; ``own_replica_ids`` as in :mod:`routing.services.disclosure`.
    """
    since = now - WINDOW
    recent = DecisionRow.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint.id, started_at__gte=since).order_by("-started_at")
    oldest = recent.values_list("started_at", flat=True)[MAX_SCANNED : MAX_SCANNED + 1].first()  # from the index alone: no row is read for it
    since = since if oldest is None else oldest
    kept = recent.exclude(queries.AUDITS).filter(started_at__gte=since, record__has_key="candidates")  # few rows
    rows = list(kept[: MAX_DECISIONS + 1])
    known = _known(tenant_id, endpoint)
    oldest_first = [queries.record_of(row) for row in reversed(rows[:MAX_DECISIONS])]
    found = [dry_run.redo(record, known.get((record.policy, record.policy_version)), policy, turn=turn) for turn, record in enumerate(oldest_first)]
    pairs = [(record, one) for record, one in zip(oldest_first, found, strict=True) if isinstance(one, Redone)]
    shown = next((pair for pair in reversed(pairs) if pair[1].differs), pairs[-1] if pairs else None)
    summary = dry_run.summary(found)
    return DryRun(
        since=since,
        decisions=len(found),
        went_wrong=sum(wants_candidates(record, asked=False, share=0.0) is not None for record in oldest_first),
        truncated=len(rows) > MAX_DECISIONS,
        rounded=not whole,
        summary=summary if whole else _rounded(summary),
        example=None if shown is None else _example(*shown, policy, own_replica_ids),
    )


def _known(tenant_id: UUID, endpoint: Endpoint) -> dict[tuple[str | None, int | None], RoutingPolicy]:
    """The policies that the endpoint refers to, all versions, under what records call them. What two of them are called means neither."""
    refers = [one.policy_id for one in (endpoint.routing_policy, endpoint.candidate_policy, endpoint.previous_policy) if one is not None]
    known: dict[tuple[str | None, int | None], RoutingPolicy] = {}
    doubtful = set()
    for version in PolicyVersion.objects.filter(tenant_id=tenant_id, policy_id__in=refers):
        try:
            compiled = compile_routing(version.spec)
        except PolicyError:
            continue
        name = (compiled.policy, version.version)
        if known.setdefault(name, compiled) != compiled:
            doubtful.add(name)
    return {name: policy for name, policy in known.items() if name not in doubtful}


def _rounded(summary: Summary) -> Summary:
    def rounded(value: float | None) -> float | None:
        told = trials.rounded_mean(None if value is None else Estimate(value), summary.redone)
        return None if told is None else told.value

    return replace(summary, ttft_before_s=rounded(summary.ttft_before_s), ttft_after_s=rounded(summary.ttft_after_s))


def _example(record: DecisionRecord, redone: Redone, policy: RoutingPolicy, own_replica_ids: set[str] | None) -> Example:
    names = disclosure.names(record, own_replica_ids)
    kept = {one.replica_id: one for one in record.candidates if one.refusal is None}
    found: list[Weighed] = []
    for after in redone.candidates:
        before = kept[after.replica_id]
        own = own_replica_ids is None or after.replica_id in own_replica_ids
        found.append(
            Weighed(
                replica=names[after.replica_id],
                chosen_before=after.replica_id == redone.before.replica_id,
                chosen_after=after.replica_id == redone.after.replica_id,
                expected_ttft_s=before.expected_ttft_s if own else None,
                expected_cached_tokens=before.expected_cached_tokens,
                terms_before=disclosure.own_terms(before.terms, own=own),
                terms_after=disclosure.own_terms(after.terms, own=own),
                score_before_s=before.score_s if own and before.terms else None,
                score_after_s=after.score_s if own and after.terms else None,
                matched_tokens=min(before.matched_tokens, policy.prefix_tokens) if policy.policy == "longest_prefix" else before.matched_tokens,
                in_flight=before.in_flight if own else None,
            )
        )
    if own_replica_ids is not None and not own_replica_ids.issuperset(kept):
        found.sort(key=lambda one: one.replica)  # the order of scores would tell of load
    return Example(decision_id=record.id, started_at=record.started_at, goes_by=_GOES_BY.get(policy.policy, "score"), candidates=tuple(found))
