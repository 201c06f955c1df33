"""Decision records read as a trace: times, lengths, and what engines said of reuse. They do not say which prompts began alike.

What follows from that, in full: how much traffic there is, how long prompts and answers are, which share of the tokens engines took from their
caches, by scope too, and how much of what was missed had been elsewhere or was evicted (`causes`). What does not: a ceiling, a capacity curve, gaps
between uses, where prompts part, and any replay in which caches matter. For those a capture is needed (``captures``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection

from routing.core.capture import BLOCK_TOKENS
from routing.models import Endpoint
from routing.services.capture_read import HOW
from routing.traces.request import Trace, TraceRequest
from tenants.core.errors import Conflict, Invalid
from tenants.scoping import tenant_scope

PAGE = 5000
ANSWERED = ("ok", "client_cancelled", "incomplete")
CANNOT = (
    "Records do not say which prompts began alike: no ceiling, no capacity curve, no gaps between uses, and not where prompts part."
    " Replays share nothing between prompts."
)


class NoRecords(Conflict):
    """There are no decisions of the endpoint in that time."""

    def __init__(self) -> None:
        super().__init__("There are no answered requests of this endpoint in this time.", field="since")


@dataclass(frozen=True, slots=True)
class Figures:
    """What records tell of an endpoint's traffic. Shares are of prompt tokens; None: no engine said anything."""

    requests: int
    span_s: float
    prompt_tokens: int
    output_tokens: int
    prompt_p50_tokens: float
    prompt_p95_tokens: float
    output_p50_tokens: float
    output_p95_tokens: float
    told: int  # requests whose engine said how many tokens came from its cache
    reused: float | None  # of those requests' prompt tokens
    scopes: int
    cannot: str = CANNOT
    how: str = HOW


@dataclass(frozen=True, slots=True)
class _Window:
    """What is read."""

    tenant_id: UUID
    endpoint_id: UUID
    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.until <= self.since:
            raise Invalid("The end must be after the beginning.", field="until")

    @property
    def where(self) -> tuple[str, list[UUID | datetime | list[str]]]:
        """A condition and its values."""
        text = "tenant_id = %s AND endpoint_id = %s AND started_at >= %s AND started_at < %s AND outcome = ANY(%s)"
        text += " AND prompt_tokens > 0 AND NOT jsonb_exists(record, 'audit')"  # an audit's probes are no traffic of the tenant's
        return text, [self.tenant_id, self.endpoint_id, self.since, self.until, list(ANSWERED)]


def figures(*, tenant: UUID, endpoint_id: UUID, since: datetime, until: datetime) -> Figures:
    """What an endpoint's records tell, in one query. Requests whose engine gave no length are left out.

    Raises:
        NoRecords: none tells anything.
        Invalid: ``until`` is not after ``since``.
    """
    condition, values = _Window(tenant, endpoint_id, since, until).where
    with tenant_scope(tenant), connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(extract(epoch FROM max(started_at) - min(started_at)), 0)::float8, sum(prompt_tokens)::bigint,"  # noqa: S608 - ours
            " sum(coalesce(completion_tokens, 0))::bigint, percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY prompt_tokens),"
            " percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY coalesce(completion_tokens, 0)), count(cached_tokens),"
            " sum(least(cached_tokens, prompt_tokens)) FILTER (WHERE cached_tokens IS NOT NULL)::float8"
            " / nullif(sum(prompt_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0),"
            " count(DISTINCT scope_id) FROM routing_decisionrow WHERE " + condition,
            values,
        )
        requests, span_s, prompt, output, prompts, outputs, told, reused, scopes = cursor.fetchone()
    if not requests:
        raise NoRecords
    return Figures(requests, span_s, prompt, output, prompts[0], prompts[1], outputs[0], outputs[1], told, reused, scopes)


def read_records(*, tenant: UUID, endpoint_id: UUID, since: datetime, until: datetime) -> Trace:
    """The same requests by time, without blocks: as if no two prompts shared anything. Read as ``captures.read_trace``.

    Raises:
        NoRecords: there are none.
        Invalid: ``until`` is not after ``since``.
    """
    window = _Window(tenant, endpoint_id, since, until)
    with tenant_scope(tenant):
        name = Endpoint.objects.filter(tenant_id=tenant, id=endpoint_id).values_list("name", flat=True).first() or str(endpoint_id)
        if not _page(window, None, 1):
            raise NoRecords
    return Trace(name, BLOCK_TOKENS, True, _requests(window))


def _page(window: _Window, last: tuple[datetime, UUID] | None, count: int) -> list[tuple[UUID, datetime, int, int, UUID | None]]:
    condition, values = window.where
    beyond = "" if last is None else " AND (started_at, id) > (%s, %s)"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, started_at, prompt_tokens, coalesce(completion_tokens, 0), scope_id FROM routing_decisionrow"  # noqa: S608 - ours
            " WHERE " + condition + beyond + " ORDER BY started_at, id LIMIT %s",
            [*values, *(last or ()), count],
        )
        found: list[tuple[UUID, datetime, int, int, UUID | None]] = cursor.fetchall()
    return found


def _requests(window: _Window) -> Iterator[TraceRequest]:
    last: tuple[datetime, UUID] | None = None
    began_at: datetime | None = None
    scopes: dict[UUID | None, str] = {None: ""}
    while True:
        with tenant_scope(window.tenant_id):
            rows = _page(window, last, PAGE)
        for row_id, at, prompt_tokens, output_tokens, scope_id in rows:
            began_at, last = began_at or at, (at, row_id)
            scope = scopes.setdefault(scope_id, f"n{len(scopes)}")
            yield TraceRequest(
                at_s=round((at - began_at).total_seconds(), 3),
                prompt_tokens=prompt_tokens,
                output_tokens=max(1, output_tokens),
                blocks=(),
                scope=scope,
            )
        if len(rows) < PAGE:
            return
