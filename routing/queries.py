"""What is read of models, pools, endpoints, policies, decisions and routers, by API, console and declarations alike. Nothing here changes a row.

Functions that take a ``tenant_id`` run inside its tenant scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec
import redis
from django.conf import settings
from django.db import connection
from django.db.models import Q, QuerySet
from redis.backoff import NoBackoff
from redis.retry import Retry

from routing.core.reach import Reach
from routing.core.record import DecisionRecord
from routing.core.residency_said import Said
from routing.models import Adapter, Artifact, DecisionRow, Endpoint, ModelSpec, Policy, PolicyVersion, Pool, PoolGrant, Quota, Replica
from tenants.core.errors import NotFound
from tenants.models import TenantRow
from tenants.queries import parse_uuid

ROUTER_PREFIX = "saltroute:router:"
VERSIONS = "saltroute:versions"
MAX_ROUTERS = 1000
READ_TIMEOUT_S = 0.3  # a page must open when Valkey does not

Row = TypeVar("Row", bound=TenantRow)


def one(rows: QuerySet[Row], reference: str, by_name: Q) -> Row:
    """A row by its id, else by its name where that is the only one. The id wins, so that a name cannot hide another object.

    Raises:
        NotFound: none, or several of this name.
    """
    reference = reference.strip("/")
    row_id = parse_uuid(reference)
    found = rows.filter(id=row_id).first() if row_id is not None else None
    if found is None and "\0" not in reference:
        named = list(rows.filter(by_name)[:2])
        found = named[0] if len(named) == 1 else None
    if found is None:
        raise NotFound
    return found


def named(reference: str) -> Q:
    """The rows of this name."""
    return Q(name=reference.strip("/"))


def quota(tenant_id: UUID, reference: str) -> Quota:
    """A quota by its id, or by the name of what it is of.

    Raises:
        NotFound: none of this tenant.
    """
    return one(Quota.objects.filter(tenant_id=tenant_id), reference, named(reference))


# ---- catalogue ---------------------------------------------------------------------------------------------------------


def artifacts(tenant_id: UUID) -> QuerySet[Artifact]:
    """Artifacts without their content."""
    return Artifact.objects.filter(tenant_id=tenant_id).defer("content")


def artifact(tenant_id: UUID, reference: str) -> Artifact:
    """An artifact by id or by the hexadecimal digits of its SHA-256."""
    digest = bytes.fromhex(reference) if len(reference) == 64 and all(c in "0123456789abcdef" for c in reference) else b""
    return one(artifacts(tenant_id), reference, Q(digest=digest))


def models(tenant_id: UUID) -> QuerySet[ModelSpec]:
    return ModelSpec.objects.filter(tenant_id=tenant_id)


def model(tenant_id: UUID, reference: str) -> ModelSpec:
    """A model by id or name."""
    return one(models(tenant_id), reference, named(reference))


def adapters(tenant_id: UUID) -> QuerySet[Adapter]:
    return Adapter.objects.filter(tenant_id=tenant_id).select_related("model")


def adapter(tenant_id: UUID, reference: str) -> Adapter:
    """An adapter by id, or by name where only one model has it."""
    return one(adapters(tenant_id), reference, named(reference))


# ---- pools -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsablePool:
    """A pool that the tenant may put endpoints on: its own, or one the platform granted it."""

    id: UUID
    grant_id: UUID
    name: str
    isolation: str
    owner_tenant_id: UUID
    own: bool
    grants: int  # tenants that may use it, the owner included; 0 where it is not the tenant's to know
    replicas: dict[str, int]  # state -> how many


def usable_pools(tenant_id: UUID) -> list[UsablePool]:
    """Own pools first, then granted ones, by name; in two queries."""
    states: dict[UUID, dict[str, int]] = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT pool_id, state, count(*) FROM saltroute_granted_replicas(%s) GROUP BY 1, 2 ORDER BY 1, 2", [tenant_id])
        for pool_id, state, count in cursor.fetchall():
            states.setdefault(pool_id, {})[state] = count
        cursor.execute("SELECT pool_id, grant_id, name, isolation, owner_tenant_id, grantees FROM saltroute_granted_pools(%s)", [tenant_id])
        rows = cursor.fetchall()
    found = [
        UsablePool(
            id=pool_id,
            grant_id=grant_id,
            name=name,
            isolation=isolation,
            owner_tenant_id=owner,
            own=owner == tenant_id,
            grants=grants if owner == tenant_id else 0,
            replicas=states.get(pool_id, {}),
        )
        for pool_id, grant_id, name, isolation, owner, grants in rows
    ]
    return sorted(found, key=lambda pool: (not pool.own, pool.name, str(pool.id)))


def usable_pool(tenant_id: UUID, reference: str) -> UsablePool:
    """A usable pool by id or name; of one name the tenant's own wins.

    Raises:
        NotFound: none.
    """
    reference = reference.strip("/")
    for pool in usable_pools(tenant_id):
        if reference in (str(pool.id), pool.name):
            return pool
    raise NotFound


def own_pools(tenant_id: UUID) -> QuerySet[Pool]:
    return Pool.objects.filter(tenant_id=tenant_id)


def own_pool(tenant_id: UUID, reference: str) -> Pool:
    """A pool of the tenant's own by id or name."""
    return one(own_pools(tenant_id), reference, named(reference))


def grant_of(tenant_id: UUID, pool_id: UUID) -> PoolGrant | None:
    """The tenant's right to use a pool, or None."""
    return PoolGrant.objects.filter(tenant_id=tenant_id, pool_id=pool_id).first()


def replicas(tenant_id: UUID) -> QuerySet[Replica]:
    """Replicas of the tenant's own pools. Those of granted pools are the platform's, and are not shown."""
    return Replica.objects.filter(tenant_id=tenant_id).select_related("pool")


def replica(tenant_id: UUID, reference: str) -> Replica:
    """A replica by id, by ``pool/name``, or by name where only one pool has it."""
    name = reference.strip("/")
    pool, _, inner = name.rpartition("/")
    by_name = Q(name=name) | Q(pool__name=pool, name=inner) if pool else Q(name=name)
    return one(replicas(tenant_id), reference, by_name)


# ---- endpoints and policies --------------------------------------------------------------------------------------------


def endpoints(tenant_id: UUID) -> QuerySet[Endpoint]:
    """Endpoints with model, adapter and policies in one query."""
    versions = ("routing_policy__policy", "slo_policy__policy", "candidate_policy__policy", "previous_policy__policy")
    related = ("grant", "model", "adapter", *versions)
    return Endpoint.objects.filter(tenant_id=tenant_id).select_related(*related)


def endpoint(tenant_id: UUID, reference: str) -> Endpoint:
    """An endpoint by id or name."""
    return one(endpoints(tenant_id), reference, named(reference))


def policies(tenant_id: UUID, kind: str) -> QuerySet[Policy]:
    return Policy.objects.filter(tenant_id=tenant_id, kind=kind)


def policy(tenant_id: UUID, kind: str, reference: str) -> Policy:
    """A policy of one kind by id or name."""
    return one(policies(tenant_id, kind), reference, named(reference))


def policy_versions(tenant_id: UUID, policy_id: UUID) -> QuerySet[PolicyVersion]:
    return PolicyVersion.objects.filter(tenant_id=tenant_id, policy_id=policy_id)


def latest_versions(tenant_id: UUID, policy_ids: list[UUID]) -> dict[UUID, PolicyVersion]:
    """The newest version of each policy, in one query."""
    rows = PolicyVersion.objects.filter(tenant_id=tenant_id, policy_id__in=policy_ids).order_by("policy_id", "-version").distinct("policy_id")
    return {row.policy_id: row for row in rows}


Audits = Literal["none", "only", "all"]  # whether a list holds probes of isolation audits
AUDITS = Q(record__has_key="audit")  # what is false is left out of a stored record; the index decision_audits is of these rows

# ---- decisions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """What a list of decisions is narrowed to."""

    endpoint_id: UUID | None = None
    key_id: UUID | None = None
    replica_id: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    slower_than_s: float | None = None
    audits: Audits = "none"


def decisions(tenant_id: UUID, wanted: DecisionFilter) -> QuerySet[DecisionRow]:
    """Decision rows without their records."""
    exact = {"endpoint_id": wanted.endpoint_id, "key_id": wanted.key_id, "replica_id": wanted.replica_id, "outcome": wanted.outcome}
    bounds = {"started_at__gte": wanted.since, "started_at__lt": wanted.until, "ttft_s__gt": wanted.slower_than_s}
    given = {name: value for name, value in {**exact, **bounds}.items() if value is not None}
    rows = DecisionRow.objects.filter(tenant_id=tenant_id, **given).defer("record")
    if wanted.audits == "none":
        return rows.exclude(AUDITS)
    return rows.filter(AUDITS) if wanted.audits == "only" else rows


def decision(tenant_id: UUID, decision_id: UUID) -> tuple[DecisionRow, DecisionRecord]:
    """A decision with its whole record. What of it may be shown is :func:`own_replica_ids`' question.

    Raises:
        NotFound: no such decision of this tenant.
    """
    row = DecisionRow.objects.filter(tenant_id=tenant_id, id=decision_id).first()
    if row is None:
        raise NotFound
    return row, record_of(row)


_RECORD_COLUMNS = (
    *("id", "tenant_id", "endpoint_id", "key_id", "scope_id", "outcome", "status", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("matched_tokens", "expected_ttft_s", "ttft_s", "e2e_s"),
)


def record_of(row: DecisionRow) -> DecisionRecord:
    """A stored record, put together again from its columns and its document."""
    columns = {name: getattr(row, name) for name in _RECORD_COLUMNS}
    columns.update(started_at=row.started_at.timestamp(), replica_id=row.replica_id or None)
    return msgspec.convert({**columns, **row.record}, DecisionRecord, strict=False)


def own_replica_ids(tenant_id: UUID) -> set[str]:
    """Ids of the replicas whose names and load the tenant may read: those of its own pools."""
    return {str(row_id) for row_id in Replica.objects.filter(tenant_id=tenant_id).values_list("id", flat=True)}


# ---- routers -----------------------------------------------------------------------------------------------------------


def valkey(timeout_s: float) -> redis.Redis:
    """A client that waits ``timeout_s`` for a connection and for each answer, and never tries twice by itself."""
    return redis.Redis.from_url(
        settings.VALKEY_URL, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0), health_check_interval=0
    )


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """One router's latest report, as far as it concerns one tenant."""

    router_id: str
    applied_version: int | None  # None: it does not know the tenant yet
    stale: bool
    report: dict[str, Any]  # everything it said; for the platform alone

    @property
    def engines(self) -> Mapping[str, Any]:
        """What it said of each engine, by normalised URL, as it sent it; nothing where that is malformed."""
        replicas = self.report.get("replicas")
        return replicas if isinstance(replicas, dict) else {}


@dataclass(frozen=True, slots=True)
class Routers:
    """Who has applied what. ``reachable`` False: Valkey did not answer, so nothing is known."""

    reachable: bool
    config_version: int
    published_version: int | None
    routers: tuple[RouterStatus, ...]

    @property
    def applied(self) -> int:
        """How many routers run the tenant's newest configuration."""
        return sum(1 for router in self.routers if (router.applied_version or 0) >= self.config_version)

    @property
    def summary(self) -> str:
        """In words, such as ``applied by 3 of 3 routers``."""
        return (
            f"applied by {self.applied} of {len(self.routers)} router{'' if len(self.routers) == 1 else 's'}"
            if self.reachable
            else "unknown: Valkey does not answer"
        )


def routers(tenant_id: UUID, config_version: int) -> Routers:
    """Read every router's report (they expire after some seconds, so a router that is gone is not counted)."""
    try:
        with valkey(READ_TIMEOUT_S) as client:
            names: list[bytes] = []
            for name in client.scan_iter(match=f"{ROUTER_PREFIX}*", count=1000):
                names.append(name)
                if len(names) == MAX_ROUTERS:
                    break
            names.sort()
            values = client.mget(names) if names else []
            published = client.hget(VERSIONS, str(tenant_id))
    except redis.RedisError:
        return Routers(reachable=False, config_version=config_version, published_version=None, routers=())
    found = [_status(name.decode(errors="replace").removeprefix(ROUTER_PREFIX), value, tenant_id) for name, value in zip(names, values, strict=True)]
    return Routers(
        reachable=True,
        config_version=config_version,
        published_version=int(published) if published is not None else None,
        routers=tuple(status for status in found if status is not None),
    )


def _status(router_id: str, value: bytes | None, tenant_id: UUID) -> RouterStatus | None:
    if value is None:
        return None
    try:
        report = msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
    versions = report.get("versions")
    applied = versions.get(str(tenant_id)) if isinstance(versions, dict) else None
    return RouterStatus(
        router_id=router_id,
        applied_version=applied if isinstance(applied, int) else None,
        stale=report.get("state") == "stale",
        report=report,
    )


def reach(found: Routers, url: str) -> Reach:
    """What routers' reports say of reaching the engine at a normalised URL."""
    heard = Reach()
    for router in found.routers:
        said = router.engines.get(url)
        if said is not None:
            heard = reach_with(heard, said if isinstance(said, dict) else {"condition": said})
    return heard


def reach_with(before: Reach, said: Mapping[str, Any]) -> Reach:
    """With what one more router reports of the engine; a malformed word or time tells nothing."""
    condition, since = said.get("condition"), moment(said.get("away_since"))
    return before.plus(condition if isinstance(condition, str) else "", None if since is None else since.timestamp())


def residency(found: Routers, url: str) -> Said:
    """What routers' reports say of how far the events of the engine at a normalised URL can be trusted."""
    heard = Said()
    for router in found.routers:
        said = router.engines.get(url)
        if isinstance(said, dict):
            heard = heard.plus(said)
    return heard


def moment(seconds: object) -> datetime | None:
    """Unix seconds that a router said; None where they are none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
