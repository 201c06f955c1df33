"""The configuration as one immutable picture: what a request sees from its first line to its last, whatever is published meanwhile."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from namespaces.core.salts import Namespace, derive
from routing.core import subject
from routing.core.engine import Engine
from routing.core.engines import ENGINES
from routing.core.policy import PolicyError, RoutingPolicy, SloPolicy, compile_routing, compile_slo
from routing.core.snapshot import CaptureEntry, EndpointEntry, PoolEntry, QuotaEntry, ReplicaEntry, SnapshotError, TenantSnapshot
from routing.dataplane.keys import Keys, TenantKey
from tenants.core.snapshot import KeyEntry, ScopeEntry

MAX_NAMESPACES = 4096  # derived names kept for each tenant and snapshot; deriving again costs 30 us


@dataclass(slots=True)
class Lookups:
    """How often a cache knew the answer, and how often not."""

    hits: int = 0
    misses: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as one tenant's snapshot describes it. ``entry.url`` names the physical engine behind it."""

    entry: ReplicaEntry
    engine: Engine
    credential: str | None = field(repr=False)
    credential_opens: bool

    @property
    def url(self) -> str:
        return self.entry.url


@dataclass(frozen=True, slots=True)
class Capture:
    """A trace capture that runs, and its opened key (32 bytes)."""

    entry: CaptureEntry
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndpointView:
    """A model name that clients send, compiled."""

    entry: EndpointEntry
    pool: PoolEntry
    replicas: tuple[ReplicaView, ...]
    policy: RoutingPolicy
    slo: SloPolicy | None
    candidate: RoutingPolicy | None = None  # on trial
    spill: EndpointView | None = None  # the same endpoint on the pool that it spills to
    capture: Capture | None = None  # of its traffic; None: nothing is captured

    @property
    def reaches(self) -> tuple[ReplicaView, ...]:
        """Every replica that may serve it, those it spills to included."""
        return self.replicas if self.spill is None else self.replicas + self.spill.replicas


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant's snapshot, compiled: keys opened, policies compiled, look-up tables built."""

    snapshot: TenantSnapshot
    key: TenantKey | None = field(repr=False)
    endpoints: Mapping[str, EndpointView]
    scopes: Mapping[str, ScopeEntry]  # by path
    scope_paths: Mapping[UUID, str]
    namespaces: OrderedDict[tuple[object, ...], Namespace] = field(repr=False)  # a cache; the same question has one answer in one snapshot
    quotas: Mapping[tuple[str, str], QuotaEntry] = field(default_factory=dict)  # by (of, name)

    def namespace(
        self,
        endpoint: EndpointEntry,
        *,
        scope_path: str,
        key_id: UUID,
        context: Mapping[str, str],
        subdivision: str | None,
        lookups: Lookups | None = None,
    ) -> Namespace:
        """The names under which this request's blocks are cached. ``lookups`` counts whether they were known.

        Raises:
            ValueError: the tenant has no key that opens, or no identity can be built. The request must be refused: nothing leaves without a salt.
        """
        if self.key is None:
            raise ValueError("tenant key is missing")
        question = (endpoint.id, scope_path, key_id, tuple(sorted(context.items())), subdivision)  # all that a name is made of, within one snapshot
        known = self.namespaces.get(question)
        if lookups is not None and endpoint.sharing != "none":
            lookups.hits += known is not None
            lookups.misses += known is None
        if known is not None:
            return known
        levels = subject.scope_levels("" if endpoint.sharing == "tenant" else scope_path, self.scopes)
        built = subject.build(
            tenant=self.snapshot,
            endpoint=endpoint,
            levels=levels,
            key_id=key_id,
            request_context=context,
            client_subdivision=subdivision,
            request_nonce=os.urandom(16),
        )
        made = derive(self.key, built)
        if built.request_nonce is None:
            self.namespaces[question] = made
            if len(self.namespaces) > MAX_NAMESPACES:
                self.namespaces.popitem(last=False)
        return made


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key opens."""

    tenant: TenantView
    key: KeyEntry


@dataclass(frozen=True, slots=True)
class PlaneView:
    """All tenants at one moment. A digest that two tenants claim opens nothing: two owners of one secret are a mistake, not a choice of ours."""

    tenants: Mapping[UUID, TenantView]
    keys: Mapping[bytes, Grant]

    def with_tenants(self, changed: Iterable[TenantView]) -> PlaneView:
        """A new view with some tenants replaced."""
        tenants = {**self.tenants, **{tenant.snapshot.tenant_id: tenant for tenant in changed}}
        keys: dict[bytes, Grant] = {}
        claimed_twice: set[bytes] = set()
        for tenant in tenants.values():
            if tenant.snapshot.deleted:
                continue
            for key in tenant.snapshot.keys:
                if key.digest in keys:
                    claimed_twice.add(key.digest)
                keys[key.digest] = Grant(tenant=tenant, key=key)
        for digest in claimed_twice:
            del keys[digest]
        return PlaneView(tenants=tenants, keys=keys)

    def assigned(self) -> set[str]:
        """The namespaces to which the control plane gave a replica."""
        return {
            replica.entry.dedicated_namespace
            for tenant in self.tenants.values()
            for endpoint in tenant.endpoints.values()
            for replica in endpoint.reaches
            if replica.entry.dedicated_namespace is not None
        }

    def reach(self) -> tuple[dict[str, ReplicaView], dict[str, frozenset[UUID]]]:
        """Every physical engine that a tenant in service can reach, by URL, and the ids of the endpoints that reach it."""
        replicas: dict[str, ReplicaView] = {}
        used_by: dict[str, set[UUID]] = {}
        for tenant in self.tenants.values():
            for endpoint in () if tenant.snapshot.deleted else tenant.endpoints.values():
                for replica in endpoint.reaches:
                    known = replicas.get(replica.url)
                    if known is None or known.entry.kv_events is None:  # where one of its rows declares its events, that one speaks for it
                        replicas[replica.url] = replica
                    used_by.setdefault(replica.url, set()).add(endpoint.entry.id)
        return replicas, {url: frozenset(ids) for url, ids in used_by.items()}


EMPTY = PlaneView(tenants={}, keys={})


def compile_tenant(snapshot: TenantSnapshot, keys: Keys) -> TenantView:
    """Turn a verified snapshot into what requests read.

    Raises:
        SnapshotError: a policy does not compile, or an endpoint names a pool that is not there; the last good snapshot stays.
    """
    pools = {pool.id: pool for pool in snapshot.pools}
    opened: dict[UUID, tuple[ReplicaView, ...]] = {}
    for pool in snapshot.pools:
        opened[pool.id] = tuple(_replica(pool, entry, keys) for entry in pool.replicas)
    endpoints: dict[str, EndpointView] = {}
    key = keys.open_tenant_key(snapshot.tenant_id, snapshot.key_material)
    for entry in snapshot.endpoints:
        if entry.pool_id not in pools:
            raise SnapshotError("an endpoint names a pool that the document lacks")
        try:
            policy = compile_routing(entry.routing_policy.spec)
            slo = None if entry.slo is None else compile_slo(entry.slo.spec)
            candidate = None if entry.candidate_policy is None else compile_routing(entry.candidate_policy.spec)
        except PolicyError as error:
            raise SnapshotError(f"a policy does not compile: {error.field}") from None
        home = EndpointView(
            entry=entry,
            pool=pools[entry.pool_id],
            replicas=opened[entry.pool_id],
            policy=policy,
            slo=slo,
            candidate=candidate,
            capture=_capture(entry.capture, key, keys),
        )
        spill = pools.get(entry.spill_pool_id) if entry.spill_pool_id not in (None, entry.pool_id) else None
        if slo is not None and slo.overload == "spill" and spill is not None:
            home = replace(home, spill=replace(home, pool=spill, replicas=opened[spill.id]))
        endpoints[entry.name] = home
    return TenantView(
        snapshot=snapshot,
        key=key,
        endpoints=endpoints,
        scopes={scope.path: scope for scope in snapshot.scopes},
        scope_paths={scope.id: scope.path for scope in snapshot.scopes},
        namespaces=OrderedDict(),
        quotas={(entry.of, entry.name): entry for entry in snapshot.quotas},
    )


def _capture(entry: CaptureEntry | None, key: TenantKey | None, keys: Keys) -> Capture | None:
    own = None if entry is None or key is None else keys.capture_key(key, entry.id, entry.seed)
    return None if entry is None or own is None else Capture(entry=entry, key=own)


def _replica(pool: PoolEntry, entry: ReplicaEntry, keys: Keys) -> ReplicaView:
    credential = None if entry.credential is None else keys.open_credential(pool.owner_tenant_id, entry.id, entry.credential)
    return ReplicaView(
        entry=entry,
        engine=ENGINES[entry.engine],
        credential=credential,
        credential_opens=entry.credential is None or credential is not None,
    )
