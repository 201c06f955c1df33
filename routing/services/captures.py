"""Trace captures: switched on for some days by whoever may configure the tenant, ended by themselves, by hand or by their size, and deleted at once.

Off is the state of every endpoint. A capture is a row with a seed (see namespaces.core.captures) that routers get in the snapshot while it runs; what
they captured comes through a stream of its own (``capture_ingest``). Deleting destroys the seed in the same transaction as it marks the capture, so
from then on no router can make an id of it and nothing of it is read; its rows go ``DELETE_ROWS`` at a time, the rest within minutes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import Q

from namespaces.core.captures import SEED_BYTES
from routing.models import Endpoint, TraceCapture, TraceJob
from routing.services import support
from routing.services.capture_read import HOW, NothingCaptured, read_trace
from tenants import changes
from tenants.actor import Actor, system
from tenants.core.errors import Conflict, Invalid, NotFound
from tenants.scoping import require_scope
from tenants.services import locks

MAX_DAYS = 14
KEEP_DAYS = 30  # after its end; then it is deleted by itself
GONE_DAYS = 60  # after it was deleted: then its row goes too, and nothing of it can still be on its way
MAX_KEPT = 50  # captures of one tenant that are not deleted
DELETE_ROWS = 20_000  # that one call deletes of one tenant
ROW_BYTES = 300  # of a captured request in PostgreSQL, index entries included, without its block ids of 8 bytes each (measured: 294 of short prompts)
AHEAD_DAYS = 7
LONGEST = timedelta(days=MAX_DAYS + KEEP_DAYS)  # from the first captured request to the last moment at which it is kept
PARTITION_DAYS = MAX_DAYS + KEEP_DAYS + 1  # no captured request is older

__all__ = ["HOW", "NothingCaptured", "delete", "disable", "enable", "read_trace", "status"]
State = Literal["off", "running", "ended"]
_TENDING = system("trace captures")


@dataclass(frozen=True, slots=True)
class Captured:
    """One capture and what it holds. ``lost``: captured by routers, and never stored; some may still be on their way."""

    id: UUID
    share: float
    began_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    end_reason: str
    begun_by: str
    requests: int
    estimated: int  # of them, those whose tokens were counted by bytes
    lost: int
    size_bytes: int  # about


@dataclass(frozen=True, slots=True)
class Status:
    """An endpoint's captures that are not deleted, newest first. ``budget_bytes`` is for all of the tenant's, which now take ``used_bytes``."""

    endpoint_id: UUID
    state: State
    captures: tuple[Captured, ...]
    used_bytes: int
    budget_bytes: int

    keep_days: int = KEEP_DAYS  # after a capture's end

    @property
    def running(self) -> Captured | None:
        return self.captures[0] if self.state == "running" else None

    @property
    def requests(self) -> int:
        return sum(one.requests for one in self.captures)

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.captures)


def enable(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, days: int, share: float, now: datetime) -> Status:
    """Capture ``share`` of an endpoint's conversations from now on, for ``days`` at most.

    Raises:
        NotFound: no such endpoint in this tenant.
        Forbidden: the actor may not configure the tenant.
        Invalid: not 1 to ``MAX_DAYS`` days, or no share above 0 and up to 1.
        Conflict: one runs already, or the tenant's budget is used up.
        LimitReached: ``MAX_KEPT`` captures are kept.
    """
    if not 1 <= days <= MAX_DAYS:
        raise Invalid(f"Use 1 to {MAX_DAYS} days.", field="days")
    if not 0.0 < share <= 1.0:
        raise Invalid("Use a share above 0, up to 1.", field="share")
    locks.tenant(tenant_id)
    endpoint = support.locked(Endpoint, tenant_id=tenant_id, row_id=endpoint_id)
    _end_due(tenant_id, now)
    kept = TraceCapture.objects.filter(tenant_id=tenant_id, deleted_at=None)
    if kept.filter(endpoint_id=endpoint_id, ended_at=None).exists():
        raise Conflict("A capture of this endpoint is running. Switch it off first.")
    support.within(kept.count(), MAX_KEPT, "captures")
    if used_bytes(tenant_id) >= settings.CAPTURE_BUDGET_BYTES:
        raise Conflict(f"What is captured takes all of the tenant's {settings.CAPTURE_BUDGET_BYTES} bytes. Delete some of it first.")
    row = TraceCapture.objects.create(
        tenant_id=tenant_id,
        endpoint_id=endpoint.id,
        endpoint_name=endpoint.name,
        share=share,
        began_at=now,
        ends_at=now + timedelta(days=days),
        seed=os.urandom(SEED_BYTES),
        begun_by=actor.label[:254],
    )
    after = {"capture": str(row.id), "days": days, "share": share, "ends_at": row.ends_at.isoformat()}
    _noted(row, actor, "capture.begin", after=after)
    return status(tenant_id=tenant_id, endpoint_id=endpoint_id, now=now)


def disable(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, now: datetime) -> Status:
    """End the endpoint's running capture; what it holds stays. Where none runs nothing changes."""
    locks.tenant(tenant_id)
    _end_due(tenant_id, now)
    for row in TraceCapture.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint_id, ended_at=None):
        _end(row, actor, "switched off", now)
    return status(tenant_id=tenant_id, endpoint_id=endpoint_id, now=now)


def delete(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, now: datetime) -> Status:
    """End and delete everything that was captured of an endpoint, keys first. The endpoint itself may be gone.

    Jobs that are reading it end, and those that wait for it find nothing; reports that were made of it before stay until they are deleted.
    """
    locks.tenant(tenant_id)
    for row in TraceCapture.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint_id, deleted_at=None):
        _destroy(row, actor, now)
    _cancel_jobs(tenant_id, endpoint_id, actor, now)
    _delete_rows(tenant_id)
    return status(tenant_id=tenant_id, endpoint_id=endpoint_id, now=now)


def status(*, tenant_id: UUID, endpoint_id: UUID, now: datetime) -> Status:
    """What is, or was, captured of an endpoint. In the tenant's scope; two queries."""
    require_scope(tenant_id)
    held = _held(tenant_id)
    rows = TraceCapture.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint_id, deleted_at=None).defer("seed").order_by("-began_at")
    captures = tuple(_captured(row, held.get(row.id, _NOTHING), now) for row in rows)
    state: State = "off" if not captures else "running" if captures[0].ended_at is None else "ended"
    used = sum(one.size_bytes for one in held.values())
    return Status(endpoint_id=endpoint_id, state=state, captures=captures, used_bytes=used, budget_bytes=settings.CAPTURE_BUDGET_BYTES)


def endpoint_id_of(tenant_id: UUID, endpoint_id: UUID) -> UUID:
    """The id of an endpoint that is gone but of which something is kept.

    Raises:
        NotFound: there is nothing.
    """
    if not TraceCapture.objects.filter(tenant_id=tenant_id, endpoint_id=endpoint_id, deleted_at=None).exists():
        raise NotFound
    return endpoint_id


def running(tenant_id: UUID, now: datetime) -> dict[UUID, TraceCapture]:
    """What routers are to capture, by endpoint; for the snapshot."""
    rows = TraceCapture.objects.filter(tenant_id=tenant_id, ended_at=None, deleted_at=None, ends_at__gt=now)
    return {row.endpoint_id: row for row in rows}


def used_bytes(tenant_id: UUID) -> int:
    """About how much all captures of a tenant take, deleted ones included as long as their rows are there."""
    return sum(one.size_bytes for one in _held(tenant_id).values())


# ---- in the background -------------------------------------------------------------------------------------------------


def tend(tenant_id: UUID, now: datetime) -> int:
    """End what is due or too large, delete what is past its time, sum up accounts; returns how many rows went. In the tenant's scope."""
    require_scope(tenant_id)
    rows = list(TraceCapture.objects.filter(tenant_id=tenant_id).defer("seed"))
    if not rows:
        return 0
    locks.tenant(tenant_id)
    _end_due(tenant_id, now)
    _fold(tenant_id)
    kept = TraceCapture.objects.filter(tenant_id=tenant_id, deleted_at=None)
    if used_bytes(tenant_id) > settings.CAPTURE_BUDGET_BYTES:
        for row in kept.filter(ended_at=None):
            _end(row, _TENDING, "budget", now)
    for row in kept.filter(ended_at__lt=now - timedelta(days=KEEP_DAYS)):
        _destroy(row, _TENDING, now)
    TraceCapture.objects.filter(tenant_id=tenant_id, deleted_at__lt=now - timedelta(days=GONE_DAYS)).delete()
    return _delete_rows(tenant_id)


def keep_partitions() -> tuple[int, int, int]:
    """Make the coming days' partitions and drop those past any capture's time: (made, dropped, days without one). Safe to repeat."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM saltroute_keep_capture_partitions(%s, %s)", [AHEAD_DAYS, PARTITION_DAYS])
        made, dropped, blocked = cursor.fetchone()
        return made, dropped, blocked


def _end_due(tenant_id: UUID, now: datetime) -> None:
    for row in TraceCapture.objects.filter(tenant_id=tenant_id, ended_at=None, ends_at__lte=now):
        _end(row, _TENDING, "time", row.ends_at)


def _end(row: TraceCapture, actor: Actor, reason: str, at: datetime) -> None:
    row.ended_at, row.end_reason = at, reason
    row.save(update_fields=["ended_at", "end_reason"])
    _noted(row, actor, "capture.end", after={"capture": str(row.id), "reason": reason})


def _destroy(row: TraceCapture, actor: Actor, now: datetime) -> None:
    if row.ended_at is None:
        row.ended_at, row.end_reason = now, "deleted"
    row.deleted_at, row.seed = now, None
    row.save(update_fields=["ended_at", "end_reason", "deleted_at", "seed"])
    _noted(row, actor, "capture.delete", before={"capture": str(row.id)})


def _cancel_jobs(tenant_id: UUID, endpoint_id: UUID, actor: Actor, now: datetime) -> None:
    """End what would go on with requests read before: a worker notices within a second or two, and what it had noted on its way is gone at once."""
    under_way = TraceJob.objects.select_for_update().filter(tenant_id=tenant_id, endpoint_id=endpoint_id, file=None, state="running")
    for row in under_way:
        row.state, row.finished_at, row.holder, row.checkpoint = "cancelled", now, None, None
        row.save(update_fields=["state", "finished_at", "holder", "checkpoint"])
        label = f"{row.kind} {row.input_name}"
        changes.record(tenant_id=tenant_id, actor=actor, action="trace_job.cancel", object_id=row.id, object_label=label, publishes=False)


def _noted(row: TraceCapture, actor: Actor, action: str, *, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> None:
    """Write it into the audit log, and publish: routers are to begin, or to forget the seed."""
    changes.record(
        tenant_id=row.tenant_id,
        actor=actor,
        action=action,
        object_id=row.endpoint_id,
        object_label=row.endpoint_name,
        before=before,
        after=after,
    )


def _delete_rows(tenant_id: UUID) -> int:
    """Delete what deleted captures have left, at most ``DELETE_ROWS``. What was still on its way becomes rows later, and goes with the next call."""
    gone = list(TraceCapture.objects.filter(~Q(deleted_at=None), tenant_id=tenant_id).values_list("id", flat=True))
    if not gone:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM routing_capturedrequest r USING (SELECT id, at FROM routing_capturedrequest"
            " WHERE tenant_id = %s AND capture_id = ANY(%s) LIMIT %s) old WHERE r.id = old.id AND r.at = old.at AND r.tenant_id = %s",
            [tenant_id, gone, DELETE_ROWS, tenant_id],
        )
        count = int(cursor.rowcount)
        if count < DELETE_ROWS:
            cursor.execute("DELETE FROM routing_captureaccount WHERE tenant_id = %s AND capture_id = ANY(%s)", [tenant_id, gone])
    return count


# ---- sizes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    requests: int
    estimated: int
    blocks: int
    lost: int

    @property
    def size_bytes(self) -> int:
        return self.requests * ROW_BYTES + self.blocks * 8


_NOTHING = _Held(0, 0, 0, 0)


def _held(tenant_id: UUID) -> dict[UUID, _Held]:
    """What each capture holds, from the accounts that ingest keeps."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT capture_id, sum(requests)::bigint, sum(estimated)::bigint, sum(blocks)::bigint,"
            " sum(greatest(0, highest - requests))::bigint FROM ("
            " SELECT capture_id, max(highest) AS highest, sum(requests) AS requests, sum(estimated) AS estimated, sum(blocks) AS blocks"
            " FROM routing_captureaccount WHERE tenant_id = %s GROUP BY capture_id, router_id, boot_ms) each GROUP BY capture_id",
            [tenant_id],
        )
        return {row[0]: _Held(*row[1:]) for row in cursor.fetchall()}


def _fold(tenant_id: UUID) -> None:
    """One row for each capture and router process."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH gone AS (DELETE FROM routing_captureaccount WHERE tenant_id = %s RETURNING *)
            INSERT INTO routing_captureaccount (id, created_at, tenant_id, capture_id, router_id, boot_ms, highest, requests, estimated, blocks)
            SELECT gen_random_uuid(), max(created_at), tenant_id, capture_id, router_id, boot_ms,
                   max(highest), sum(requests), sum(estimated), sum(blocks)
              FROM gone GROUP BY tenant_id, capture_id, router_id, boot_ms
            """,
            [tenant_id],
        )


def _captured(row: TraceCapture, held: _Held, now: datetime) -> Captured:
    over = row.ended_at is None and row.ends_at <= now  # and not tended yet
    return Captured(
        id=row.id,
        share=row.share,
        began_at=row.began_at,
        ends_at=row.ends_at,
        ended_at=row.ends_at if over else row.ended_at,
        end_reason="time" if over else row.end_reason,
        begun_by=row.begun_by,
        requests=held.requests,
        estimated=held.estimated,
        lost=held.lost,
        size_bytes=held.size_bytes,
    )
