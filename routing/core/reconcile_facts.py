"""What reconciliation compares: each router's word, and what the database says of one tenant or of the fleet. Times are unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Rank:
    """What one router believes of one data-parallel rank's cache, and why. ``reason`` is a word of the router's own."""

    rank: int
    state: str
    reason: str = ""
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineWord:
    """One router's word on one engine. Empty and None are "not said"."""

    condition: str = ""
    build: str = ""
    models: frozenset[str] = frozenset()
    block_tokens: int | None = None  # as the engine says on its metrics page
    capacity_tokens: int | None = None
    ranks: tuple[Rank, ...] = ()
    trust: str = ""  # a likely cause, where prediction and reuse contradict each other
    away_since_s: float | None = None  # since when the router cannot reach it; None: it can, or does not say
    away_for_s: float = 0.0  # by the same router's clock


@dataclass(frozen=True, slots=True, order=True)
class Mismatch:
    """Where a router's tokens of a sample of its own differ from an engine's, for one endpoint; with ``inexact``, where it has none, and why."""

    endpoint_id: UUID
    replica_id: UUID
    sample: str = ""
    position: int = 0
    inexact: str = ""


@dataclass(frozen=True, slots=True)
class RouterWord:
    """One router's report."""

    router_id: str
    at_s: float
    state: str = "ready"
    versions: Mapping[UUID, int] = field(default_factory=dict)
    refused: Mapping[UUID, str] = field(default_factory=dict)
    engines: Mapping[str, EngineWord] = field(default_factory=dict)  # by normalised URL
    artifacts: Mapping[str, str] = field(default_factory=dict)  # those not in use: hexadecimal SHA-256 and why
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The one namespace that a replica is kept for. ``void``: it serves everybody. ``dead``: why its requests cannot come again."""

    void: bool = False
    dead: str = ""
    idle_days: int | None = None  # at least so long nobody used it; None: it is used, or was not looked up


@dataclass(frozen=True, slots=True)
class ReplicaFact:
    """A replica of the tenant's own. ``*_before`` is what the last run noted."""

    id: UUID
    name: str
    pool_id: UUID
    pool: str
    url: str
    state: str
    build: str = ""
    unaudited_build: bool = False  # another build answers since, its pool is audited, and no audit has tried it
    kv_events: bool = False
    assignment: Assignment | None = None
    block_tokens_before: int | None = None
    capacity_tokens_before: int | None = None

    @property
    def label(self) -> str:
        return f"{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class EndpointFact:
    """An endpoint in service. ``urls`` are the addresses of its pool's active replicas; ``own``: the pool is the tenant's."""

    id: UUID
    name: str
    pool_id: UUID
    pool: str
    own: bool
    served_model: str
    urls: tuple[str, ...] = ()
    artifacts: tuple[tuple[str, str], ...] = ()  # (hexadecimal SHA-256, what it is)


@dataclass(frozen=True, slots=True)
class AlarmFact:
    """Alarms of the tenant's requests at one replica; ``replica`` is empty where it is the platform's."""

    endpoint_id: UUID
    endpoint: str
    replica_id: UUID
    replica: str
    count: int
    unaudited: bool
    isolated: bool  # an audit passed before the first of them


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """What the database and Valkey say of one tenant. ``published_version`` None: nothing; ``document``: the sealed document is there."""

    tenant_id: UUID
    slug: str
    config_version: int
    published_version: int | None
    document: bool = True
    replicas: tuple[ReplicaFact, ...] = ()
    endpoints: tuple[EndpointFact, ...] = ()
    alarms: tuple[AlarmFact, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What the platform knows of all tenants together. ``routers_before``: when each router was last heard."""

    urls: frozenset[str]
    tenants: frozenset[UUID]  # living and deleted ones
    deleted: Mapping[UUID, int] = field(default_factory=dict)  # the version of each tombstone
    routers_before: Mapping[str, float] = field(default_factory=dict)
