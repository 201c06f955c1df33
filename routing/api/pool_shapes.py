"""What the API takes and gives of pools, grants and replicas. A credential goes in and never comes out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from routing.core.residency_said import SURENESS
from routing.core.snapshot import EngineFamily, IsolationMode, IsolationState, ReplicaRole, ReplicaState
from routing.services.replicas import MAX_CONCURRENCY
from tenants.api.bodies import Body

Concurrency = Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENCY, description="Requests in flight; null: no limit.")]


class PoolOut(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that the tenant may use. ``owner`` is ``tenant`` (its own) or ``platform``; ``replicas`` counts them by state."""

    id: UUID
    name: str
    owner: str
    isolation: IsolationMode
    replicas: dict[str, int]
    grants: int | None


class PoolNew(Body):
    """A pool to create; ``declared`` isolation is a platform operator's to choose."""

    name: str
    isolation: IsolationMode = "audited"


class PoolChange(Body):
    """What to change of a pool; absent fields stay."""

    name: str | UnsetType = UNSET
    isolation: IsolationMode | UnsetType = UNSET


class GrantOut(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that may use a platform pool, and its part of turns and of the queue while several wait."""

    tenant_id: UUID
    tenant: str
    weight: float


class GrantNew(Body):
    """The slug of a tenant that shall use the pool. ``weight``: its part while several wait; left as it is, 1 at first."""

    tenant: str
    weight: float | None = None


class KvEventsBody(Body):
    """Where a replica publishes its KV events, on its own host."""

    endpoint: str
    replay: str | None = None
    topic: str | None = None


class ReachOut(msgspec.Struct, frozen=True, kw_only=True):
    """Whether routers reach an engine, by their newest reports, which expire within seconds."""

    unreachable: Annotated[
        bool, msgspec.Meta(description="No router that has asked it reaches it: nothing is sent there, and nobody knows what it holds.")
    ]
    away_since: Annotated[
        datetime | None, msgspec.Meta(description="Since when the router that misses it longest does so; null: none does, or it does not say.")
    ]
    why: Annotated[str, msgspec.Meta(description="What keeps it away, in words; empty: nothing does.", examples=["does not answer health checks"])]
    routers_away: Annotated[int, msgspec.Meta(description="Routers that cannot reach it.")]
    routers_asked: Annotated[int, msgspec.Meta(description="Routers that have asked it, those that cannot reach it among them.")]


class ResidencyOut(msgspec.Struct, frozen=True, kw_only=True):
    """How far routers can trust an engine's KV events, by their newest reports: what the least sure of them says."""

    state: Annotated[
        str,
        msgspec.Meta(
            description="exact: events decide. warming: they are true, and not all is known yet. degraded: some are missing, and they count half. "
            "history: they are not used. The same names as in routers' logs and metrics.",
            examples=list(SURENESS),
        ),
    ]
    reasons: Annotated[list[str], msgspec.Meta(description="Why, by the names of routers' logs. ok: nothing speaks against the events.")]
    why: Annotated[str, msgspec.Meta(description="The reasons in words; empty: none is said.")]
    since: Annotated[
        datetime | None, msgspec.Meta(description="Since when the state holds at the router where it has held longest; null: no router says.")
    ]
    event_blocks: Annotated[
        int | None, msgspec.Meta(description="Blocks that the engine's events show in its cache, as the router that knows most has them.")
    ]
    routers: Annotated[int, msgspec.Meta(description="Routers that say a state.")]


_WARMING: dict[str, Any] = {
    "state": "warming",
    "reasons": ["late_join"],
    "why": "joined late",
    "since": "2027-01-31T12:00:05Z",
    "event_blocks": 1200,
    "routers": 2,
}
_AWAY: dict[str, Any] = {
    "unreachable": True,
    "away_since": "2027-01-31T12:00:05Z",
    "why": "does not answer health checks",
    "routers_away": 2,
    "routers_asked": 2,
}


class ReplicaOut(msgspec.Struct, frozen=True, kw_only=True):
    """An engine of a pool. The credential is never shown."""

    id: UUID
    pool: str
    pool_id: UUID
    name: str
    url: str
    engine: EngineFamily
    role: Annotated[ReplicaRole, msgspec.Meta(description="Whole requests (both), or only their prefill or their decode.")]
    max_concurrency: Annotated[int | None, msgspec.Meta(description="Requests in flight that routers give it at most; null: no limit.")]
    state: Annotated[ReplicaState, msgspec.Meta(description="What people want of it; whether it can be reached is in ``reach``.")]
    reach: Annotated[
        ReachOut | None, msgspec.Meta(description="null: no router says that it has asked it, or Valkey does not answer.", examples=[_AWAY])
    ]
    residency: Annotated[
        ResidencyOut | None,
        msgspec.Meta(
            description="null: no router says, none reaches the engine (see ``reach``: what it holds is unknown then), or Valkey does not answer.",
            examples=[_WARMING],
        ),
    ]
    has_credential: bool
    kv_events: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(description="Where its KV events are, as declared; null: routers ask the engine. Whether they are in use is in ``residency``."),
    ]
    isolation: Annotated[IsolationState, msgspec.Meta(description="What audits have found of the engine.")]
    isolation_since: datetime | None
    isolation_reason: str
    verified_at: Annotated[datetime | None, msgspec.Meta(description="The last clean audit.")]
    build: str | None
    dedicated_namespace: str | None
    audit_tokens_today: Annotated[int, msgspec.Meta(description="Prompt tokens that audits made the engine compute, since 00:00 UTC.")]
    created_at: datetime


class ReplicaNew(Body):
    """An engine to register; ``pool`` is an id or name of an own pool."""

    pool: str
    name: str
    url: str
    engine: EngineFamily = "vllm"
    role: ReplicaRole = "both"
    max_concurrency: Concurrency | None = None
    kv_events: KvEventsBody | None = None
    credential: str | None = None


class ReplicaChange(Body):
    """What to change of a replica; absent fields stay. ``credential`` null takes it away."""

    name: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    engine: EngineFamily | UnsetType = UNSET
    role: ReplicaRole | UnsetType = UNSET
    max_concurrency: Concurrency | UnsetType | None = UNSET
    kv_events: KvEventsBody | UnsetType | None = UNSET
    credential: str | UnsetType | None = UNSET
