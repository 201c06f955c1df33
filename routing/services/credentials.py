"""Replicas' credentials when the root key is rotated, and whether every router is ready for it. Registered with namespaces.services."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from django.db.models import QuerySet

from namespaces.core import keyring
from namespaces.core.keyring import KeyringError, Roots
from namespaces.services.sealed import Moved
from routing import queries
from routing.models import Replica, ReplicaCheck

MAX_NAMED = 5
_Row = TypeVar("_Row", Replica, ReplicaCheck)
_ANY = UUID(int=0)  # reports are read whole; no tenant is asked for


class ReplicaCredentials:
    """The sealed credentials of a tenant's own replicas, and of those that were looked at and not added yet."""

    name = "replica_credentials"

    def reseal(self, tenant_id: UUID, roots: Roots) -> Moved:
        """Seal to the current root what is sealed to another. The tag that tells "the same again" stays: it is no root key's."""
        moved = unreadable = 0
        rows: list[Replica | ReplicaCheck] = [
            *_held(Replica, tenant_id).select_for_update(),
            *_held(ReplicaCheck, tenant_id).select_for_update(),
        ]
        for row in rows:
            try:
                fresh = roots.reseal(bytes(row.credential or b""), info=keyring.credential_info(tenant_id, row.id))
            except KeyringError:
                unreadable += 1
                continue
            if fresh is not None:
                row.credential = fresh
                row.save(update_fields=["credential"])
                moved += 1
        return Moved(moved, unreadable)

    def left(self, tenant_id: UUID, roots: Roots) -> int:
        """How many are sealed to a root that is not the current one."""
        found = 0
        rows: list[Replica | ReplicaCheck] = [*_held(Replica, tenant_id), *_held(ReplicaCheck, tenant_id)]
        for row in rows:
            try:
                found += roots.reseal(bytes(row.credential or b""), info=keyring.credential_info(tenant_id, row.id)) is not None
            except KeyringError:
                continue
        return found


def _held(kind: type[_Row], tenant_id: UUID) -> QuerySet[_Row]:
    return kind._default_manager.filter(tenant_id=tenant_id, credential__isnull=False)


def routers_ready(root_id: str) -> str:
    """What a rotation to this root must wait for: a router that does not accept it yet would refuse every snapshot sealed to it. "" is nothing."""
    seen = queries.routers(_ANY, 0)
    if not seen.reachable:
        return "waiting: Valkey does not answer, so nobody knows which root keys the routers accept"
    behind = sorted(router.router_id for router in seen.routers if root_id not in (router.report.get("roots") or ()))
    if not behind:
        return ""
    more = "" if len(behind) <= MAX_NAMED else f" and {len(behind) - MAX_NAMED} more"
    return f"waiting: {', '.join(behind[:MAX_NAMED])}{more} must first be restarted with root {root_id} in SALTROUTE_ROOT"
