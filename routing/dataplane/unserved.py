"""Namespaces that were refused for lack of a replica of their own: what the router tells the control plane, which alone assigns.

Bounded: by replica, by tenant at a replica (so that one tenant's namespaces never crowd out another's), and in time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

MAX_NAMESPACES = 8  # reported for each replica
MAX_FOR_TENANT = 4  # of them
MAX_REPLICAS = 4096
KEPT_S = 30.0


@dataclass(slots=True)
class _Wish:
    tenant_id: UUID
    since_s: float  # monotonic
    until_s: float


@dataclass(slots=True)
class Unserved:
    """By replica and public namespace id, oldest first."""

    wishes: dict[UUID, dict[str, _Wish]] = field(default_factory=dict)

    def note(self, replica_id: UUID, tenant_id: UUID, namespace: str, now_s: float) -> None:
        """A request of the namespace was refused for want of this replica."""
        if replica_id not in self.wishes and len(self.wishes) >= MAX_REPLICAS:
            return
        held = self.wishes.setdefault(replica_id, {})
        known = held.get(namespace)
        if known is not None:
            known.until_s = now_s + KEPT_S
            return
        for name in [name for name, wish in held.items() if wish.until_s <= now_s]:
            del held[name]
        if sum(wish.tenant_id == tenant_id for wish in held.values()) < MAX_FOR_TENANT:
            held[namespace] = _Wish(tenant_id=tenant_id, since_s=now_s, until_s=now_s + KEPT_S)

    def report(self, now_s: float) -> dict[str, list[str]]:
        """Replica id to namespaces, oldest first, at most ``MAX_NAMESPACES`` each; every tenant's oldest before anybody's second."""
        for replica_id, held in list(self.wishes.items()):
            self._keep(replica_id, {name: wish for name, wish in held.items() if now_s < wish.until_s})
        return {str(replica_id): _fairly(held) for replica_id, held in sorted(self.wishes.items())}

    def served(self, namespaces: Collection[str]) -> None:
        """These have a replica now."""
        for replica_id, held in list(self.wishes.items()):
            self._keep(replica_id, {name: wish for name, wish in held.items() if name not in namespaces})

    def _keep(self, replica_id: UUID, held: dict[str, _Wish]) -> None:
        if held:
            self.wishes[replica_id] = held
        else:
            self.wishes.pop(replica_id, None)


def _fairly(held: dict[str, _Wish]) -> list[str]:
    turns: dict[UUID, int] = {}
    order: list[tuple[int, float, str]] = []
    for name, wish in sorted(held.items(), key=lambda item: (item[1].since_s, item[0])):
        turns[wish.tenant_id] = turns.get(wish.tenant_id, -1) + 1
        order.append((turns[wish.tenant_id], wish.since_s, name))
    return [name for _, _, name in sorted(order)][:MAX_NAMESPACES]
