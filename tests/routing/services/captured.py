"""Captured requests as ingest stores them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from routing.core.capture import CaptureRecord
from routing.services import capture_store


def packed(*ids: int) -> bytes:
    """Block ids as a record holds them."""
    return b"".join(one.to_bytes(8, "big") for one in ids)


def record(tenant_id: UUID, capture_id: UUID, at: datetime, **fields: Any) -> CaptureRecord:
    """A captured request of three blocks, the last partial."""
    usual: dict[str, Any] = {
        "id": uuid.uuid4(),
        "prompt_tokens": 1100,
        "output_tokens": 60,
        "blocks": packed(11, 12, 13),
        "exact": True,
        "session": 0,
        "named": False,
        "turn": 0,
        "scope": 5,
        "kind": "single",
        "duration_ms": 900,
        "router_id": "r1",
        "boot_ms": 1,
        "serial": 1,
    }
    return CaptureRecord(tenant_id=tenant_id, capture_id=capture_id, at=at.timestamp(), **{**usual, **fields})


def keep(*records: CaptureRecord) -> None:
    """Store them by ingest's role."""
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert capture_store.store(records).stored == len(records)
        cursor.execute("SET ROLE saltroute_app")
