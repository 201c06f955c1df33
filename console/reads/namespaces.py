"""Cache namespaces as requests left them: which there were, what each is made of, what ended it, and what its requests found in caches.

The control plane cannot derive a namespace's id (it holds no tenant key), so all that leads to one is the decisions that name it. Each question reads
the newest :data:`MAX_DECISIONS` of :data:`WINDOW` at most, for no longer than :data:`TIMEOUT_MS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from console.reads import decisions, endpoints
from console.reads.endpoints import Part
from console.reads.traffic import FAILED
from namespaces.models import TenantKeyVersion
from routing import queries
from routing.models import AuditRun, DecisionRow, Endpoint, Replica
from routing.services import counting, identity_events
from tenants.core.errors import NotFound
from tenants.models import AuditEntry, Scope, Tenant

WINDOW = timedelta(days=7)
MAX_DECISIONS = 100_000
TIMEOUT_MS = 3000
LIST_ROWS = 100
MAX_WAYS = 20
MAX_REPLICAS = 50
EVENT_ROWS = 20
AUDIT_ROWS = 5
MAX_BEFORE = 200  # characters

Way = identity_events.Way


@dataclass(frozen=True, slots=True)
class Reuse:
    """Requests and what came of them. Token counts are over requests whose engine reported; times are None without a streamed answer."""

    requests: int
    failed: int
    first_at: datetime
    last_at: datetime
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    prompt_tokens: int
    matched_tokens: int
    cached_tokens: int
    last_cached: int | None  # of the last request
    last_prompt: int | None

    @property
    def predicted_share(self) -> float | None:
        return min(1.0, self.matched_tokens / self.prompt_tokens) if self.prompt_tokens else None

    @property
    def cached_share(self) -> float | None:
        return min(1.0, self.cached_tokens / self.prompt_tokens) if self.prompt_tokens else None

    @property
    def failed_share(self) -> float:
        return self.failed / self.requests


@dataclass(frozen=True, slots=True)
class Listed:
    """One namespace of the list; ``endpoints`` and ``scopes`` are ids, most namespaces have one of each."""

    id: str
    endpoints: tuple[UUID, ...]
    scopes: tuple[UUID, ...]
    reuse: Reuse


@dataclass(frozen=True, slots=True)
class Through:
    """Requests of the namespace through one endpoint under one scope. ``events`` changed the identity of such requests, newest first."""

    endpoint_id: UUID | None
    endpoint: Endpoint | None  # None: it was deleted
    scope_path: str | None  # None: it was deleted, or the request had none
    reuse: Reuse
    events: tuple[AuditEntry, ...]

    @property
    def ended_by(self) -> AuditEntry | None:
        """The first event since the last request: from then on such requests had another namespace."""
        later = [one for one in self.events if one.created_at > self.reuse.last_at]
        return later[-1] if later else None

    @property
    def lives(self) -> bool:
        """Whether such a request comes here again, as far as endpoint and scope decide it."""
        shared = self.endpoint is not None and self.endpoint.sharing != "none"
        return shared and self.scope_path is not None and self.ended_by is None


@dataclass(frozen=True, slots=True)
class At:
    """What the namespace's requests found at one replica. ``replica`` is None for the replicas of granted pools, which are summed up."""

    replica: Replica | None
    reuse: Reuse


@dataclass(frozen=True, slots=True)
class Seen:
    """One namespace. ``since`` is where looking back ended; the newest of ``ways`` come first."""

    since: datetime
    reuse: Reuse
    ways: tuple[Through, ...]
    key_ids: tuple[UUID, ...]
    replicas: tuple[At, ...]

    @property
    def events(self) -> list[AuditEntry]:
        """Of all ways together, newest first."""
        known = {one.id: one for way in self.ways for one in way.events}
        return sorted(known.values(), key=lambda one: (one.created_at, one.id), reverse=True)[:EVENT_ROWS]

    @property
    def lives(self) -> bool:
        return any(way.lives for way in self.ways)


def looked_back(tenant_id: UUID, now: datetime) -> datetime:
    """The begin of what is read: ``WINDOW`` ago, or just after the decision beyond the newest ``MAX_DECISIONS``. By the index alone."""
    recent = DecisionRow.objects.filter(tenant_id=tenant_id, started_at__gte=now - WINDOW).order_by("-started_at")
    beyond = recent.values_list("started_at", flat=True)[MAX_DECISIONS : MAX_DECISIONS + 1].first()
    return now - WINDOW if beyond is None else beyond + timedelta(microseconds=1)


def listed(tenant_id: UUID, *, now: datetime, endpoint_id: UUID | None = None) -> tuple[datetime, tuple[Listed, ...] | None]:
    """Since when, and the ``LIST_ROWS`` namespaces with the newest requests, audits' own left out; None: it took too long to count."""
    since = looked_back(tenant_id, now)
    rows = counting.rows_within(_LIST, [tenant_id, since, endpoint_id, endpoint_id, list(FAILED), LIST_ROWS], timeout_ms=TIMEOUT_MS)
    if rows is None:
        return since, None
    return since, tuple(Listed(name, tuple(through or ()), tuple(scopes or ()), _reuse(rest)) for name, through, scopes, *rest in rows)


def found(tenant_id: UUID, namespace: str, *, now: datetime) -> Seen | None:
    """One namespace by its public id, inside the tenant's scope; None: it took too long to count.

    Raises:
        NotFound: no request of this tenant had it within what is read.
    """
    since = looked_back(tenant_id, now)
    rows = counting.rows_within(_ONE, [tenant_id, since, namespace, list(FAILED)], timeout_ms=TIMEOUT_MS)
    if rows is None:
        return None
    parts: dict[int, list[tuple[tuple[Any, ...], Reuse]]] = {}
    for mask, endpoint_id, scope_id, key_id, replica_id, *rest in rows:
        if rest[0]:
            parts.setdefault(mask, []).append(((endpoint_id, scope_id, key_id, replica_id), _reuse(rest)))
    if _WHOLE not in parts:
        raise NotFound
    by_way = sorted(parts.get(_BY_WAY, ()), key=lambda part: part[1].last_at, reverse=True)[:MAX_WAYS]
    return Seen(
        since=since,
        reuse=parts[_WHOLE][0][1],
        ways=_ways(tenant_id, [((ids[0], ids[1]), reuse) for ids, reuse in by_way]),
        key_ids=tuple(ids[2] for ids, _ in parts.get(_BY_KEY, ()) if ids[2] is not None),
        replicas=_replicas(tenant_id, [(ids[3], reuse) for ids, reuse in parts.get(_BY_REPLICA, ()) if ids[3]]),
    )


def _ways(tenant_id: UUID, parts: Sequence[tuple[tuple[UUID | None, UUID | None], Reuse]]) -> tuple[Through, ...]:
    rows = {row.id: row for row in queries.endpoints(tenant_id).filter(id__in=[endpoint_id for (endpoint_id, _), _ in parts])}
    scopes = dict(Scope.objects.filter(tenant_id=tenant_id, id__in=[scope_id for (_, scope_id), _ in parts]).values_list("id", "path"))
    reached = identity_events.reaching(tenant_id, [(endpoint_id, scope_id) for (endpoint_id, scope_id), _ in parts if endpoint_id is not None])
    return tuple(
        Through(
            endpoint_id=endpoint_id,
            endpoint=rows.get(endpoint_id) if endpoint_id else None,
            scope_path=scopes.get(scope_id) if scope_id else None,
            reuse=reuse,
            events=tuple(reached[endpoint_id, scope_id]) if endpoint_id else (),
        )
        for (endpoint_id, scope_id), reuse in parts
    )


def _replicas(tenant_id: UUID, parts: Sequence[tuple[str, Reuse]]) -> tuple[At, ...]:
    """Own ones by name; the rest in one sum, since which of the platform's replicas served is the platform's to know."""
    ids = [one for replica_id, _ in parts if (one := decisions.as_uuid(replica_id)) is not None]
    own = {str(row.id): row for row in queries.replicas(tenant_id).defer("credential").filter(id__in=ids)}
    named = [At(own[replica_id], reuse) for replica_id, reuse in parts if replica_id in own]
    named.sort(key=lambda one: one.reuse.last_at, reverse=True)
    others = [reuse for replica_id, reuse in parts if replica_id not in own]
    return (*named[:MAX_REPLICAS], *([At(None, _summed(others))] if others else []))


def _summed(parts: Sequence[Reuse]) -> Reuse:
    """Together; quantiles cannot be added and are left out."""
    last = max(parts, key=lambda one: one.last_at)
    return Reuse(
        requests=sum(one.requests for one in parts),
        failed=sum(one.failed for one in parts),
        first_at=min(one.first_at for one in parts),
        last_at=last.last_at,
        ttft_p50_s=None,
        ttft_p95_s=None,
        prompt_tokens=sum(one.prompt_tokens for one in parts),
        matched_tokens=sum(one.matched_tokens for one in parts),
        cached_tokens=sum(one.cached_tokens for one in parts),
        last_cached=last.last_cached,
        last_prompt=last.last_prompt,
    )


@dataclass(frozen=True, slots=True)
class Component:
    """A component of an identity as it is now. ``event`` made it so, ``since`` says when; without one it is as its endpoint was made. ``ended``: that
    was after the namespace's last request, which had ``before`` (empty: the audit log does not say)."""

    part: Part
    since: datetime | None
    event: AuditEntry | None = None
    ended: bool = False
    before: str = ""


def components(tenant_id: UUID, way: Through, *, tenant_slug: str, key_names: Sequence[str]) -> list[Component]:
    """What requests by one way are named after, in encoding order, and first the tenant's key. Empty where the endpoint was deleted."""
    endpoint = way.endpoint
    if endpoint is None:
        return []
    tenant = Tenant.objects.only("epoch").get(id=tenant_id)
    given = {} if way.scope_path is None else {"scope": _scope_words(tenant_id, "" if endpoint.sharing == "tenant" else way.scope_path)}
    if len(key_names) == 1:
        given["key"] = key_names[0]
    found = []
    key = TenantKeyVersion.objects.filter(tenant_id=tenant_id, retired_at=None).defer("wrapped").order_by("-version").first()
    if key is not None:
        rotated = next((one for one in way.events if one.action == "tenant_key.rotate"), None)
        part = Part("tenant key", f"version {key.version}", "no component: salts and ids are derived under it")
        found.append(Component(part, key.created_at, rotated, ended=rotated is not None and rotated.created_at > way.reuse.last_at))
    for part in endpoints.identity(endpoint, tenant_slug=tenant_slug, tenant_epoch=tenant.epoch, given=given):
        of_it = [one for one in way.events if part.name in identity_events.components(one)]
        later = [one for one in of_it if one.created_at > way.reuse.last_at]
        event = of_it[0] if of_it else None
        before = _before_words(later[-1], part.name) if later else ""
        found.append(Component(part, event.created_at if event else endpoint.created_at, event, ended=bool(later), before=before))
    return found


def _scope_words(tenant_id: UUID, path: str) -> str:
    """A scope with the version of each level, from the root down: all of them are in the identity."""
    names = path.split("/") if path else []
    levels = ["", *("/".join(names[: depth + 1]) for depth in range(len(names)))]
    versions = dict(Scope.objects.filter(tenant_id=tenant_id, path__in=levels).values_list("path", "version"))
    return ", ".join(f"{level or '(root)'} version {versions[level]}" for level in levels if level in versions)


def _before_words(event: AuditEntry, component: str) -> str:
    said = ", ".join(f"{name} {value}" for name, value in identity_events.before(event, component).items())
    return said if len(said) <= MAX_BEFORE else said[:MAX_BEFORE] + "…"


def audits(tenant_id: UUID, endpoint_ids: Sequence[UUID]) -> list[AuditRun]:
    """The newest audits that went through these endpoints, without what was seen in them."""
    runs = AuditRun.objects.filter(tenant_id=tenant_id, endpoint_id__in=endpoint_ids).defer("evidence", "cases")
    return list(runs.order_by("-created_at", "-id")[:AUDIT_ROWS])


def _reuse(row: Sequence[Any]) -> Reuse:
    requests, failed, first_at, last_at, quantiles, prompt, matched, cached, last_cached, last_prompt = row
    return Reuse(
        requests=requests,
        failed=failed,
        first_at=first_at,
        last_at=last_at,
        ttft_p50_s=quantiles[0] if quantiles else None,
        ttft_p95_s=quantiles[1] if quantiles else None,
        prompt_tokens=int(prompt),
        matched_tokens=int(matched),
        cached_tokens=int(cached),
        last_cached=last_cached,
        last_prompt=last_prompt,
    )


_SUMS = """
       count(*), count(*) FILTER (WHERE outcome = ANY (%s)), min(started_at), max(started_at),
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ttft_s),
       coalesce(sum(prompt_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0),
       coalesce(sum(matched_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0),
       coalesce(sum(cached_tokens), 0),
       (array_agg(cached_tokens ORDER BY started_at DESC))[1], (array_agg(prompt_tokens ORDER BY started_at DESC))[1]
"""
_LIST = f"""
WITH recent AS (
    SELECT r.*, r.record->>'namespace' AS namespace FROM routing_decisionrow r
     WHERE r.tenant_id = %s AND r.started_at >= %s AND (%s::uuid IS NULL OR r.endpoint_id = %s) AND r.record->'audit' IS NULL
)
SELECT namespace, (array_agg(DISTINCT endpoint_id) FILTER (WHERE endpoint_id IS NOT NULL))[1:3],
       (array_agg(DISTINCT scope_id) FILTER (WHERE scope_id IS NOT NULL))[1:3], {_SUMS}
  FROM recent WHERE namespace IS NOT NULL GROUP BY namespace ORDER BY max(started_at) DESC, namespace LIMIT %s
"""  # noqa: S608 - pieces of this file
# GROUPING() of the four columns: a bit is set where the column is not told apart.
_WHOLE, _BY_WAY, _BY_KEY, _BY_REPLICA = 0b1111, 0b0011, 0b1101, 0b1110
_ONE = f"""
WITH mine AS (
    SELECT r.* FROM routing_decisionrow r
     WHERE r.tenant_id = %s AND r.started_at >= %s AND r.record->>'namespace' = %s AND r.record->'audit' IS NULL
)
SELECT grouping(endpoint_id, scope_id, key_id, replica_id), endpoint_id, scope_id, key_id, replica_id, {_SUMS}
  FROM mine GROUP BY GROUPING SETS ((), (endpoint_id, scope_id), (key_id), (replica_id))
"""  # noqa: S608 - as above
