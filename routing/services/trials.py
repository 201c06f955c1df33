"""Trials: a candidate routing policy beside the live one, its report, and the ways on: a larger share, promotion, roll-back.

An endpoint has one way back at most: a running trial is ended, or the last change of its routing policy is taken back. Once taken there is none left,
so rolling back twice is rolling back once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models.fields.json import KeyTransform
from django.utils import timezone

from routing import queries
from routing.core import trial
from routing.core.policy import PolicyError, compile_routing
from routing.core.trial import Estimate, Report, Sample, Seen
from routing.models import DecisionRow, Endpoint, PolicyVersion
from routing.services import policies, support
from tenants import changes
from tenants.actor import Actor
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.services import locks

MAX_DECISIONS = 5000  # that a report reads, newest first
WINDOW = timedelta(hours=24)  # that a report looks back
ROUNDED_S = 0.025  # on a platform's pool, where a candidate's expected times tell of others' load
MIN_ROUNDED = 20  # decisions below which a mean there would be nearly one decision's own


def start(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, policy: object, share: object) -> Endpoint:
    """Try a candidate, in the shadow (``share`` 0) or placing a share of the endpoint's prompts; or change the share of the one that is tried.

    ``policy`` is a name (its newest version), ``{name, version}`` or an inline document. The same again changes nothing. Another candidate takes the
    place of the one before. What an earlier change could be rolled back to is forgotten: the way back is now to the live policy.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid: no such policy, a document that cannot run, the live policy itself, or no share between 0 and 1.
    """
    locks.tenant(tenant_id)
    endpoint = _locked(tenant_id, endpoint_id)
    part = _share(share)
    version = policies.resolve(
        tenant_id=tenant_id, actor=actor, kind="routing", wanted=policy, endpoint_name=endpoint.name, field="policy", trial=True
    )
    if version.id == endpoint.routing_policy_id:
        raise Invalid("The endpoint runs this version already: there is nothing to try.", field="policy")
    columns: dict[str, Any] = {"candidate_policy": version, "canary_share": part, "previous_policy": None}
    if endpoint.candidate_policy_id != version.id:
        columns["trial_since"] = timezone.now()
    return _change(tenant_id, actor, endpoint, columns, action="endpoint.trial")


def end(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, reason: str = "") -> Endpoint:
    """End the trial: the live policy decides alone again. Without a trial nothing changes.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid: a malformed reason.
    """
    locks.tenant(tenant_id)
    endpoint = _locked(tenant_id, endpoint_id)
    names.reason(reason)
    return _change(tenant_id, actor, endpoint, _NO_TRIAL, action="endpoint.trial_end", reason=reason)


def promote(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, version: int | None = None, reason: str = "") -> Endpoint:
    """Make the candidate the live policy; what was live is what a roll-back returns to.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid: a malformed reason.
        Conflict: nothing is tried, or the candidate is another version than ``version``, the one whose report was read.
    """
    locks.tenant(tenant_id)
    endpoint = _locked(tenant_id, endpoint_id)
    names.reason(reason)
    candidate = endpoint.candidate_policy
    if candidate is None:
        raise Conflict("No candidate is tried on this endpoint.")
    if version is not None and version != candidate.version:
        raise Conflict(f"Version {candidate.version} is tried now: look at its report first.", field="version")
    return _change(tenant_id, actor, endpoint, policies.moved(endpoint, candidate), action="endpoint.promote", reason=reason)


def roll_back(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, reason: str = "") -> Endpoint:
    """Take back what was done last: a running trial ends, else the routing policy before the present one decides again. Again: nothing changes.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid: a malformed reason.
    """
    locks.tenant(tenant_id)
    endpoint = _locked(tenant_id, endpoint_id)
    names.reason(reason)
    columns = dict(_NO_TRIAL)
    if endpoint.candidate_policy is None and endpoint.previous_policy is not None:
        columns |= {"routing_policy": endpoint.previous_policy, "previous_policy": None}
    return _change(tenant_id, actor, endpoint, columns, action="endpoint.rollback", reason=reason)


_NO_TRIAL: dict[str, Any] = {"candidate_policy": None, "canary_share": 0.0, "trial_since": None}


def _locked(tenant_id: UUID, endpoint_id: UUID) -> Endpoint:
    support.locked(Endpoint, tenant_id=tenant_id, row_id=endpoint_id)
    return queries.endpoints(tenant_id).get(id=endpoint_id)


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise Invalid("Give the share of prompts that the candidate places, from 0 (none) to 1 (all).", field="share")
    return float(value)


def _change(tenant_id: UUID, actor: Actor, endpoint: Endpoint, columns: dict[str, Any], *, action: str, reason: str = "") -> Endpoint:
    before = _audit(endpoint)
    _, changed = support.apply_changes(endpoint, columns)
    after = _audit(endpoint)
    if changed:
        changes.record(
            tenant_id=tenant_id,
            actor=actor,
            action=action,
            object_id=endpoint.id,
            object_label=endpoint.name,
            before={name: value for name, value in before.items() if after[name] != value},
            after={name: value for name, value in after.items() if before[name] != value},
            reason=reason,
        )
    return endpoint


def _audit(endpoint: Endpoint) -> dict[str, Any]:
    def shown(version: PolicyVersion | None) -> str | None:
        return None if version is None else f"{version.policy.name} v{version.version}"

    return {
        "routing_policy": shown(endpoint.routing_policy),
        "candidate": shown(endpoint.candidate_policy),
        "canary_share": endpoint.canary_share,
        "back_to": shown(endpoint.previous_policy),
    }


# ---- the report --------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrialReport:
    """What the decisions of a running trial say. ``rounded``: the pool is the platform's, so expected times are rounded means and no more."""

    since: datetime  # the first moment that it may read
    truncated: bool  # there were more than ``MAX_DECISIONS``: the newest are read
    rounded: bool
    figures: Report
    method: str = trial.METHOD


def report(*, tenant_id: UUID, endpoint: Endpoint, whole: bool, now: datetime) -> TrialReport | None:
    """Sum up the decisions of the trial that runs; None where none does. Reads ``MAX_DECISIONS`` rows of the last ``WINDOW`` at most.

    ``whole``: the caller may read the load of the endpoint's pool. In the tenant's scope.
    """
    candidate = endpoint.candidate_policy
    if candidate is None or endpoint.trial_since is None:
        return None
    since = max(endpoint.trial_since, now - WINDOW)
    columns = ("started_at", "replica_id", "expected_ttft_s", "ttft_s", "cached_tokens")
    parts = {name: KeyTransform(name, "record") for name in ("trial", "policy", "policy_version", "expected_cached_tokens")}
    rows = list(
        DecisionRow.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint.id, started_at__gte=since)
        .exclude(queries.AUDITS)
        .order_by("-started_at")
        .values(*columns, **{f"record_{name}": part for name, part in parts.items()})[: MAX_DECISIONS + 1]
    )
    sides = (_side(endpoint.routing_policy), _side(candidate))
    found = [one for one in (_seen(row, *sides) for row in rows[:MAX_DECISIONS]) if one is not None]
    figures = trial.report(found)
    return TrialReport(since=since, truncated=len(rows) > MAX_DECISIONS, rounded=not whole, figures=figures if whole else _rounded(figures))


def may_read_load(tenant_id: UUID, endpoint: Endpoint, *, platform: bool) -> bool:
    """Whether a caller in the tenant may read the load of the endpoint's pool: its own, or a platform operator's."""
    return platform or queries.usable_pool(tenant_id, str(endpoint.grant.pool_id)).own


Side = tuple[str, int]  # the policy's kind and its version, as records name it


def _side(version: PolicyVersion) -> Side | None:
    try:
        return compile_routing(version.spec).policy, version.version
    except PolicyError:
        return None  # a damaged row; no router runs it


def _seen(row: dict[str, Any], live: Side | None, candidate: Side | None) -> Seen | None:
    """One row as the trial of this very pair; None for any other."""
    said = row["record_trial"]
    if not isinstance(said, dict) or row["expected_ttft_s"] is None:
        return None
    placed = bool(said["placed"])
    here, there = (row["record_policy"], row["record_policy_version"]), (said["policy"], said["policy_version"])
    if ((there, here) if placed else (here, there)) != (live, candidate):
        return None
    mine = (row["expected_ttft_s"], row["record_expected_cached_tokens"] or 0.0)
    others = (said["expected_ttft_s"] or 0.0, said["expected_cached_tokens"] or 0.0)
    by_live, by_candidate = (others, mine) if placed else (mine, others)
    return Seen(
        at_s=row["started_at"].timestamp(),
        placed=placed,
        agreed=said["replica_id"] == row["replica_id"],
        live_ttft_s=by_live[0],
        candidate_ttft_s=by_candidate[0],
        live_cached_tokens=by_live[1],
        candidate_cached_tokens=by_candidate[1],
        ttft_s=row["ttft_s"],
        cached_tokens=row["cached_tokens"],
    )


def _rounded(figures: Report) -> Report:
    return replace(
        figures,
        live_ttft_s=_rounded_sample(figures.live_ttft_s),
        candidate_ttft_s=_rounded_sample(figures.candidate_ttft_s),
        ttft_difference_s=rounded_mean(figures.ttft_difference_s, figures.decisions),
    )


def _rounded_sample(held: Sample) -> Sample:
    return Sample(count=held.count, mean=rounded_mean(held.mean, held.count))


def rounded_mean(held: Estimate | None, count: int) -> Estimate | None:
    """A mean as it may be told where it speaks of others' load: of enough decisions, to ``ROUNDED_S``, without an interval."""
    if held is None or count < MIN_ROUNDED:
        return None
    return Estimate(round(held.value / ROUNDED_S) * ROUNDED_S)
