"""Who is doing something: passed to every service by hand, written to the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from tenants.core.roles import Permission


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, a control token, or the system itself (a command or a task).

    ``permissions`` is what a person or token may do in the tenant they act in, asked again when a change is recorded; None for the system, and for
    a person who acts on their own account.
    """

    kind: Literal["user", "token", "system"]
    label: str
    id: UUID | None = None
    peer_address: str = ""
    permissions: frozenset[Permission] | None = None


def system(label: str, *, peer_address: str = "") -> Actor:
    """An actor for commands and tasks, such as ``apply``; ``peer_address`` where they tell of somebody unknown."""
    return Actor(kind="system", label=label, peer_address=peer_address)
