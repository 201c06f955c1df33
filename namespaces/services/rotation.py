"""Rotating the root key: every tenant key is wrapped again and every sealed value sealed again, tenant by tenant; no salt changes.

    check     the control plane seals to the new root, and every router accepts it; until then the operation waits and says for what
    rewrap    one transaction for each tenant: its keys, its sealed values, its published version, and the position of the operation
    verify    look at every tenant again without writing; what still lies under an old root (a process that sealed to it meanwhile) means another pass

A worker killed anywhere loses the transaction it was in and nothing else. Two workers at once take turns at the operation's row.
Meanwhile routers accept both roots: the old one can go when the operation is done and every router has the versions that followed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from django.utils import timezone

from namespaces.core.keyring import NONCE_BYTES, KeyringError, Roots
from namespaces.models import KeyOperation, OperationState, TenantKeyVersion
from namespaces.services import sealed
from namespaces.services.sealed import Moved
from tenants import changes, queries
from tenants.actor import Actor
from tenants.models import PLATFORM_SLUG, Tenant
from tenants.scoping import tenant_scope

REWRAP = "rewrap"
VERIFY = "verify"
MAX_PASSES = 5
_checks: list[Callable[[str], str]] = []


def require(check: Callable[[str], str]) -> None:
    """Ask ``check(root_id)`` before a rotation begins: a text that says what it must wait for, or "". Bounded, and never raises."""
    if check not in _checks:
        _checks.append(check)


def advance(platform_id: UUID, operation_id: UUID, roots: Roots, *, go_on: Callable[[], bool]) -> bool:
    """Work on a rotation while ``go_on()``; True when nothing is left to do. Safe to repeat, to kill and to run twice at once."""
    if not _begin(platform_id, operation_id, roots):
        return False
    while True:
        tenants, position = _tenants(platform_id), _position(platform_id, operation_id)
        for tenant_id in tenants:
            if _passed(position, tenant_id, platform_id):
                continue  # known without a transaction; what another worker passes meanwhile is seen inside
            if not go_on():
                return False
            if not _one(platform_id, operation_id, tenant_id, roots):
                return True
        if _end_of_phase(platform_id, operation_id, last=tenants[-1]):
            return True


def _begin(platform_id: UUID, operation_id: UUID, roots: Roots) -> bool:
    """Start the operation if it waits and nothing speaks against it."""
    with tenant_scope(platform_id):
        row = KeyOperation.objects.select_for_update().get(tenant_id=platform_id, id=operation_id)
        problem = _problem(row.root_id, roots) if row.state == OperationState.REQUESTED.value else ""
        if problem or row.state in (OperationState.DONE.value, OperationState.FAILED.value):
            row.problem = problem or row.problem
            row.save(update_fields=["problem"])
            return not problem
        if row.state == OperationState.RUNNING.value:
            return True
        row.state, row.problem, row.started_at = OperationState.RUNNING.value, "", timezone.now()
        row.counts = {"keys": 0, "sealed": 0, "unreadable": 0, "left": 0}
        _phase(row, REWRAP)
        row.save()
        return True


def _problem(root_id: str, roots: Roots) -> str:
    if roots.ids[0] != root_id:
        return f"waiting: the control plane seals to root {root_id}, and the current root of this worker is {roots.ids[0]}"
    return next((problem for check in _checks if (problem := check(root_id))), "")


def _phase(row: KeyOperation, phase: str) -> None:
    row.phase, row.position, row.tenants_done, row.tenants_total = phase, None, 0, len(queries.all_tenants(deleted=True))
    row.counts = {**row.counts, "left": 0}
    row.passes += phase == REWRAP


def _tenants(platform_id: UUID) -> list[UUID]:
    """Every tenant, deleted ones too: their tombstones are sealed as well. The platform comes first, since others' snapshots hold its replicas."""
    refs = queries.all_tenants(deleted=True)
    return sorted((ref.tenant_id for ref in refs), key=lambda tenant_id: (tenant_id != platform_id, tenant_id.bytes))


def _position(platform_id: UUID, operation_id: UUID) -> UUID | None:
    with tenant_scope(platform_id):
        return KeyOperation.objects.values_list("position", flat=True).get(tenant_id=platform_id, id=operation_id)


def _passed(position: UUID | None, tenant_id: UUID, platform_id: UUID) -> bool:
    if position is None:
        return False
    return (tenant_id != platform_id, tenant_id.bytes) <= (position != platform_id, position.bytes)


def _one(platform_id: UUID, operation_id: UUID, tenant_id: UUID, roots: Roots) -> bool:
    """Do one tenant, unless it is done, and move the position past it in the same transaction. False: the operation is over for this worker."""
    with tenant_scope(platform_id):
        row = KeyOperation.objects.select_for_update().get(tenant_id=platform_id, id=operation_id)
        if row.state != OperationState.RUNNING.value or roots.ids[0] != row.root_id:  # a worker may be restarted with other roots in the middle
            return False
        if _passed(row.position, tenant_id, platform_id):
            return True
        with tenant_scope(tenant_id):
            moved = _rewrap(tenant_id, row, roots) if row.phase == REWRAP else {"left": _left(tenant_id, roots)}
        row.counts = {name: row.counts.get(name, 0) + moved.get(name, 0) for name in {*row.counts, *moved}}
        row.position, row.tenants_done, row.advanced_at = tenant_id, row.tenants_done + 1, timezone.now()
        row.save(update_fields=["counts", "position", "tenants_done", "advanced_at"])
        return True


def _rewrap(tenant_id: UUID, row: KeyOperation, roots: Roots) -> dict[str, int]:
    tenant = Tenant.objects.select_for_update().get(id=tenant_id)  # before its rows, as every change of the tenant does
    keys = _rewrap_keys(tenant_id, roots)
    kinds = [kind.reseal(tenant_id, roots) for kind in sealed.kinds()]
    others = Moved(sum(one.moved for one in kinds), sum(one.unreadable for one in kinds))
    unreadable = keys.unreadable + others.unreadable
    changes.record(
        tenant_id=tenant_id,
        actor=actor_of(row),
        action="tenant_key.rewrap",
        object_id=tenant_id,
        object_label=tenant.slug,
        after={"root": row.root_id, "keys": keys.moved, "sealed": others.moved, "unreadable": unreadable},
        reason=row.reason,
    )
    return {"keys": keys.moved, "sealed": others.moved, "unreadable": unreadable}


def _rewrap_keys(tenant_id: UUID, roots: Roots) -> Moved:
    moved = unreadable = 0
    for key in TenantKeyVersion.objects.select_for_update().filter(tenant_id=tenant_id):
        try:
            fresh = roots.rewrap(tenant_id, key.version, bytes(key.wrapped), secrets.token_bytes(NONCE_BYTES))
        except KeyringError:
            unreadable += 1
            continue
        if fresh is not None:
            key.wrapped = fresh
            key.save(update_fields=["wrapped"])
            moved += 1
    return Moved(moved, unreadable)


def _left(tenant_id: UUID, roots: Roots) -> int:
    found = sum(kind.left(tenant_id, roots) for kind in sealed.kinds())
    for key in TenantKeyVersion.objects.filter(tenant_id=tenant_id):
        try:
            found += roots.rewrap(tenant_id, key.version, bytes(key.wrapped), bytes(NONCE_BYTES)) is not None  # the result is thrown away
        except KeyringError:
            continue  # counted as unreadable when it was tried
    return found


def _end_of_phase(platform_id: UUID, operation_id: UUID, *, last: UUID) -> bool:
    """After the last tenant: verify, begin another pass, or finish. True when the operation is over."""
    with tenant_scope(platform_id):
        row = KeyOperation.objects.select_for_update().get(tenant_id=platform_id, id=operation_id)
        if row.state != OperationState.RUNNING.value:
            return True
        if not _passed(row.position, last, platform_id):
            return False  # another worker has begun the next phase already
        if row.phase == REWRAP:
            _phase(row, VERIFY)
        elif row.counts.get("left") and row.passes >= MAX_PASSES:
            finish(row, OperationState.FAILED, timezone.now(), problem="values keep appearing under an old root: a process still seals to it")
        elif row.counts.get("left"):
            _phase(row, REWRAP)
        else:
            finish(row, OperationState.DONE, timezone.now())
        row.save()
        return row.state != OperationState.RUNNING.value


def finish(row: KeyOperation, state: OperationState, now: datetime, *, problem: str = "") -> None:
    """End an operation and write it to the audit log of its tenant; the caller saves the row."""
    row.state, row.problem, row.finished_at = state.value, problem, now
    changes.record(
        tenant_id=row.tenant_id,
        actor=actor_of(row),
        action=f"key_operation.{state.value}",
        object_id=row.id,
        object_label=row.kind,
        after={"root": row.root_id, **row.counts} if row.root_id else {"version": row.to_version},
        reason=row.reason,
        publishes=False,
    )


def actor_of(row: KeyOperation) -> Actor:
    """Who asked for an operation: the worker acts in their name."""
    return Actor(kind=row.actor_kind, label=row.actor_label, id=row.actor_id, peer_address=row.peer_address)  # type: ignore[arg-type]  # stored from an Actor


def platform_id() -> UUID | None:
    """The platform's tenant, if it was ever made."""
    return queries.tenant_id_of(PLATFORM_SLUG)
