"""Events that made cached blocks unreachable, as the audit log has them, and what each is expected to cost. Reads only.

Expected cost: an identity's blocks are computed again when its next requests come. What would be computed is taken to be what the namespaces under
the endpoint or scope computed, and so cached, in the hour before the event: prompt tokens less those that the engines reported as cached. Seconds are
those tokens at the prefill rate seen in the same decisions (the router's own rule: the median over prompts of at least 2000 computed tokens), or at
the router's default where too few were seen; they are seconds of one replica, and queueing counts as slowness, so they err to the high side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import Q, QuerySet

from routing.core.calibration import DEFAULT_FIXED_S, DEFAULT_RATE, ENOUGH, MIN_TOKENS
from routing.models import Endpoint
from tenants.core.scopes import ROOT
from tenants.models import AuditEntry, Scope
from tenants.scoping import require_scope

NAMESPACES_WITHIN = timedelta(days=7)
CACHED_WITHIN = timedelta(hours=1)
COUNT_TIMEOUT_MS = 3000  # for all events of a page together
MAX_EVENTS = 200

_MODEL = ("name", "revision", "quantisation", "kv_dtype", "multimodal_processor")
_TOKENIZER = ("tokenizer_digest", "tokenizer_revision")
_TEMPLATE = ("chat_template_digest", "chat_template_revision")
_ENDPOINT = ("model", "adapter", "context", "engine", "sharing", "data_class", "own_cache", "client_subdivision")
# A changed field, and the component of the identity that it changes.
_COMPONENT = {
    **dict.fromkeys(_MODEL, "model"),
    **dict.fromkeys(_TOKENIZER, "tokenizer"),
    **dict.fromkeys(_TEMPLATE, "chat_template"),
    "multimodal_processor": "multimodal",
    "own_cache": "endpoint",
    "client_subdivision": "client",
}


@dataclass(frozen=True, slots=True)
class Impact:
    """What an event reached. ``cold_s`` is prefill time of one replica; ``rate_seen`` False: at the default rate."""

    namespaces: int
    cold_tokens: int
    cold_s: float
    prefill_tokens_per_s: float
    rate_seen: bool


@dataclass(frozen=True, slots=True)
class _Reach:
    """Which decisions ran under the identities that an event changed; None is all."""

    endpoints: list[str] | None = None
    scopes: list[str] | None = None
    but: list[str] | None = None


def events(tenant_id: UUID) -> QuerySet[AuditEntry]:
    """The tenant's events that changed identities. A change of a field that is in no identity is none."""
    whole = Q(action__in=("scope.raise", "tenant_key.rotate", "tenant.rotate_epoch", "endpoint.rotate_epoch", "adapter.update", "adapter.reload"))
    model = Q(action="model.update", after__has_any_keys=[*_MODEL, *_TOKENIZER, *_TEMPLATE])
    endpoint = Q(action="endpoint.update", after__has_any_keys=list(_ENDPOINT))
    return AuditEntry.objects.filter(whole | model | endpoint, tenant_id=tenant_id)


def components(event: AuditEntry) -> list[str]:
    """The components of the identity that an event changed, in the order of the audit log's fields."""
    fixed = {
        "scope.raise": ["scope"],
        "tenant_key.rotate": [],
        "tenant.rotate_epoch": ["epoch"],
        "endpoint.rotate_epoch": ["epoch"],
        "adapter.update": ["adapter"],
        "adapter.reload": ["adapter"],
    }.get(event.action)
    if fixed is not None:
        return fixed
    known = {*_ENDPOINT} if event.action == "endpoint.update" else {*_MODEL, *_TOKENIZER, *_TEMPLATE}
    return list(dict.fromkeys(_COMPONENT.get(name, name) for name in event.after or {} if name in known))


def first_since(tenant_id: UUID, moment: datetime, *, endpoint_id: UUID, scope_id: UUID | None) -> AuditEntry | None:
    """The first event after ``moment`` that changed the identity of requests through an endpoint under a scope, or None."""
    found = list(events(tenant_id).filter(created_at__gt=moment).order_by("created_at", "id")[:MAX_EVENTS])
    for event, reach in zip(found, _reaches(tenant_id, found) if found else (), strict=True):
        through = reach.endpoints is None or str(endpoint_id) in reach.endpoints
        under = reach.scopes is None or str(scope_id) in reach.scopes
        if through and under and str(endpoint_id) not in (reach.but or ()):
            return event
    return None


def impacts(tenant_id: UUID, found: Sequence[AuditEntry]) -> dict[UUID, Impact]:
    """What each event reached, by its id, in one query over the decisions. Empty when counting takes longer than ``COUNT_TIMEOUT_MS``.

    Endpoints and scopes are matched as they are now: what was deleted since is not counted.
    """
    require_scope(tenant_id)
    if not found:
        return {}
    reaches = _reaches(tenant_id, found[:MAX_EVENTS])
    asked = [
        {"n": place, "at": event.created_at.isoformat(), "endpoints": reach.endpoints, "scopes": reach.scopes, "but": reach.but}
        for place, (event, reach) in enumerate(zip(found, reaches, strict=False))
    ]
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(COUNT_TIMEOUT_MS)])
            bounds = [f"{within.total_seconds()} seconds" for within in (NAMESPACES_WITHIN, CACHED_WITHIN)]
            cursor.execute(_COUNT, [tenant_id, *bounds, DEFAULT_FIXED_S, MIN_TOKENS, json.dumps(asked)])
            rows = cursor.fetchall()
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != "57014":  # query_canceled: too much to count in time
            raise
        return {}
    return {found[place].id: _impact(namespaces, tokens, rate, samples) for place, namespaces, tokens, rate, samples in rows}


def _impact(namespaces: int, tokens: int, rate: float | None, samples: int) -> Impact:
    seen = rate is not None and samples >= ENOUGH
    used = float(rate) if rate is not None and seen else DEFAULT_RATE
    return Impact(namespaces=namespaces, cold_tokens=int(tokens), cold_s=int(tokens) / used, prefill_tokens_per_s=used, rate_seen=seen)


_COUNT = """
SELECT e.n, c.namespaces, c.tokens, c.rate, c.samples
  FROM (SELECT j.*, %s::uuid AS tenant, %s::interval AS week, %s::interval AS hour, %s::float AS fixed_s, %s::int AS enough
          FROM jsonb_to_recordset(%s::jsonb) AS j(n int, at timestamptz, endpoints uuid[], scopes uuid[], but uuid[])) e
 CROSS JOIN LATERAL (
    SELECT count(DISTINCT d.record->>'namespace') AS namespaces,
           coalesce(sum(d.computed) FILTER (WHERE d.started_at >= e.at - e.hour), 0) AS tokens,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY d.computed / greatest(d.ttft_s - e.fixed_s, 0.001))
             FILTER (WHERE d.computed >= e.enough AND d.ttft_s IS NOT NULL) AS rate,
           count(*) FILTER (WHERE d.computed >= e.enough AND d.ttft_s IS NOT NULL) AS samples
      FROM (SELECT r.*, greatest(r.prompt_tokens - coalesce(r.cached_tokens, 0), 0) AS computed FROM routing_decisionrow r
             WHERE r.tenant_id = e.tenant AND r.started_at >= e.at - e.week AND r.started_at < e.at
               AND r.record->>'namespace' IS NOT NULL
               AND (e.endpoints IS NULL OR r.endpoint_id = ANY (e.endpoints))
               AND (e.scopes IS NULL OR r.scope_id = ANY (e.scopes))
               AND (e.but IS NULL OR NOT r.endpoint_id = ANY (e.but))) d
 ) c
"""


def _reaches(tenant_id: UUID, found: Sequence[AuditEntry]) -> list[_Reach]:
    rows = list(Endpoint.objects.filter(tenant_id=tenant_id).values_list("id", "model_id", "adapter_id", "sharing"))
    scopes = {row.id: row.path for row in Scope.objects.filter(tenant_id=tenant_id)}
    over_scopes = [str(row[0]) for row in rows if row[3] == "tenant"]  # only the root's version enters their identities

    def where(matches: Callable[[Any], bool]) -> _Reach:
        return _Reach(endpoints=[str(row[0]) for row in rows if matches(row)])

    def one(event: AuditEntry) -> _Reach:
        noun, wanted = event.action.partition(".")[0], event.object_id
        if noun == "endpoint":
            return _Reach(endpoints=[str(wanted)])
        if noun == "model":
            return where(lambda row: row[1] == wanted)
        if noun == "adapter":
            return where(lambda row: row[2] == wanted)
        if noun == "scope":
            path = scopes.get(wanted) if wanted else None
            if path == ROOT:
                return _Reach()
            below = [str(row_id) for row_id, other in scopes.items() if path is not None and (other == path or other.startswith(f"{path}/"))]
            return _Reach(scopes=below, but=over_scopes)
        return _Reach()

    return [one(event) for event in found]
