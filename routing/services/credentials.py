"""Replicas' credentials when the root key is rotated, and whether every router is ready for it. Registered with namespaces.services."""

from __future__ import annotations

from uuid import UUID

from namespaces.core import keyring
from namespaces.services.sealed import Column, SealedValues
from routing import queries
from routing.models import Replica, ReplicaCheck

MAX_NAMED = 5
_ANY = UUID(int=0)  # reports are read whole; no tenant is asked for
# Of a tenant's own replicas, and of those that were looked at and not added yet. The tag that tells "the same again" stays: it is no root key's.
CREDENTIALS = SealedValues(
    "replica_credentials",
    Column(Replica, "credential", keyring.credential_info),
    Column(ReplicaCheck, "credential", keyring.credential_info),
)


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
