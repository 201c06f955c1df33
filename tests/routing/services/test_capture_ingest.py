"""Captured requests through their stream, on real Valkey and PostgreSQL, by the role that may only insert."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from routing.core import capture
from routing.core.capture import CaptureRecord
from routing.core.record import DecisionRecord, authenticate, encode
from routing.models import CaptureAccount, CapturedRequest, DecisionRow
from routing.services import records
from routing.services.capture_ingest import STREAM, CaptureIngest
from tenants.scoping import tenant_scope
from tests.routing.services.captured import record
from tests.routing.services.made import Made, make
from tests.routing.services.test_records import ingest_role

pytestmark = pytest.mark.django_db(transaction=True)
KEY = b"k" * 32
NOW = datetime.now(UTC)
CAPTURE = uuid.uuid4()


@pytest.fixture
def acorn(transactional_db: None) -> Made:
    return make("acorn")


@pytest.fixture
def client(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as made:
        yield made


def send(client: redis.Redis, one: CaptureRecord, **fields: Any) -> None:
    """Append as a router does; ``fields`` replace the entry's own."""
    data = capture.encode(one)
    mac = authenticate(capture.stream_key(KEY), "r1", data)
    entry: dict[Any, Any] = {"r": "r1", "t": str(one.tenant_id), "d": data, "m": mac, **fields}
    client.xadd(STREAM, entry)


def ingest(client: redis.Redis) -> CaptureIngest:
    made = CaptureIngest(client, records_key=KEY, consumer="c1", block_s=0.001, backoff_s=(0.001, 0.01))
    made.ensure_group()
    return made


def stored(tenant: Made) -> list[CapturedRequest]:
    with tenant_scope(tenant.id):
        return list(CapturedRequest.objects.order_by("at"))


def test_a_captured_request_is_stored_with_its_account(client: redis.Redis, acorn: Made) -> None:
    """Once, though it came three times; nothing is left in the stream; decisions are not touched."""
    one = record(acorn.id, CAPTURE, NOW, serial=4, session=8, named=True, turn=2, exact=False)
    with ingest_role():
        consumer = ingest(client)
        for _ in range(2):
            send(client, one)
        consumer.turn()
        send(client, one)
        consumer.turn()
    (row,) = stored(acorn)
    assert (row.id, row.capture_id, bytes(row.blocks), row.turn, row.named) == (one.id, CAPTURE, one.blocks, 2, True)
    assert (row.prompt_tokens, row.output_tokens, row.session, row.scope, row.kind, row.duration_ms) == (1100, 60, 8, 5, "single", 900)
    with tenant_scope(acorn.id):
        account = CaptureAccount.objects.get()
        assert not DecisionRow.objects.exists()
    assert (account.capture_id, account.highest, account.requests, account.estimated, account.blocks) == (CAPTURE, 4, 1, 1, 3)
    assert client.xlen(STREAM) == 0
    assert consumer.counts == {"stored": 1, "repeated": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"m": b"x" * 32}, "not authentic"),
        ({"r": b"r2"}, "not authentic"),
        ({"t": str(uuid.UUID(int=1)).encode()}, "of another router or tenant than its entry says"),
    ],
)
def test_a_forged_entry_is_dropped(client: redis.Redis, acorn: Made, change: dict[str, Any], reason: str) -> None:
    """And the good one beside it is stored."""
    good = record(acorn.id, CAPTURE, NOW)
    send(client, good)
    send(client, record(acorn.id, CAPTURE, NOW), **change)
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
    assert [row.id for row in stored(acorn)] == [good.id]
    assert consumer.counts == {"stored": 1, reason: 1}


def test_a_decision_record_does_not_pass_for_a_captured_request_nor_the_other_way(client: redis.Redis, acorn: Made) -> None:
    decision = DecisionRecord(
        id=uuid.uuid4(), tenant_id=acorn.id, started_at=NOW.timestamp(), route="r", outcome="ok", status=200, router_id="r1", config_version=1
    )
    data = encode(decision)
    client.xadd(STREAM, {"r": "r1", "t": str(acorn.id), "d": data, "m": authenticate(KEY, "r1", data)})
    other = capture.encode(record(acorn.id, CAPTURE, NOW))
    client.xadd(records.STREAM, {"r": "r1", "t": str(acorn.id), "d": other, "m": authenticate(capture.stream_key(KEY), "r1", other)})
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
        beside = records.Ingest(client, records_key=KEY, consumer="c1", block_s=0.001)
        beside.ensure_group()
        beside.turn()
    assert +consumer.counts == +beside.counts == {"not authentic": 1}


def test_one_bad_record_costs_only_itself(client: redis.Redis, acorn: Made) -> None:
    """A number that PostgreSQL does not hold, a tenant that is gone, a time that cannot be."""
    good = record(acorn.id, CAPTURE, NOW)
    for one in (
        good,
        record(acorn.id, CAPTURE, NOW, prompt_tokens=2**40),
        record(uuid.uuid4(), CAPTURE, NOW),
        record(acorn.id, CAPTURE, datetime(9999, 1, 1, tzinfo=UTC)),
    ):
        send(client, one)
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
    assert [row.id for row in stored(acorn)] == [good.id]
    assert consumer.counts == {"stored": 1, "refused by the database": 2, "of no time that could be": 1}
