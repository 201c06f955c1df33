"""Operations on keys: asked for anywhere, done where the root key is. The row in between shows who asked, why, and how far it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from namespaces.core.keyring import Roots, root_id
from namespaces.models import OPEN_STATES, KeyOperation, OperationKind, OperationState
from namespaces.services import keys, rotation
from tenants import changes, queries
from tenants.actor import Actor
from tenants.core import names
from tenants.core.errors import Conflict, Invalid, NotFound, Unavailable
from tenants.models import PLATFORM_SLUG
from tenants.scoping import tenant_scope
from tenants.services import locks

REASON_MAX = 500  # characters
_log = logging.getLogger(__name__)
_listeners: list[Callable[[UUID, UUID], None]] = []


def subscribe(listener: Callable[[UUID, UUID], None]) -> None:
    """Call ``listener(tenant_id, operation_id)`` after each transaction that asked for an operation. It must be quick, bounded and never raise."""
    if listener not in _listeners:
        _listeners.append(listener)


def request_root_rotation(*, tenant_id: UUID, actor: Actor, reason: str) -> KeyOperation:
    """Ask that everything be moved to the root key that this process seals to. ``tenant_id`` is the platform's.

    The caller has checked that the actor may. Safe to repeat: while one is open, that one is returned.

    Raises:
        Invalid: no reason, or not the platform's tenant.
        Unavailable: this process holds no public half of a root key.
    """
    checked = names.label(reason, field="reason", maximum=REASON_MAX)
    if locks.tenant(tenant_id).slug != PLATFORM_SLUG:
        raise Invalid("The root key is the platform's.")
    if settings.SEAL_PUBLIC_KEY is None:
        raise Unavailable("This process holds no public half of a root key, so it cannot say which one to rotate to.")
    return _request(tenant_id, actor, OperationKind.ROTATE_ROOT, checked, root_id=root_id(settings.SEAL_PUBLIC_KEY))


def request_tenant_rotation(*, tenant_id: UUID, actor: Actor, reason: str) -> KeyOperation:
    """Ask for a new key of the tenant: every namespace gets a new name at once, and everything it has cached becomes unreachable.

    Safe to repeat: while one is open, that one is returned.

    Raises:
        NotFound: the tenant is deleted.
        Invalid: no reason.
        Conflict: it has no key yet.
    """
    checked = names.label(reason, field="reason", maximum=REASON_MAX)
    locks.tenant(tenant_id)
    held = keys.material(tenant_id)
    if held is None:
        raise Conflict("This tenant has no key yet.")
    return _request(tenant_id, actor, OperationKind.ROTATE_TENANT, checked, from_version=held.version)


def _request(tenant_id: UUID, actor: Actor, kind: OperationKind, reason: str, *, root_id: str = "", from_version: int | None = None) -> KeyOperation:
    mine = KeyOperation.objects.filter(tenant_id=tenant_id, kind=kind.value, state__in=OPEN_STATES).first()
    if mine is not None:
        return mine
    row = KeyOperation.objects.create(
        tenant_id=tenant_id,
        kind=kind.value,
        reason=reason,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_label=actor.label,
        peer_address=actor.peer_address,
        root_id=root_id,
        from_version=from_version,
    )
    changes.record(
        tenant_id=tenant_id, actor=actor, action="key_operation.request", object_id=row.id, object_label=row.kind, reason=reason, publishes=False
    )
    for listener in _listeners:
        transaction.on_commit(partial(listener, tenant_id, row.id))
    return row


def listed(tenant_id: UUID) -> QuerySet[KeyOperation]:
    """The tenant's operations."""
    return KeyOperation.objects.filter(tenant_id=tenant_id)


def find(tenant_id: UUID, reference: str) -> KeyOperation:
    """One operation by its id.

    Raises:
        NotFound: none in this tenant.
    """
    wanted = queries.parse_uuid(reference)
    row = None if wanted is None else listed(tenant_id).filter(id=wanted).first()
    if row is None:
        raise NotFound
    return row


def perform(*, tenant_id: UUID, operation_id: UUID, roots: Roots, go_on: Callable[[], bool]) -> bool:
    """Do an operation, or go on with it, while ``go_on()``; True when it is over. Only where the root key is. Safe to repeat.

    Raises:
        NotFound: no such operation.
    """
    with tenant_scope(tenant_id):
        row = KeyOperation.objects.filter(tenant_id=tenant_id, id=operation_id).first()
    if row is None:
        raise NotFound
    if row.kind == OperationKind.ROTATE_ROOT.value:
        return rotation.advance(tenant_id, operation_id, roots, go_on=go_on)
    _rotate_tenant(tenant_id, operation_id, roots)
    return True


def _rotate_tenant(tenant_id: UUID, operation_id: UUID, roots: Roots) -> None:
    """One transaction: the new key, and the operation's end."""
    with tenant_scope(tenant_id):
        row = KeyOperation.objects.select_for_update().get(tenant_id=tenant_id, id=operation_id)
        if row.state not in OPEN_STATES:
            return
        now = timezone.now()
        row.started_at = row.advanced_at = now
        try:
            row.to_version = keys.rotate(
                tenant_id=tenant_id,
                actor=rotation.actor_of(row),
                root=roots.current,
                from_version=row.from_version or 0,
                reason=row.reason,
                now=now,
            )
        except (Conflict, NotFound) as refusal:  # deleted since; both are raised before anything was written
            rotation.finish(row, OperationState.FAILED, now, problem=refusal.message)
        else:
            row.tenants_total = row.tenants_done = 1
            rotation.finish(row, OperationState.DONE, now)
        row.save()


def perform_open(*, roots: Roots, go_on: Callable[[], bool]) -> int:
    """Do every open operation of every tenant: what lost its wake-up, or a worker that was killed. Returns how many were open."""
    found = 0
    for ref in queries.all_tenants(deleted=True):
        with tenant_scope(ref.tenant_id):
            waiting = list(listed(ref.tenant_id).filter(state__in=OPEN_STATES).order_by("created_at").values_list("id", flat=True))
        for operation_id in waiting:
            found += 1
            perform(tenant_id=ref.tenant_id, operation_id=operation_id, roots=roots, go_on=go_on)
        if not go_on():
            _log.info("operations on keys go on in the next sweep")
            break
    return found
