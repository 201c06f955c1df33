"""Captured requests into PostgreSQL: rows, and in the same transaction the account of each router process. Repeats meet their own id.

As for decision records (``records``): the role may only INSERT, and PostgreSQL says how many rows were new.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import DataError, IntegrityError

from routing.core.capture import ID_BYTES, CaptureRecord
from routing.services.record_store import Stored, insert_rows, insert_together

_REQUEST = {
    "id": "uuid",
    "created_at": "timestamptz",
    "tenant_id": "uuid",
    "capture_id": "uuid",
    "at": "timestamptz",
    "prompt_tokens": "int",
    "output_tokens": "int",
    "blocks": "bytea",
    "exact": "boolean",
    "session": "int8",
    "named": "boolean",
    "turn": "int",
    "scope": "int8",
    "kind": "text",
    "duration_ms": "int",
}
_ACCOUNT = {
    "id": "uuid",
    "created_at": "timestamptz",
    "tenant_id": "uuid",
    "capture_id": "uuid",
    "router_id": "text",
    "boot_ms": "int8",
    "highest": "int8",
    "requests": "int8",
    "estimated": "int8",
    "blocks": "int8",
}


def store(records: Sequence[CaptureRecord]) -> Stored:
    """Store captured requests; one bad record costs only itself.

    Raises:
        OperationalError, InterfaceError: PostgreSQL is away; of what was committed by then a repeat counts nothing twice.
    """
    try:
        return insert_together(records, _insert, _account)
    except (IntegrityError, DataError):
        done = Stored()
        for record in records:
            try:
                one = insert_together((record,), _insert, _account)
            except (IntegrityError, DataError):
                one = Stored(refused=1)
            done = Stored(done.stored + one.stored, done.repeated + one.repeated, done.refused + one.refused)
        return done


def _insert(records: Sequence[CaptureRecord]) -> int:
    now = datetime.now(UTC)
    return insert_rows("routing_capturedrequest", _REQUEST, [_row(one, now) for one in records])


def _row(one: CaptureRecord, now: datetime) -> tuple[Any, ...]:
    return (
        one.id,
        now,
        one.tenant_id,
        one.capture_id,
        datetime.fromtimestamp(one.at, tz=UTC),
        one.prompt_tokens,
        one.output_tokens,
        one.blocks,
        one.exact,
        one.session,
        one.named,
        one.turn,
        one.scope,
        one.kind[:16].replace("\0", ""),
        one.duration_ms,
    )


def _account(new: Sequence[CaptureRecord]) -> None:
    """Note what came of each router process for each capture."""
    found: dict[tuple[UUID, UUID, str, int], list[int]] = {}
    for one in new:
        account = found.setdefault((one.tenant_id, one.capture_id, one.router_id[:200].replace("\0", ""), one.boot_ms), [0, 0, 0, 0])
        account[0] = max(account[0], one.serial)
        account[1] += 1
        account[2] += not one.exact
        account[3] += len(one.blocks) // ID_BYTES
    now = datetime.now(UTC)
    insert_rows("routing_captureaccount", _ACCOUNT, [(uuid4(), now, *key, *account) for key, account in found.items()])
