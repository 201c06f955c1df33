"""What the database and Valkey say of one tenant, as the pure comparison takes it: in its scope, in a handful of queries however much it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import redis
from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models import Count, Max, Min

from namespaces.audit.states import State as Isolation
from routing import queries
from routing.core.reconcile_facts import AlarmFact, Assignment, EndpointFact, EngineWord, FleetFacts, ReplicaFact, RouterWord, TenantFacts
from routing.models import AuditRun, DecisionRow, Endpoint, Replica
from routing.services import isolation
from routing.services.audits import targets
from routing.services.publishing import SNAPSHOT_PREFIX
from routing.services.reconciliation.reports import Heard
from tenants.core.errors import NotFound
from tenants.models import Tenant
from tenants.queries import all_tenants, parse_uuid
from tenants.scoping import require_scope, tenant_scope

MAX_REPLICAS = 20_000
MAX_ENDPOINTS = 5000
MAX_ALARMS = 50  # pairs of endpoint and replica in one run
ALARMS_WITHIN = timedelta(hours=1)
QUERY_MS = 2000  # for a look into the decisions; what takes longer is not known this time
ROUTER_KEPT_S = 3600.0  # a router not heard for so long was removed


@dataclass(frozen=True, slots=True)
class Noted:
    """What a run leaves for the next: sizes by replica id, namespaces that replicas are kept for, routers by when they were heard."""

    sizes: Mapping[str, tuple[int | None, int | None]]  # block and cache size in tokens
    assignments: Mapping[str, tuple[str, Assignment]]  # by replica id: the namespace, and what was found of it
    assignments_at_s: float = 0.0
    routers: Mapping[str, float] | None = None

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Noted:
        """From a run's row."""
        found = kept.get("assignments", {})
        return cls(
            sizes={key: (value[0], value[1]) for key, value in kept.get("sizes", {}).items()},
            assignments={key: (name, Assignment(dead=dead, idle_days=idle)) for key, (name, dead, idle) in found.items()},
            assignments_at_s=kept.get("assignments_at", 0.0),
            routers=kept.get("routers", {}),
        )

    def kept(self) -> dict[str, Any]:
        """For a run's row."""
        return {
            "sizes": {key: list(value) for key, value in self.sizes.items()},
            "assignments": {key: [name, one.dead, one.idle_days] for key, (name, one) in self.assignments.items()},
            "assignments_at": self.assignments_at_s,
            "routers": dict(self.routers or {}),
        }


@contextmanager
def bounded(milliseconds: int = QUERY_MS) -> Iterator[None]:
    """Whatever is asked inside ends in time.

    Raises:
        OperationalError: it did not; :func:`ran_out` tells.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(milliseconds)])
        yield
        cursor.execute("SET LOCAL statement_timeout TO DEFAULT")


def ran_out(error: OperationalError) -> bool:
    """Whether the time of :func:`bounded` was over."""
    return getattr(error.__cause__, "sqlstate", None) == "57014"  # query_canceled


def replicas(tenant_id: UUID) -> list[Replica]:
    """The tenant's own replicas, without secrets."""
    rows = Replica.objects.filter(tenant_id=tenant_id).select_related("pool").defer("credential", "credential_tag")
    return list(rows.order_by("pool__name", "name", "id")[:MAX_REPLICAS])


def of_tenant(tenant_id: UUID, rows: list[Replica], noted: Noted, heard: Heard, now: datetime) -> TenantFacts:
    """Everything :func:`routing.core.reconcile.of_tenant` compares with."""
    require_scope(tenant_id)
    tenant = Tenant.objects.get(id=tenant_id)
    published = (heard.published or {}).get(str(tenant_id))
    if not heard.reachable:  # nothing was looked up, so nothing is said of it
        published = tenant.config_version
    return TenantFacts(
        tenant_id=tenant_id,
        slug=tenant.slug,
        config_version=tenant.config_version,
        published_version=published,
        document=not heard.reachable or _has_document(tenant_id),
        replicas=tuple(_replica(row, noted) for row in rows),
        endpoints=tuple(_endpoints(tenant_id)),
        alarms=tuple(_alarms(tenant_id, now)),
    )


def _has_document(tenant_id: UUID) -> bool:
    try:
        with queries.valkey(settings.PUBLISH_TIMEOUT_S) as client:
            return bool(client.exists(f"{SNAPSHOT_PREFIX}{tenant_id}"))
    except redis.RedisError:
        return True  # not known to be gone


def _replica(row: Replica, noted: Noted) -> ReplicaFact:
    block_tokens, capacity_tokens = noted.sizes.get(str(row.id), (None, None))
    since = row.isolation_since
    unaudited = row.isolation_state == Isolation.UNVERIFIED and since is not None and (row.audit_at is None or row.audit_at < since)
    return ReplicaFact(
        id=row.id,
        name=row.name,
        pool_id=row.pool_id,
        pool=row.pool.name,
        url=row.url,
        state=row.state,
        build=row.build,
        unaudited_build=bool(row.build) and unaudited and row.pool.isolation == "audited" and row.state != "paused",
        kv_events=bool(row.kv_events),
        assignment=_assignment(row, noted),
        block_tokens_before=block_tokens,
        capacity_tokens_before=capacity_tokens,
    )


def _assignment(row: Replica, noted: Noted) -> Assignment | None:
    if row.dedicated_namespace is None or row.isolation_state == Isolation.QUARANTINED:
        return None
    if not isolation.serves_one(row):
        return Assignment(void=True)
    name, found = noted.assignments.get(str(row.id), ("", Assignment()))
    return found if name == row.dedicated_namespace else Assignment()


def _endpoints(tenant_id: UUID) -> Iterator[EndpointFact]:
    """Endpoints in service, with the addresses that their requests may go to."""
    addresses: dict[tuple[UUID, str], list[str]] = {}
    owners: dict[UUID, tuple[str, bool]] = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT pool_id, engine, url FROM saltroute_granted_replicas(%s) WHERE state <> 'paused'", [tenant_id])
        for pool_id, engine, url in cursor.fetchall():
            addresses.setdefault((pool_id, engine), []).append(url)
        cursor.execute("SELECT pool_id, name, owner_tenant_id FROM saltroute_granted_pools(%s)", [tenant_id])
        for pool_id, name, owner_id in cursor.fetchall():
            owners[pool_id] = name, owner_id == tenant_id
    rows = Endpoint.objects.filter(tenant_id=tenant_id, enabled=True).select_related("grant", "model").order_by("name", "id")
    for row in rows[:MAX_ENDPOINTS]:
        pool_id = row.grant.pool_id
        name, own = owners.get(pool_id, ("", False))
        yield endpoint(row, pool=name, own=own, urls=tuple(addresses.get((pool_id, row.engine), ())))


def endpoint(row: Endpoint, *, pool: str, own: bool, urls: tuple[str, ...] = ()) -> EndpointFact:
    """One endpoint; ``pool`` is the name of its pool, ``urls`` are its engines' where their word is asked."""
    held = (("tokenizer", row.model.tokenizer_digest), ("chat template", row.model.chat_template_digest))
    return EndpointFact(
        id=row.id,
        name=row.name,
        pool_id=row.grant.pool_id,
        pool=pool,
        own=own,
        served_model=row.served_model,
        urls=urls,
        artifacts=tuple((bytes(digest).hex(), what) for what, digest in held if digest is not None),
    )


def _alarms(tenant_id: UUID, now: datetime) -> Iterator[AlarmFact]:
    """Alarms of the last hour, and whether an audit of that replica was begun since."""
    rows = DecisionRow.objects.filter(tenant_id=tenant_id, started_at__gte=now - ALARMS_WITHIN, record__alarm__isnull=False)
    grouped = rows.exclude(replica_id="").exclude(endpoint_id=None).values("endpoint_id", "replica_id")
    try:
        with bounded():
            said = grouped.annotate(count=Count("id"), first=Min("started_at"), last=Max("started_at")).order_by("endpoint_id", "replica_id")
            found = list(said[:MAX_ALARMS])
    except OperationalError as error:
        if not ran_out(error):
            raise
        return
    for one in found:
        replica_id, endpoint_id = parse_uuid(one["replica_id"]), one["endpoint_id"]
        if replica_id is None or endpoint_id is None:
            continue
        try:
            target = targets.again(tenant_id, endpoint_id, replica_id)
        except NotFound:
            continue  # gone, or out of service
        with tenant_scope(target.owner_id):
            row = Replica.objects.filter(tenant_id=target.owner_id, id=replica_id).defer("credential").first()
        if row is None:
            continue
        waiting = AuditRun.objects.filter(tenant_id=tenant_id, replica_id=replica_id, state__in=("queued", "running")).exists()
        verified = row.isolation_verified_at
        yield AlarmFact(
            endpoint_id=endpoint_id,
            endpoint=target.endpoint_name,
            replica_id=replica_id,
            replica=f"{target.pool_name}/{target.replica_name}" if target.replica_name else "",
            count=one["count"],
            unaudited=not waiting and (row.audit_at is None or row.audit_at < one["last"]),
            isolated=row.isolation_state == Isolation.ISOLATED and verified is not None and verified < one["last"],
        )


# ---- what is left for the next run -----------------------------------------------------------------------------------------


def note_sizes(noted: Noted, rows: list[Replica], routers: tuple[RouterWord, ...]) -> Noted:
    """The sizes that routers agree on now; what nobody speaks of stays as it was noted."""
    sizes: dict[str, tuple[int | None, int | None]] = {}
    for row in rows:
        words = [router.engines[row.url] for router in routers if row.url in router.engines]
        before = noted.sizes.get(str(row.id), (None, None))
        now = _agreed(words, "block_tokens") or before[0], _agreed(words, "capacity_tokens") or before[1]
        if now != (None, None):
            sizes[str(row.id)] = now
    return replace(noted, sizes=sizes)


def _agreed(words: list[EngineWord], name: str) -> int | None:
    said = {size for word in words if (size := getattr(word, name)) is not None}
    return said.pop() if len(said) == 1 else None


def of_fleet(noted: Noted, heard: Heard, now_s: float) -> tuple[FleetFacts, Noted]:
    """What all tenants have together, for the platform, and the routers that are remembered."""
    refs = all_tenants(deleted=True)
    urls: set[str] = set()
    for ref in refs:
        if not ref.deleted:
            with tenant_scope(ref.tenant_id):
                urls.update(Replica.objects.filter(tenant_id=ref.tenant_id).values_list("url", flat=True))
    remembered = {name: min(at_s, now_s) for name, at_s in (noted.routers or {}).items() if now_s - at_s < ROUTER_KEPT_S}
    facts = FleetFacts(
        urls=frozenset(urls),
        tenants=frozenset(ref.tenant_id for ref in refs),
        deleted={ref.tenant_id: ref.config_version for ref in refs if ref.deleted},
        routers_before=remembered,
    )
    return facts, replace(noted, routers=remembered | {router.router_id: now_s for router in heard.routers})
