"""The isolation state of engines: the one place that changes it, and tells every tenant's routers.

The state belongs to the physical engine. All rows of one address are the owner's (no address can be registered by two tenants), so they change
together, in the owner's scope; the versions of the owner and of every tenant that uses one of the pools rise, and their audit logs say so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from namespaces.audit.states import Event, Held, State, step
from routing.core.engines import ENGINES
from routing.models import Endpoint, Pool, Replica
from routing.services import endpoints, pools, support
from tenants import changes, scoping
from tenants.actor import Actor, system
from tenants.core import names
from tenants.core.errors import Conflict
from tenants.services import locks

_NAMESPACE = re.compile(r"ns-[0-9a-f]{32}")
RESTART_S = 0.5  # start times closer than this are one start, read twice


@dataclass(frozen=True, slots=True)
class Seen:
    """What an observation changed."""

    build: bool = False
    generation: bool = False


def twins(tenant_id: UUID, replica_id: UUID) -> list[Replica]:
    """All rows of the engine behind ``replica_id``, locked, itself first. In the owner's scope.

    Raises:
        NotFound: no such replica of this tenant.
    """
    first = support.locked(Replica, tenant_id=tenant_id, row_id=replica_id)
    others = Replica.objects.select_for_update().filter(tenant_id=tenant_id, url=first.url).exclude(id=first.id).order_by("id")
    return [first, *others]


def apply(*, tenant_id: UUID, actor: Actor, replica_id: UUID, event: Event, now: datetime, reason: str = "", build: str | None = None) -> State:
    """Let ``event`` act on the engine behind ``replica_id``; ``tenant_id`` owns it. Returns the state it is in then. A repeat changes nothing more.

    ``build`` is the one that the event was observed on: an audit of a build that is gone says nothing of the one that runs, unless it saw sharing.

    Raises:
        NotFound: no such replica of this tenant.
    """
    locks.tenant(tenant_id)
    rows = twins(tenant_id, replica_id)
    first = rows[0]
    if build and first.build and build != first.build and event is not Event.SHARING:
        return State(first.isolation_state)
    before = held(first)
    after = step(before, event, now_s=now.timestamp(), reason=reason[:300])
    if after != before:
        _keep(rows, after)
    if after.state is not before.state:
        _tell(rows, before.state, after, actor)
    return after.state


def held(row: Replica) -> Held:
    """A row as the state machine knows it."""
    return Held(
        state=State(row.isolation_state),
        since_s=_seconds(row.isolation_since) or 0.0,
        reason=row.isolation_reason,
        verified_s=_seconds(row.isolation_verified_at),
        repaired_s=_seconds(row.isolation_repaired_at),
        clean_s=_seconds(row.isolation_clean_at),
    )


def _keep(rows: Sequence[Replica], now_held: Held) -> None:
    columns: dict[str, Any] = {
        "isolation_state": now_held.state.value,
        "isolation_since": _moment(now_held.since_s),
        "isolation_reason": now_held.reason,
        "isolation_verified_at": _moment(now_held.verified_s),
        "isolation_repaired_at": _moment(now_held.repaired_s),
        "isolation_clean_at": _moment(now_held.clean_s),
    }
    if now_held.state is State.ISOLATED:
        columns["dedicated_namespace"] = None  # it serves everybody; the next suspicion asks anew for whom
    for row in rows:
        kept = dict(columns)
        if row.pool.isolation == "dedicated" or ENGINES[row.engine].salt_field is None:
            kept.pop("dedicated_namespace", None)  # a proven engine serves one namespace there all the same
        for name, value in kept.items():
            setattr(row, name, value)
        row.save(update_fields=list(kept))


def _tell(rows: Sequence[Replica], before: State, after: Held, actor: Actor) -> None:
    """Raise the versions and write the audit logs; the publisher does the rest when the transaction ends."""
    for row in rows:
        pool = row.pool
        fact = {"isolation": after.state.value, "build": row.build}
        changes.record(
            tenant_id=row.tenant_id,
            actor=actor,
            action="replica.isolation",
            object_id=row.id,
            object_label=f"{pool.name}/{row.name}",
            before={"isolation": before.value},
            after=fact,
            reason=after.reason,
        )
        for grantee in pools.grantees(pool):
            with scoping.tenant_scope(grantee):
                changes.record(
                    tenant_id=grantee,
                    actor=system("platform"),
                    action="granted_pool.isolation",
                    object_id=pool.id,
                    object_label=pool.name,
                    before={"isolation": before.value},
                    after=fact,
                )


# ---- observations ----------------------------------------------------------------------------------------------------------


def observe(*, tenant_id: UUID, replica_id: UUID, build: str, started_at: float | None, now: datetime) -> Seen:
    """Note what routers saw of an engine. Another build makes it unverified; another start empties its cache, so a namespace without a salt of its
    own may be assigned anew. Safe to repeat.

    Raises:
        NotFound: no such replica of this tenant.
    """
    locks.tenant(tenant_id)
    rows = twins(tenant_id, replica_id)
    first = rows[0]
    seen = Seen(
        build=bool(build) and bool(first.build) and build != first.build,
        generation=started_at is not None and first.engine_started_at is not None and abs(started_at - first.engine_started_at) > RESTART_S,
    )
    freed = [row for row in rows if seen.generation and row.dedicated_namespace is not None]
    for row in rows:
        row.build = build or row.build
        row.engine_started_at = first.engine_started_at if started_at is None else started_at
        if row in freed:
            row.dedicated_namespace = None
        row.save(update_fields=["build", "engine_started_at", "dedicated_namespace"])
    for row in freed:
        _noted(row, system("isolation"), reason="the engine was restarted: its cache is empty")
    if seen.build:
        apply(tenant_id=tenant_id, actor=system("isolation"), replica_id=replica_id, event=Event.BUILD, now=now, reason="another build answers here")
    return seen


def assign(*, tenant_id: UUID, replica_id: UUID, namespace: str, now: datetime) -> bool:
    """Give the engine the one namespace that it may serve, where it has none and serves one only. True: it was given now.

    An engine that stands in several pools has one cache: all its rows that serve a single namespace serve the same one, whoever asked at which.

    Raises:
        NotFound: no such replica of this tenant.
    """
    del now
    if not _NAMESPACE.fullmatch(namespace):
        return False
    locks.tenant(tenant_id)
    rows = twins(tenant_id, replica_id)
    if rows[0].dedicated_namespace is not None or not serves_one(rows[0]):
        return False
    held_already = next((row.dedicated_namespace for row in rows if row.dedicated_namespace is not None and serves_one(row)), None)
    given = held_already or namespace
    for row in rows:
        if row.dedicated_namespace is None and serves_one(row):
            _serve(row, given, system("isolation"))
    return True


def _serve(row: Replica, namespace: str | None, actor: Actor, *, reason: str = "") -> None:
    """Let the replica serve this one namespace, or none that was assigned to it."""
    row.dedicated_namespace = namespace
    row.save(update_fields=["dedicated_namespace"])
    _noted(row, actor, reason=reason)


def _noted(row: Replica, actor: Actor, *, reason: str) -> None:
    given = row.dedicated_namespace
    pools.record(
        row.pool,
        actor=actor,
        action="replica.release" if given is None else "replica.assign",
        object_id=row.id,
        object_label=f"{row.pool.name}/{row.name}",
        after=None if given is None else {"namespace": given},
        reason=reason,
    )


def release(*, tenant_id: UUID, replica_id: UUID) -> bool:
    """Take an assigned namespace away where it has no effect: the engine serves everybody there. True: it was there. Safe to repeat.

    Raises:
        NotFound: no such replica of this tenant.
    """
    locks.tenant(tenant_id)
    rows = [row for row in twins(tenant_id, replica_id) if row.dedicated_namespace is not None]
    freed = [row for row in rows if row.isolation_state != State.QUARANTINED and not serves_one(row)]
    for row in freed:
        _serve(row, None, system("reconciliation"), reason="the replica serves every namespace")
    return bool(freed)


def serves_one(row: Replica) -> bool:
    """Whether the replica may serve a single namespace, to be assigned."""
    if row.isolation_state == State.QUARANTINED:
        return False
    if row.pool.isolation == "dedicated" or ENGINES[row.engine].salt_field is None:
        return True
    return row.pool.isolation == "audited" and row.isolation_state in (State.UNVERIFIED, State.SUSPECT)


def repaired(*, tenant_id: UUID, actor: Actor, replica_id: UUID, reason: str, flushed: bool, now: datetime) -> State:
    """The owner says that a quarantined engine is fixed. It must have been restarted since (as routers saw), or its cache flushed by hand, for which
    ``flushed`` is the owner's word. The epochs of every endpoint on its pools rise; then two clean audits, ten minutes apart, lead out.

    Raises:
        NotFound: no such replica of this tenant.
        Conflict: it is not quarantined, or nothing shows that its cache was emptied.
        Invalid: no reason.
    """
    names.label(reason, field="reason", maximum=500)
    locks.tenant(tenant_id)
    rows = twins(tenant_id, replica_id)
    first = rows[0]
    if first.isolation_state != State.QUARANTINED:
        raise Conflict("This replica is not in quarantine.")
    since_s = _seconds(first.isolation_since) or 0.0
    if not flushed and (first.engine_started_at or 0.0) <= since_s:
        raise Conflict("No router has seen this engine restart since. Restart it, or flush its cache and say so with flushed.")
    for pool in {row.pool_id: row.pool for row in rows}.values():
        _raise_epochs(pool, actor=actor, reason=f"quarantine ends: {reason}")
    state = apply(tenant_id=tenant_id, actor=actor, replica_id=replica_id, event=Event.REPAIRED, now=now, reason=reason)
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="replica.repaired",
        object_id=first.id,
        object_label=f"{first.pool.name}/{first.name}",
        after={"flushed": flushed},
        reason=reason,
        publishes=False,
    )
    return state


def _raise_epochs(pool: Pool, *, actor: Actor, reason: str) -> None:
    """Whatever the engine had cached from any namespace is unreachable from now on."""
    owner = pool.tenant_id
    for endpoint in Endpoint.objects.filter(tenant_id=owner, grant__pool_id=pool.id):
        endpoints.rotate_epoch(tenant_id=owner, actor=actor, endpoint_id=endpoint.id, reason=reason[:500])
    for grantee in pools.grantees(pool):
        with scoping.tenant_scope(grantee):
            for endpoint in Endpoint.objects.filter(tenant_id=grantee, grant__pool_id=pool.id):
                endpoints.rotate_epoch(tenant_id=grantee, actor=system("platform"), endpoint_id=endpoint.id, reason="quarantine ends")


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _moment(seconds: float | None) -> datetime | None:
    return None if not seconds else datetime.fromtimestamp(seconds, tz=UTC)
