"""What was captured, read back as a trace: a page of rows at a time, each in a transaction of its own, ids numbered anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection

from routing.core import capture
from routing.models import Endpoint, TraceCapture
from routing.traces.numbering import numbered
from routing.traces.request import Trace, TraceRequest
from tenants.core.errors import Conflict, Invalid
from tenants.scoping import tenant_scope

PAGE = 2000
MAX_SESSIONS = 50_000  # whose previous answer is remembered
HOW = "Switch on trace capture: on the endpoint's page in the console, or POST /api/v1/endpoints/{name}/capture."


class NothingCaptured(Conflict):
    """There is no captured traffic to read. The message says how to get some."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Nothing was captured of {name} in this time. " + HOW.replace("{name}", name), field="endpoint")


def read_trace(*, tenant: UUID, endpoint_id: UUID, since: datetime, until: datetime) -> Trace:
    """The captured requests of an endpoint from ``since`` on and before ``until``, by time, as one trace of 512-token blocks.

    ``tenant`` is the tenant's id. Block ids, sessions (``s1`` ...) and scopes (``n1`` ...) are numbered anew, so nothing in the result can be joined
    with anything outside it; ids of two captures never meet. ``scope`` stands for the namespace: blocks of two scopes are equal where the text is,
    and an engine shares them only within one scope. Times count from the first request, in whole milliseconds; ``after_s`` is set where the client
    named the session and the previous turn had ended.

    May be called in or outside the tenant's scope; ``requests`` opens the scope itself for each page of ``PAGE`` rows, so it can be read for as long
    as it takes, in any thread. What is deleted meanwhile is not read any more.

    Raises:
        NothingCaptured: there are no such requests.
        Invalid: ``until`` is not after ``since``.
    """
    if until <= since:
        raise Invalid("The end must be after the beginning.", field="until")
    with tenant_scope(tenant):
        name = Endpoint.objects.filter(tenant_id=tenant, id=endpoint_id).values_list("name", flat=True).first()
        kept = TraceCapture.objects.filter(tenant_id=tenant, endpoint_id=endpoint_id, deleted_at=None)
        name = name or kept.values_list("endpoint_name", flat=True).first() or str(endpoint_id)
        window = _Window(tenant, endpoint_id, since, until)
        first = window.page(None, 1)
    if not first:
        raise NothingCaptured(name)
    return numbered(Trace(name, capture.BLOCK_TOKENS, True, _requests(window)))


_Row = tuple[UUID, datetime, int, int, bytes, int, bool, int, str, int]
_COLUMNS = "r.id, r.at, r.prompt_tokens, r.output_tokens, r.blocks, r.session, r.named, r.scope, r.kind, r.duration_ms"


@dataclass(frozen=True, slots=True)
class _Window:
    """What is read."""

    tenant_id: UUID
    endpoint_id: UUID
    since: datetime
    until: datetime

    def page(self, last: tuple[datetime, UUID] | None, count: int) -> Sequence[_Row]:
        """The next rows after ``last``, of captures that are not deleted."""
        beyond = "" if last is None else " AND (r.at, r.id) > (%s, %s)"
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {_COLUMNS} FROM routing_capturedrequest r JOIN routing_tracecapture c"  # noqa: S608 - columns of ours
                " ON c.id = r.capture_id AND c.tenant_id = r.tenant_id"
                " WHERE c.tenant_id = %s AND c.endpoint_id = %s AND c.deleted_at IS NULL"
                f" AND r.at >= %s AND r.at < %s{beyond} ORDER BY r.at, r.id LIMIT %s",
                [self.tenant_id, self.endpoint_id, self.since, self.until, *(last or ()), count],
            )
            found: list[_Row] = cursor.fetchall()
        return found


def _requests(window: _Window) -> Iterator[TraceRequest]:
    last: tuple[datetime, UUID] | None = None
    began_at: datetime | None = None
    ended_ms: OrderedDict[int, int] = OrderedDict()  # when a session's previous answer ended
    while True:
        with tenant_scope(window.tenant_id):
            rows = window.page(last, PAGE)
        for row_id, at, prompt_tokens, output_tokens, blocks, session, named, scope, kind, duration_ms in rows:
            began_at = began_at or at
            last = (at, row_id)
            at_ms = round((at - began_at).total_seconds() * 1000)
            after_s = None
            if named:
                before_ms = ended_ms.pop(session, None)
                after_s = None if before_ms is None or before_ms > at_ms else (at_ms - before_ms) / 1000
                ended_ms[session] = at_ms + duration_ms
                if len(ended_ms) > MAX_SESSIONS:
                    ended_ms.popitem(last=False)
            yield TraceRequest(
                at_s=at_ms / 1000,
                prompt_tokens=prompt_tokens,
                output_tokens=max(1, output_tokens),
                blocks=capture.ids(bytes(blocks)),
                session=f"{session:x}" if session else "",
                scope=f"{scope:x}" if scope else "",
                kind=kind,
                after_s=after_s,
            )
        if len(rows) < PAGE:
            return
