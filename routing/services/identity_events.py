"""Events that made cached blocks unreachable, as the audit log has them, and what each is expected to cost. Reads only.

Expected cost: an identity's blocks are computed again when its next requests come. What would be computed is taken to be what the namespaces under
the endpoint or scope computed, and so cached, in the hour before the event: prompt tokens less those that the engines reported as cached. Seconds are
those tokens at a prefill rate, which comes from the same decisions of the week before, from the first of these that has enough:

1. the median over prompts of at least 2000 computed tokens, as routers learn it;
2. what routers had learned of the replicas by then, from prompts queued there by anybody, as the decisions note it;
3. the middle of shorter prompts: their tokens over their time to first token less what a request costs that computes next to nothing;
4. the router's default.

Times are seconds of one replica, and queueing counts as slowness, so they err to the high side. Probes of isolation audits are left out: nobody's
next request would have found their blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from routing.core.calibration import DEFAULT_FIXED_S, DEFAULT_RATE, ENOUGH, MIN_TOKENS, SMALL_TOKENS
from routing.models import Endpoint
from routing.services import counting
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


RateFrom = Literal["prompts", "routers", "shorter_prompts", "default"]


@dataclass(frozen=True, slots=True)
class Impact:
    """What an event reached. ``cold_s`` is prefill time of one replica; ``rate_from`` says what the rate is taken from, see the module."""

    namespaces: int
    cold_tokens: int
    cold_s: float
    prefill_tokens_per_s: float
    rate_from: RateFrom

    @property
    def rate_seen(self) -> bool:
        """Whether anybody measured the rate."""
        return self.rate_from != "default"


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
    known = _known(event)
    return list(dict.fromkeys(_COMPONENT.get(name, name) for name in event.after or {} if name in known))


def before(event: AuditEntry, component: str) -> dict[str, Any]:
    """What an event replaced of one component, by the audit log's fields; empty where the log does not say."""
    changed = components(event)
    if component not in changed:
        return {}
    fields = event.before or {}
    if len(changed) == 1 and event.action not in ("model.update", "endpoint.update"):
        return dict(fields)
    known = _known(event)
    return {name: value for name, value in fields.items() if name in known and _COMPONENT.get(name, name) == component}


def _known(event: AuditEntry) -> set[str]:
    return {*_ENDPOINT} if event.action == "endpoint.update" else {*_MODEL, *_TOKENIZER, *_TEMPLATE}


def first_since(tenant_id: UUID, moment: datetime, *, endpoint_id: UUID, scope_id: UUID | None) -> AuditEntry | None:
    """The first event after ``moment`` that changed the identity of requests through an endpoint under a scope, or None."""
    found = list(events(tenant_id).filter(created_at__gt=moment).order_by("created_at", "id")[:MAX_EVENTS])
    for event, reach in zip(found, _reaches(tenant_id, found) if found else (), strict=True):
        if _reached(reach, endpoint_id, scope_id):
            return event
    return None


Way = tuple[UUID, UUID | None]  # an endpoint, and the scope that requests through it act in


def reaching(tenant_id: UUID, ways: Collection[Way]) -> dict[Way, list[AuditEntry]]:
    """Of the newest ``MAX_EVENTS`` events those that changed the identity of requests by each of ``ways``, newest first; in the tenant's scope."""
    require_scope(tenant_id)
    found = list(events(tenant_id).order_by("-created_at", "-id")[:MAX_EVENTS])
    reaches = _reaches(tenant_id, found) if found else []
    return {way: [event for event, reach in zip(found, reaches, strict=True) if _reached(reach, *way)] for way in ways}


def _reached(reach: _Reach, endpoint_id: UUID, scope_id: UUID | None) -> bool:
    through = reach.endpoints is None or str(endpoint_id) in reach.endpoints
    under = reach.scopes is None or str(scope_id) in reach.scopes
    return through and under and str(endpoint_id) not in (reach.but or ())


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
    bounds = [f"{within.total_seconds()} seconds" for within in (NAMESPACES_WITHIN, CACHED_WITHIN)]
    values = [tenant_id, *bounds, DEFAULT_FIXED_S, MIN_TOKENS, SMALL_TOKENS, DEFAULT_RATE, json.dumps(asked)]
    rows = counting.rows_within(_COUNT, values, timeout_ms=COUNT_TIMEOUT_MS)
    return {} if rows is None else {found[place].id: _impact(_Counted(*counted)) for place, *counted in rows}


class _Counted(NamedTuple):
    """One row of the count; rates in tokens/s, times in seconds."""

    namespaces: int
    tokens: int
    rate: float | None
    samples: int
    learned: float | None
    short_tokens: float | None
    short_s: float | None
    short_samples: int
    small_s: float | None
    small_samples: int


def _impact(counted: _Counted) -> Impact:
    rate, rate_from = _rate(counted)
    tokens = int(counted.tokens)
    return Impact(namespaces=counted.namespaces, cold_tokens=tokens, cold_s=tokens / rate, prefill_tokens_per_s=rate, rate_from=rate_from)


def _rate(counted: _Counted) -> tuple[float, RateFrom]:
    """Of a shorter prompt's time at least a quarter is taken for computing, however much a request costs by itself."""
    if counted.rate is not None and counted.samples >= ENOUGH:
        return float(counted.rate), "prompts"
    if counted.learned is not None:
        return float(counted.learned), "routers"
    if counted.short_tokens is not None and counted.short_s is not None and counted.short_samples >= ENOUGH:
        by_itself_s = counted.small_s if counted.small_s is not None and counted.small_samples >= ENOUGH else DEFAULT_FIXED_S
        return counted.short_tokens / max(counted.short_s - by_itself_s, counted.short_s / 4, 0.001), "shorter_prompts"
    return DEFAULT_RATE, "default"


_COUNT = """
SELECT e.n, c.*
  FROM (SELECT j.*, %s::uuid AS tenant, %s::interval AS week, %s::interval AS hour, %s::float AS fixed_s, %s::int AS enough, %s::int AS small,
               %s::float AS assumed
          FROM jsonb_to_recordset(%s::jsonb) AS j(n int, at timestamptz, endpoints uuid[], scopes uuid[], but uuid[])) e
 CROSS JOIN LATERAL (
    SELECT count(DISTINCT d.record->>'namespace') AS namespaces,
           coalesce(sum(d.computed) FILTER (WHERE d.started_at >= e.at - e.hour), 0) AS tokens,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY d.computed / greatest(d.ttft_s - e.fixed_s, 0.001))
             FILTER (WHERE d.computed >= e.enough AND d.ttft_s IS NOT NULL) AS rate,
           count(*) FILTER (WHERE d.computed >= e.enough AND d.ttft_s IS NOT NULL) AS samples,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY d.learned) FILTER (WHERE d.learned >= 1 AND d.learned <> e.assumed) AS learned,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY d.computed::float) FILTER (WHERE d.told AND d.computed >= e.small) AS short_tokens,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY d.ttft_s) FILTER (WHERE d.told AND d.computed >= e.small) AS short_s,
           count(*) FILTER (WHERE d.told AND d.computed >= e.small) AS short_samples,
           percentile_cont(0.1) WITHIN GROUP (ORDER BY d.ttft_s) FILTER (WHERE d.told AND d.computed < e.small) AS small_s,
           count(*) FILTER (WHERE d.told AND d.computed < e.small) AS small_samples
      FROM (SELECT r.*, greatest(r.prompt_tokens - coalesce(r.cached_tokens, 0), 0) AS computed,
                   r.prompt_tokens IS NOT NULL AND r.cached_tokens IS NOT NULL AND r.ttft_s > 0 AS told,
                   (r.record->>'prefill_tokens_per_s')::float AS learned
              FROM routing_decisionrow r
             WHERE r.tenant_id = e.tenant AND r.started_at >= e.at - e.week AND r.started_at < e.at
               AND r.record->>'namespace' IS NOT NULL AND r.record->'audit' IS NULL
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
