"""Alerts of a tenant: what is the case is looked for every minute, held against what fires, and told to its webhooks in the same transaction."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError
from django.utils import timezone

from routing.core import burn
from routing.core.alerts import Cause, Change, Held, Key, settle
from routing.core.findings import State
from routing.models import Alert, ReconciliationFinding, Replica
from routing.services import slo, webhooks
from routing.services.reconciliation import reading
from tenants.models import ApiKey
from tenants.queries import all_tenants, lasting
from tenants.scoping import require_scope, tenant_scope

EXPIRING = timedelta(days=7)
MAX_FIRING = 500  # of one tenant; the gravest kinds first
MAX_RESOLVED = 2000
RESOLVED_FOR = timedelta(days=30)
SWEEP_S = 45.0
UNREACHABLE = "replica_unreachable"  # a finding and an alert of its own
_ORDER = ("critical", "warning", "info")
_WORDS = {300: "5 minutes", 3600: "hour", 21_600: "6 hours"}
# By objective: what counts for it, and what of that misses it without a time.
_COUNTED = {
    "ttft": (
        "streamed or failed requests",
        "Requests that were refused, as for want of an audited replica, or failed count as misses; answers that were not streamed have no first "
        "token and do not count.",
    ),
    "e2e": ("requests", "Requests that were refused, as for want of an audited replica, or failed count as misses."),
}
_log = logging.getLogger(__name__)


def causes(tenant_id: UUID, now: datetime) -> dict[Key, Cause]:
    """Everything that is the case now and worth an alert, the gravest first, ``MAX_FIRING`` at most."""
    require_scope(tenant_id)
    firing = set(_firing(tenant_id))
    found = [*_burning(tenant_id, now, firing), *_quarantined(tenant_id), *_unreachable(tenant_id)]
    found += [*_contradictions(tenant_id), *_expiring(tenant_id, now)]
    found.sort(key=lambda cause: (_ORDER.index(cause.severity), cause.key))
    if len(found) > MAX_FIRING:
        _log.warning("tenant %s has %d causes for alerts; the gravest %d are told", tenant_id, len(found), MAX_FIRING)
    return {cause.key: cause for cause in found[:MAX_FIRING]}


def _burning(tenant_id: UUID, now: datetime, firing: set[Key]) -> list[Cause]:
    found = []
    for standing in slo.standings(tenant_id, now):
        for rule in burn.RULES:
            key = ("slo_burn", "endpoint", str(standing.endpoint.id), f"{standing.objective} {rule.name}")
            if not burn.fires(rule, standing.windows, standing.share, held=key in firing):
                continue
            long, short = standing.burns[rule.long_s] or 0.0, standing.burns[rule.short_s] or 0.0
            missed = standing.windows[rule.long_s]
            what, misses = _COUNTED["ttft" if standing.objective.startswith("ttft") else "e2e"]
            text = (
                f"{missed.bad} of {missed.total} {what} of the last {_WORDS[rule.long_s]} missed {standing.objective} "
                f"({standing.target_s:g} s for {standing.share:.0%} of them): {long:.1f} times what the objective allows, "
                f"{short:.1f} times in the last {_WORDS[rule.short_s]}. {misses}"
            )
            found.append(Cause(key, rule.severity, standing.endpoint.name, text))
    return found


def _quarantined(tenant_id: UUID) -> list[Cause]:
    rows = Replica.objects.filter(tenant_id=tenant_id, isolation_state="quarantined").select_related("pool").order_by("id")
    return [
        Cause(
            ("replica_quarantined", "replica", str(row.id), ""),
            "critical",
            f"{row.pool.name}/{row.name}",
            f"It serves nobody: {row.isolation_reason or 'sharing across namespaces was seen and confirmed'}."[:1000],
        )
        for row in rows[:MAX_FIRING]
    ]


def _unreachable(tenant_id: UUID) -> list[Cause]:
    """By the finding, so that an outage is told once, and its end when reconciliation sees that the replica answers again."""
    rows = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.OPEN, kind=UNREACHABLE).order_by("first_seen_at", "id")
    return [
        Cause((UNREACHABLE, row.subject_kind, row.subject_id, ""), row.severity, row.subject, row.explanation[:1000]) for row in rows[:MAX_FIRING]
    ]


def _contradictions(tenant_id: UUID) -> list[Cause]:
    rows = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.OPEN, severity="critical").exclude(kind=UNREACHABLE)
    rows = rows.order_by("first_seen_at", "id")
    return [
        Cause(
            ("reconciliation", row.subject_kind, row.subject_id, f"{row.kind} {row.aspect}".strip()[:200]),
            "critical",
            row.subject,
            f"{reading.title(row.kind)}. {row.explanation}"[:1000],
        )
        for row in rows[:MAX_FIRING]
    ]


def _expiring(tenant_id: UUID, now: datetime) -> list[Cause]:
    rows = ApiKey.objects.filter(lasting(), tenant_id=tenant_id, revoked_at=None, expires_at__gt=now, expires_at__lte=now + EXPIRING)
    return [
        Cause(("key_expiring", "key", str(row.id), ""), "warning", row.name, f"The key {row.name} expires at {row.expires_at.isoformat()}.")
        for row in rows.order_by("expires_at", "id")[:MAX_FIRING]
        if row.expires_at is not None
    ]


def _key(row: Alert) -> Key:
    return row.kind, row.subject_kind, row.subject_id, row.aspect


def _firing(tenant_id: UUID) -> dict[Key, Alert]:
    return {_key(row): row for row in Alert.objects.filter(tenant_id=tenant_id, state="firing")}


def evaluate(tenant_id: UUID, now: datetime) -> int:
    """Count objectives, look, settle, store and queue messages; all of it or nothing. Repeats at one moment change nothing.

    Returns:
        How many alerts began or ended.
    """
    require_scope(tenant_id)
    slo.count(tenant_id, now)
    held = _firing(tenant_id)
    known = {key: Held(None if row.calm_since is None else row.calm_since.timestamp()) for key, row in held.items()}
    steps = settle(known, causes(tenant_id, now), now.timestamp())
    begun = Alert.objects.bulk_create([_begun(tenant_id, step, now) for step in steps if step.what == "fire"])
    ended = []
    for step in steps:
        row = held.get(step.key)
        if row is not None and _carried_on(row, step, now):
            ended.append(row)
    for event, rows in (("alert.firing", begun), ("alert.resolved", ended)):
        webhooks.queue(tenant_id, event, rows, now)
    if ended:
        _forget(tenant_id, now)
    return len(begun) + len(ended)


def _begun(tenant_id: UUID, step: Change, now: datetime) -> Alert:
    kind, subject_kind, subject_id, aspect = step.key
    alert = Alert(tenant_id=tenant_id, kind=kind, subject_kind=subject_kind, subject_id=subject_id, aspect=aspect, state="firing")
    alert.began_at = now
    for name, value in _said(step, now).items():
        setattr(alert, name, value)
    return alert


def _said(step: Change, now: datetime) -> dict[str, Any]:
    cause = step.cause
    if cause is None:
        return {}
    told = {"severity": cause.severity, "subject": cause.subject[:300], "explanation": cause.explanation[:1000]}
    return {**told, "last_seen_at": now, "calm_since": None}


def _carried_on(row: Alert, step: Change, now: datetime) -> bool:
    """Store what a look means for an alert that fired; whether it is over."""
    columns = _said(step, now)
    if step.what == "calm" and row.calm_since is None:
        columns = {"calm_since": now}
    elif step.what == "resolve":
        columns = {"state": "resolved", "resolved_at": now, "calm_since": row.calm_since or now}
    for name, value in columns.items():
        setattr(row, name, value)
    if columns:
        row.save(update_fields=list(columns))
    return step.what == "resolve"


def _forget(tenant_id: UUID, now: datetime) -> None:
    done = Alert.objects.filter(tenant_id=tenant_id, state="resolved")
    oldest = done.order_by("-created_at").values_list("created_at", flat=True)[MAX_RESOLVED : MAX_RESOLVED + 1].first()
    done.filter(resolved_at__lte=now - RESOLVED_FOR).delete()
    if oldest is not None:
        done.filter(created_at__lte=oldest).delete()


def sweep(*, within_s: float = SWEEP_S) -> int:
    """Do so for every tenant, as far as time allows, each in its own transaction; one tenant's mistake keeps no other back."""
    began_s, changed = time.monotonic(), 0
    refs = all_tenants()
    start = int(time.time() // 60) % len(refs) if refs else 0
    for ref in refs[start:] + refs[:start]:
        if time.monotonic() - began_s > within_s:
            _log.warning("the time for alerts was over before all tenants had their turn")
            break
        try:
            with tenant_scope(ref.tenant_id):
                changed += evaluate(ref.tenant_id, timezone.now())
        except (OperationalError, InterfaceError) as error:
            _log.warning("alerts of tenant %s were not settled (%s)", ref.slug, type(error).__name__)
        except Exception:  # noqa: BLE001 - one tenant's damaged row must not keep the others back
            _log.exception("alerts of tenant %s could not be settled", ref.slug)
    return changed


# ---- read --------------------------------------------------------------------------------------------------------------


def firing(tenant_id: UUID) -> list[Alert]:
    """What fires now, the gravest and oldest first."""
    rows = Alert.objects.filter(tenant_id=tenant_id, state="firing")
    return sorted(rows, key=lambda row: (_ORDER.index(row.severity), row.began_at, str(row.id)))
