"""Which replicas may serve a request at all. The first reason that applies is the reason given; the order is part of the record's meaning."""

from __future__ import annotations

from typing import Literal, NamedTuple

from routing.core.engine import Engine
from routing.core.snapshot import IsolationMode, ReplicaEntry

ISOLATION = "isolation"
QUARANTINED = "quarantined"
MODEL_NOT_SERVED = "model_not_served"


class Condition(NamedTuple):
    """What this router knows of a replica's state, beside the snapshot."""

    reachable: bool = True
    blocked: bool = False  # its address is not allowed
    breaker_allows: bool = True
    credential_opens: bool = True
    tried: bool = False  # by this request already
    serves: bool = True  # the model or adapter asked for, as far as the engine has said


def isolates(entry: ReplicaEntry, engine: Engine, mode: IsolationMode, namespace_id: str) -> bool:
    """Whether the replica may serve the namespace without sharing a cached block with another.

    A quarantined replica serves nobody. Otherwise it serves everybody where its engine takes salts and somebody stands for them: the operator in a
    ``declared`` pool, a clean audit in an ``audited`` one. All else (``dedicated`` pools, unverified or suspect replicas of audited ones, engine
    families without salts) serves the one namespace that the control plane assigned to it.
    """
    if entry.isolation == "quarantined":
        return False
    vouched = mode == "declared" or (mode == "audited" and entry.isolation == "isolated")
    if vouched and engine.salt_field is not None:
        return True
    return entry.dedicated_namespace is not None and entry.dedicated_namespace == namespace_id


def refusal(
    entry: ReplicaEntry,
    engine: Engine,
    condition: Condition,
    *,
    mode: IsolationMode,
    family: str,
    namespace_id: str,
    part: Literal["answer", "prefill"] = "answer",
) -> str | None:
    """Why the replica may not be chosen for its ``part`` of a request, or None. To answer is to decode, whoever computed the prompt; to prefill is to
    compute it for another replica. Both ask the same of isolation, which comes last: it means that nothing else speaks against the replica.
    """
    if entry.state != "active":
        return entry.state
    if part == "answer" and entry.role == "prefill":
        return "prefill_only"
    if part == "prefill" and (entry.role != "prefill" or engine.transfer_field is None):
        return "no_prefill"
    if entry.engine != family:
        return "other_engine"
    if condition.blocked:
        return "address_not_allowed"
    if not condition.credential_opens:
        return "credential"
    if condition.tried:
        return "tried"
    if not condition.reachable:
        return "unreachable"
    if not condition.breaker_allows:
        return "breaker_open"
    if not condition.serves:
        return MODEL_NOT_SERVED
    if not isolates(entry, engine, mode, namespace_id):
        return QUARANTINED if entry.isolation == "quarantined" else ISOLATION
    return None


def refusal_of_pinned(condition: Condition) -> str | None:
    """Why a probe cannot be sent to the replica that it names. It goes there whatever the replica's state: to find that out is what it is for."""
    if not condition.credential_opens:
        return "credential"
    return "tried" if condition.tried else None
