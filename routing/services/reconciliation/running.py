"""One tenant's run, and the sweep over all tenants.

A run looks, holds what it found against what is kept, and stores that in one transaction; only then does it repair, step by step. Killed at any point
it leaves whole rows: either nothing of the run is stored, or its findings are, each with the repair that was asked for, which comes up again later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import redis
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from routing import queries
from routing.core import reconcile
from routing.core.findings import KINDS, SEVERITIES, Finding, Held, Key, State, Step, settle
from routing.models import ReconciliationFinding, ReconciliationRun
from routing.services import pools
from routing.services.reconciliation import facts, memory, orders, repairs, reports
from routing.services.reconciliation.facts import Noted
from routing.services.reconciliation.reports import Heard
from tenants.queries import TenantRef, all_tenants
from tenants.scoping import tenant_scope

VALKEY_S = 0.5
MAX_FINDINGS = 500  # of one tenant in one run, the gravest first
MAX_REPAIRS = 20
REPAIRING_S = 30.0
SWEEP_S = 45.0
HEARD_S = 3.0  # routers' reports are read again when they are older: tenants change meanwhile
CURSOR = "saltroute:reconcile:cursor"
CURSOR_EX_S = 3600
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, and the findings that are open then, the gravest first."""

    run: ReconciliationRun
    findings: tuple[ReconciliationFinding, ...]


def run(tenant_id: UUID, *, trigger: str, by: str = "", run_id: UUID | None = None, heard: Heard | None = None) -> Ended | None:
    """Reconcile one tenant now. None: another run has it, or the run asked for is done."""
    with tenant_scope(tenant_id):
        begun = orders.begin(tenant_id=tenant_id, trigger=trigger, now=timezone.now(), run_id=run_id, by=by)
    if begun is None:
        return None
    began_s = time.monotonic()
    try:
        heard = heard or reports.read(VALKEY_S)
        steps = _compared(begun, heard, timezone.now())
        _repaired(begun, steps, lambda: time.monotonic() - began_s < REPAIRING_S)
    except BaseException as error:
        _broke_off(begun, type(error).__name__)
        raise
    begun.took_s = time.monotonic() - began_s
    with tenant_scope(tenant_id):
        return Ended(orders.close(begun, now=timezone.now()), open_findings(tenant_id))


def _broke_off(begun: ReconciliationRun, reason: str) -> None:
    try:
        with tenant_scope(begun.tenant_id):
            orders.fail(begun, reason=f"broke off ({reason})", now=timezone.now())
    except (OperationalError, InterfaceError):
        _log.warning("run %s broke off and could not say so", begun.id)


def open_findings(tenant_id: UUID) -> tuple[ReconciliationFinding, ...]:
    """The gravest first, in the tenant's scope."""
    rows = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.OPEN)
    return tuple(sorted(rows, key=lambda row: (SEVERITIES.index(row.severity), row.first_seen_at, row.kind, row.subject)))


# ---- compare ---------------------------------------------------------------------------------------------------------------


def _compared(begun: ReconciliationRun, heard: Heard, now: datetime) -> tuple[Step, ...]:
    """Look, settle and store; all or nothing."""
    tenant_id = begun.tenant_id
    with tenant_scope(tenant_id):
        last = ReconciliationRun.objects.filter(tenant_id=tenant_id).exclude(observed={}).order_by("-started_at").first()
        noted = Noted.read(last.observed if last else {})
        found, noted = _found(tenant_id, heard, noted, now)
        found = sorted(found, key=lambda one: (SEVERITIES.index(KINDS[one.kind].severity), one))
        begun.dropped = max(0, len(found) - MAX_FINDINGS)
        rows = {_key(row): row for row in ReconciliationFinding.objects.filter(tenant_id=tenant_id).exclude(state=State.RESOLVED)}
        held = {key: _held(row) for key, row in rows.items()}
        steps = settle(held, found[:MAX_FINDINGS], now.timestamp(), unread=heard.unread, repairs=MAX_REPAIRS)
        _store(tenant_id, rows, steps, now)
        begun.routers = len(heard.routers) if heard.reachable else None
        begun.watching = sum(step.after is not None and step.after.state is State.WATCHING for step in steps)
        begun.open = ReconciliationFinding.objects.filter(tenant_id=tenant_id, state=State.OPEN).count()
        begun.opened = sum(_opened(step, held) for step in steps)
        begun.resolved = sum(step.after is not None and step.after.state is State.RESOLVED for step in steps)
        begun.repairs = sum(step.repair is not None for step in steps)
        begun.observed = noted.kept()
        begun.save()
        ReconciliationRun.objects.filter(tenant_id=tenant_id).exclude(id=begun.id).exclude(observed={}).update(observed={})
    return steps


def _found(tenant_id: UUID, heard: Heard, noted: Noted, now: datetime) -> tuple[list[Finding], Noted]:
    rows = facts.replicas(tenant_id)
    noted = memory.look(tenant_id, rows, noted, now)
    found = list(reconcile.of_tenant(facts.of_tenant(tenant_id, rows, noted, heard, now), heard.routers))
    noted = facts.note_sizes(noted, rows, heard.routers)
    if heard.reachable and pools.is_platform(tenant_id):
        fleet, noted = facts.of_fleet(noted, heard, now.timestamp())
        found += reconcile.of_fleet(fleet, heard.routers)
    return found, noted


def _opened(step: Step, held: Mapping[Key, Held]) -> bool:
    before = held.get(step.key)
    return step.after is not None and step.after.state is State.OPEN and (before is None or before.state is not State.OPEN)


def _key(row: ReconciliationFinding) -> Key:
    return row.kind, row.subject_kind, row.subject_id, row.aspect


def _held(row: ReconciliationFinding) -> Held:
    repaired_s = None if row.repaired_at is None else row.repaired_at.timestamp()
    return Held(State(row.state), row.first_seen_at.timestamp(), row.last_seen_at.timestamp(), row.mark, row.repairs, repaired_s)


def _store(tenant_id: UUID, rows: Mapping[Key, ReconciliationFinding], steps: Sequence[Step], now: datetime) -> None:
    new, kept, gone = [], [], []
    for step in steps:
        row = rows.get(step.key)
        if step.after is None:
            if row is not None:
                gone.append(row.id)
        elif row is None:
            new.append(ReconciliationFinding(tenant_id=tenant_id, **_columns(step, step.after, now)))
        else:
            for name, value in _columns(step, step.after, now).items():
                setattr(row, name, value)
            kept.append(row)
    ReconciliationFinding.objects.filter(tenant_id=tenant_id, id__in=gone).delete()
    ReconciliationFinding.objects.bulk_create(new)
    fields = ["severity", "state", "subject", "explanation", "mark", "first_seen_at", "last_seen_at", "resolved_at", "repairs", "repaired_at"]
    ReconciliationFinding.objects.bulk_update(kept, fields, batch_size=200)


def _columns(step: Step, after: Held, now: datetime) -> dict[str, Any]:
    kind, subject_kind, subject_id, aspect = step.key
    columns: dict[str, Any] = {
        "kind": kind,
        "subject_kind": subject_kind,
        "subject_id": subject_id,
        "aspect": aspect,
        "state": after.state.value,
        "mark": after.mark[:200],
        "first_seen_at": _moment(after.first_seen_s),
        "last_seen_at": _moment(after.last_seen_s),
        "resolved_at": now if after.state is State.RESOLVED else None,
        "repairs": after.repairs,
        "repaired_at": None if after.repaired_s is None else _moment(after.repaired_s),
    }
    if step.finding is not None:
        said = {"severity": KINDS[kind].severity, "subject": step.finding.subject[:300], "explanation": step.finding.explanation[:1000]}
        columns |= said
    return columns


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


# ---- repair ----------------------------------------------------------------------------------------------------------------


def _repaired(begun: ReconciliationRun, steps: Sequence[Step], go_on: Callable[[], bool]) -> None:
    """Carry out what was asked for, each in a transaction of its own, and note what came of it."""
    tenant_id = begun.tenant_id
    for step in steps:
        if step.repair is None or step.finding is None:
            continue
        if go_on():
            done = repairs.carry_out(step.repair, repairs.Job(tenant_id, step.finding, timezone.now()))
        else:
            done = "left for later: this run's time was over"
        kind, subject_kind, subject_id, aspect = step.key
        with tenant_scope(tenant_id):
            rows = ReconciliationFinding.objects.filter(tenant_id=tenant_id, kind=kind, subject_kind=subject_kind, subject_id=subject_id)
            rows.filter(aspect=aspect).exclude(state=State.RESOLVED).update(done=done[:300])


# ---- sweep -----------------------------------------------------------------------------------------------------------------


def sweep(*, within_s: float = SWEEP_S) -> list[Ended]:
    """Reconcile every tenant, as far as time allows; the next sweep begins where this one ended. One tenant's mistake keeps no other back."""
    began_s, ended = time.monotonic(), []
    heard, heard_s = reports.read(VALKEY_S), began_s
    for ref in _turn(all_tenants(), _cursor()):
        now_s = time.monotonic()
        if now_s - heard_s > HEARD_S:
            heard, heard_s = reports.read(VALKEY_S), now_s
        if now_s - began_s > within_s:
            _put_cursor(ref)
            _log.warning("the time for reconciling was over; the next run goes on with tenant %s", ref.slug)
            break
        try:
            one = run(ref.tenant_id, trigger="beat", heard=heard)
        except (OperationalError, InterfaceError):
            raise
        except Exception:  # noqa: BLE001 - one tenant's damaged row must not keep the others back
            _log.exception("tenant %s could not be reconciled", ref.slug)
            continue
        if one is not None:
            ended.append(one)
    return ended


def _turn(refs: list[TenantRef], first: str) -> list[TenantRef]:
    """All tenants, beginning with ``first`` if it is among them."""
    place = next((number for number, ref in enumerate(refs) if str(ref.tenant_id) == first), 0)
    return refs[place:] + refs[:place]


def _cursor() -> str:
    try:
        with queries.valkey(VALKEY_S) as client:
            return (client.getdel(CURSOR) or b"").decode()
    except (redis.RedisError, UnicodeDecodeError):
        return ""


def _put_cursor(ref: TenantRef) -> None:
    try:
        with queries.valkey(VALKEY_S) as client:
            client.set(CURSOR, str(ref.tenant_id), ex=CURSOR_EX_S)
    except redis.RedisError:
        pass  # the next sweep begins at the beginning
