"""Carrying jobs out. Whoever claims a job holds it by a lease that it renews while it works; who lost the lease writes nothing any more.

The work is done by a process of its own (:mod:`routing.services.traces.child`), so that it delays nothing else that this worker does, has limits, and
can be ended. A worker that is killed takes it along; when the lease has run out the sweep finds the job, and the next attempt goes on from the last
checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
from django.db.models import Max
from django.utils import timezone

from routing.core import capture
from routing.models import TraceFile, TraceJob
from routing.services import captures
from routing.services.audits import wake
from routing.services.traces import jobs
from routing.services.traces.child import Child, ChildEnded
from routing.traces.stored import CHUNK_REQUESTS, pack, split
from routing.traces.work import Head
from tenants.core.errors import Refusal
from tenants.queries import all_tenants
from tenants.scoping import tenant_scope

LEASE_S = 15.0
RENEW_S = 1.0
BUSY_S = 2.0  # to wait for another job of this worker: it may only be looking whether there is something to do
MAX_ATTEMPTS = 5
MAX_SPENT_S = 1800.0  # by all attempts of a job
MEMORY_BYTES = 4 << 30  # of the working process: address space, most of it matplotlib's and numpy's
MAX_INPUT_BYTES = 80 << 20  # of captured requests, packed; the oldest are left out
MAX_RESULT_BYTES = 4 << 20
SWEEP_POSTS = 50  # jobs that one sweep wakes workers for
_log = logging.getLogger(__name__)
_one = threading.BoundedSemaphore(1)  # jobs at once in one worker: the queue has other work too


class _Lost(Exception):
    """The job is somebody else's now, or nobody's: it was cancelled, or the lease ran out."""


@dataclass
class _Held:
    """A job that this attempt holds."""

    row: TraceJob
    holder: UUID
    renewed_s: float
    done: int = 0
    total: int = 0

    def renew(self, *, checkpoint: bytes | None = None, now_s: float | None = None) -> None:
        """Write how far it is and keep the lease.

        Raises:
            _Lost: it is not ours any more.
            _Spent: it has taken all the time that a job may.
        """
        now_s = time.monotonic() if now_s is None else now_s
        self.row.spent_s += now_s - self.renewed_s
        self.renewed_s = now_s
        values: dict[str, Any] = {"done": self.done, "total": self.total, "spent_s": self.row.spent_s}
        values["lease_until"] = timezone.now() + timedelta(seconds=LEASE_S)
        if checkpoint is not None:
            values["checkpoint"] = checkpoint
        self.write(**values)
        if self.row.spent_s > MAX_SPENT_S:
            raise _Spent

    def write(self, **values: Any) -> None:
        with tenant_scope(self.row.tenant_id):
            mine = TraceJob.objects.filter(tenant_id=self.row.tenant_id, id=self.row.id, holder=self.holder, state="running")
            if not mine.update(**values):
                raise _Lost

    def end(self, state: str, **values: Any) -> None:
        spent_s = self.row.spent_s + time.monotonic() - self.renewed_s
        self.write(state=state, finished_at=timezone.now(), holder=None, lease_until=None, checkpoint=None, spent_s=spent_s, **values)

    def fail(self, error: str) -> str:
        self.end("failed", error=error[:500])
        return "failed"


class _Spent(Exception):
    """A job took longer than it may."""


def run(tenant_id: UUID, job_id: UUID) -> str | None:
    """Carry out one job. None: it is over, somebody works at it, or this worker is busy; else the state that it ended in."""
    if not _one.acquire(timeout=BUSY_S):
        return None
    try:
        held = _claim(tenant_id, job_id)
        return None if held is None else _carried_out(held)
    finally:
        _one.release()


def _claim(tenant_id: UUID, job_id: UUID) -> _Held | None:
    """Take the job, where it waits or its holder is gone. One job of a tenant runs at a time."""
    now = timezone.now()
    with tenant_scope(tenant_id):
        row = TraceJob.objects.select_for_update(skip_locked=True).filter(tenant_id=tenant_id, id=job_id).defer("result", "plots", "html").first()
        if row is None or row.state not in ("queued", "running") or (row.lease_until is not None and row.lease_until > now):
            return None
        others = TraceJob.objects.filter(tenant_id=tenant_id, state="running", lease_until__gt=now).exclude(id=job_id)
        if others.exists():
            return None
        if row.attempts >= MAX_ATTEMPTS or row.spent_s > MAX_SPENT_S:
            row.state, row.finished_at, row.holder, row.checkpoint = "failed", now, None, None
            row.error = f"It was begun {row.attempts} times and did not end."
            row.save(update_fields=["state", "finished_at", "holder", "checkpoint", "error"])
            return None
        row.state, row.holder, row.lease_until = "running", uuid4(), now + timedelta(seconds=LEASE_S)
        row.attempts, row.attempt_at, row.attempt_done = row.attempts + 1, now, row.done
        row.started_at = row.started_at or now
        row.save(update_fields=["state", "holder", "lease_until", "attempts", "attempt_at", "attempt_done", "started_at"])
    return _Held(row, row.holder, time.monotonic(), done=row.done, total=row.total)


def _carried_out(held: _Held) -> str | None:
    try:
        try:
            return _work(held)
        except Refusal as refusal:
            return held.fail(refusal.message)
        except _Spent:
            return held.fail(f"It took longer than {MAX_SPENT_S / 60:.0f} minutes. Take fewer requests, policies or replays.")
        except ChildEnded:
            # Somebody may have killed it. The lease is given back: another attempt can begin at once, and attempts are counted.
            held.write(lease_until=timezone.now())
            return None
    except _Lost:
        return None


def _work(held: _Held) -> str:
    """Hand the requests to a process and write down what it says; returns the state in which the job ended."""
    row = held.row
    count, chunks = _requests(held)
    parameters = row.parameters
    head = {"name": row.input_name, "work": parameters["work"], "notes": parameters["notes"], "isolated": True, **_facts(row)}
    plain = msgspec.to_builtins(msgspec.convert(head, Head))
    before = None if row.checkpoint is None else bytes(row.checkpoint)
    limit_s = max(1.0, MAX_SPENT_S - row.spent_s)
    with Child(memory_bytes=MEMORY_BYTES, processor_s=int(limit_s) + 1) as child:
        child.ask(["work", plain, count, before], _renewing(held, chunks))
        for message in child.answers(within_s=limit_s):
            kind, *said = message or ("silent",)
            if kind == "refused":
                return held.fail(f"{said[0]}.")
            if kind == "done":
                return _ended(held, *said)
            if kind == "progress":
                held.done, held.total = said[0], said[1] or count
            checkpoint = said[0] if kind == "checkpoint" else None
            if checkpoint is not None or time.monotonic() - held.renewed_s >= RENEW_S:
                held.renew(checkpoint=checkpoint)
    raise ChildEnded


def _ended(held: _Held, values: dict[str, Any], html: str, plots: dict[str, str]) -> str:
    content = msgspec.json.encode(values)  # what is no number becomes null: PostgreSQL's JSON knows none
    if len(content) > MAX_RESULT_BYTES:
        return held.fail(f"The result takes more than {MAX_RESULT_BYTES} bytes.")
    held.end("done", done=held.total, total=held.total, result=msgspec.json.decode(content), html=html, plots=plots)
    return "done"


def _renewing(held: _Held, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        if time.monotonic() - held.renewed_s >= RENEW_S:
            held.renew()


def _facts(row: TraceJob) -> dict[str, Any]:
    if row.file_id is None:
        return {"block_tokens": capture.BLOCK_TOKENS, "timed": True}
    with tenant_scope(row.tenant_id):
        facts = TraceFile.objects.filter(tenant_id=row.tenant_id, id=row.file_id).values("block_tokens", "timed").first()
    if facts is None:
        raise _Lost
    return dict(facts)


def _requests(held: _Held) -> tuple[int, Iterable[bytes]]:
    """How many requests the job has, and their chunks."""
    row = held.row
    if row.file_id is not None:
        with tenant_scope(row.tenant_id):
            found = TraceFile.objects.filter(tenant_id=row.tenant_id, id=row.file_id).values_list("requests", "content").first()
        if found is None:
            raise _Lost
        return found[0], split(bytes(found[1]))
    if row.endpoint_id is None or row.since is None or row.until is None:
        raise _Lost
    trace = captures.read_trace(tenant=row.tenant_id, endpoint_id=row.endpoint_id, since=row.since, until=row.until)
    kept: deque[bytes] = deque()
    size_bytes, longest = 0, jobs.MAX_REPLAY_REQUESTS // CHUNK_REQUESTS if row.kind != "analyze" else None
    count = 0

    def counted() -> Iterator[Any]:
        nonlocal count
        for one in trace.requests:
            count += 1
            yield one

    for chunk in _renewing(held, pack(counted())):
        kept.append(chunk)
        size_bytes += len(chunk)
        while size_bytes > MAX_INPUT_BYTES or (longest is not None and len(kept) > longest):
            size_bytes -= len(kept.popleft())
            count -= CHUNK_REQUESTS
    return count, kept


# ---- finding what waits ------------------------------------------------------------------------------------------------


def sweep() -> int:
    """Wake workers for jobs that wait, or whose worker is gone; delete what is past its time. Returns how many were woken for.

    Workers take one job after the other, so whose tenant was served longest ago comes first: one that always has ten waiting holds up nobody else
    for longer than one of them.
    """
    due: list[tuple[datetime, UUID, UUID]] = []
    for ref in all_tenants():
        now = timezone.now()
        with tenant_scope(ref.tenant_id):
            rows = TraceJob.objects.filter(tenant_id=ref.tenant_id)
            waiting = rows.filter(state__in=("queued", "running")).only("id", "lease_until", "state", "created_at").order_by("created_at")
            first = next((row for row in waiting if row.lease_until is None or row.lease_until <= now), None)
            served_at = rows.aggregate(at=Max("attempt_at"))["at"]
            jobs.forget(ref.tenant_id, now)
        if first is not None:
            due.append((served_at or first.created_at, ref.tenant_id, first.id))
    woken = sorted(due)[:SWEEP_POSTS]
    for _, tenant_id, job_id in woken:
        wake.post(jobs.TASK, (str(tenant_id), str(job_id)), jobs.PRIORITY)
    return len(woken)
