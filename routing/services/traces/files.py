"""Traces that a tenant sends: read as they arrive, in a process with limits; kept as numbers.

What is sent may be text. It is held in memory while it is read, by this process and the one that reads it, and written nowhere: kept are times,
lengths and dense numbers for equal blocks.
"""

from __future__ import annotations

import threading
from uuid import UUID

from django.db.models import QuerySet, Sum

from routing.models import TraceFile, TraceJob
from routing.services.traces.child import Child, ChildEnded, in_pieces
from routing.traces.stored import join
from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound, Unavailable
from tenants.queries import parse_uuid
from tenants.services import locks

MAX_UPLOAD_BYTES = 64 << 20  # as sent, plain or gzip
MAX_UNPACKED_BYTES = 256 << 20
MAX_REQUESTS = 200_000
MAX_BLOCKS = 8_000_000  # block ids, over all requests
MAX_STORED_BYTES = 80 << 20  # of one trace
MAX_FILES = 20  # of one tenant
MAX_TOTAL_BYTES = 512 << 20
READ_S = 60.0
READ_MEMORY_BYTES = 2 << 30
MAX_READING = 2  # at once, in one process of the control plane
_reading = threading.BoundedSemaphore(MAX_READING)
_readers: set[UUID] = set()  # tenants whose trace is being read here: one at a time, so that none takes all places
_turn = threading.Lock()


def files(tenant_id: UUID) -> QuerySet[TraceFile]:
    """A tenant's traces, without their content."""
    return TraceFile.objects.filter(tenant_id=tenant_id).defer("content")


def file(tenant_id: UUID, reference: str) -> TraceFile:
    """A trace by id or name, without its content.

    Raises:
        NotFound: none of this tenant's.
    """
    reference = reference.strip("/")
    row_id = parse_uuid(reference)
    found = files(tenant_id).filter(id=row_id).first() if row_id is not None else None
    if found is None and "\0" not in reference:
        found = files(tenant_id).filter(name=reference).first()
    if found is None:
        raise NotFound
    return found


def store(*, tenant_id: UUID, actor: Actor, name: str, content: bytes) -> TraceFile:
    """Read a trace and keep its numbers.

    Raises:
        Invalid: a malformed name; the content is empty, too large, or does not keep to its format: the message names line and field.
        Conflict: the name is taken.
        LimitReached: too many traces, or too many bytes in all.
        Unavailable: others are being read.
    """
    names.label(name, field="name")
    if not content:
        raise Invalid("The file is empty.", field="content")
    if len(content) > MAX_UPLOAD_BYTES:
        raise Invalid(f"A trace has at most {MAX_UPLOAD_BYTES} bytes as it is sent; this has {len(content)}. Send it packed (gzip).", field="content")
    _room(tenant_id, 0)
    if files(tenant_id).filter(name=name).exists():
        raise Conflict("There is a trace of this name already.", field="name")
    facts, packed = _in_turn(tenant_id, name, content)  # before the lock: it takes a while
    locks.tenant(tenant_id)
    _room(tenant_id, len(packed))
    with refuse_on(trace_file_name_per_tenant=Conflict("There is a trace of this name already.", field="name")):
        row = TraceFile.objects.create(tenant_id=tenant_id, name=name, size_bytes=len(packed), content=packed, created_by=actor.label[:254], **facts)
    after = {"requests": row.requests, "size_bytes": row.size_bytes}
    changes.record(tenant_id=tenant_id, actor=actor, action="trace_file.store", object_id=row.id, object_label=name, after=after, publishes=False)
    return row


def _room(tenant_id: UUID, more_bytes: int) -> None:
    held = TraceFile.objects.filter(tenant_id=tenant_id)
    if held.count() >= MAX_FILES:
        raise LimitReached(f"There may be at most {MAX_FILES} traces; delete one first.")
    if (held.aggregate(total=Sum("size_bytes"))["total"] or 0) + more_bytes > MAX_TOTAL_BYTES:
        raise LimitReached(f"A tenant's traces may have at most {MAX_TOTAL_BYTES} bytes in all; delete one first.")


def _in_turn(tenant_id: UUID, name: str, content: bytes) -> tuple[dict[str, object], bytes]:
    with _turn:
        if tenant_id in _readers:
            raise Unavailable("Another trace of this tenant is being read; try again in a moment.")
        _readers.add(tenant_id)
    try:
        return _read(name, content)
    finally:
        _readers.discard(tenant_id)


def _read(name: str, content: bytes) -> tuple[dict[str, object], bytes]:
    """What the trace is, and its chunks."""
    if not _reading.acquire(blocking=False):
        raise Unavailable(f"{MAX_READING} other traces are being read; try again in a moment.")
    try:
        with Child(memory_bytes=READ_MEMORY_BYTES, processor_s=int(READ_S)) as child:
            child.ask(["read", name, [MAX_UNPACKED_BYTES, MAX_REQUESTS, MAX_BLOCKS]], in_pieces(content))
            chunks: list[bytes] = []
            size_bytes = 0
            for message in child.answers(within_s=READ_S):
                if message is None:
                    continue
                if message[0] == "refused":
                    raise _refusal(*message[1:])
                if message[0] == "read":
                    return message[1], join(chunks)
                chunks.append(message[1])
                size_bytes += len(message[1])
                if size_bytes > MAX_STORED_BYTES:
                    raise Invalid(f"The trace takes more than {MAX_STORED_BYTES} bytes when it is kept.", field="content")
    except ChildEnded:
        pass
    finally:
        _reading.release()
    raise Invalid(f"The trace could not be read within {READ_S:.0f} s and {READ_MEMORY_BYTES >> 20} MiB.", field="content")


def _refusal(message: str, line: int, field: str) -> Invalid:
    place = f"Line {line}, {field}: " if line else "The file "
    return Invalid(f"{place}{message}.", field="content")


def delete(*, tenant_id: UUID, actor: Actor, file_id: UUID) -> None:
    """Delete a trace. What was found in it stays.

    Raises:
        NotFound: no such trace of this tenant.
        Conflict: a job that waits or runs needs it.
    """
    locks.tenant(tenant_id)
    row = TraceFile.objects.filter(tenant_id=tenant_id, id=file_id).defer("content").select_for_update().first()
    if row is None:
        raise NotFound
    jobs = TraceJob.objects.filter(tenant_id=tenant_id, file=row)
    if jobs.filter(state__in=("queued", "running")).exists():
        raise Conflict("A job that waits or runs needs this trace: cancel it first.")
    jobs.update(file=None)
    name = row.name
    row.delete()
    changes.record(tenant_id=tenant_id, actor=actor, action="trace_file.delete", object_id=file_id, object_label=name, publishes=False)
