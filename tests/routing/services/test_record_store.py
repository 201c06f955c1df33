"""Rows as ingest writes them: any text in its own place, and states of replicas beside records."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
import redis

from routing.core import replica_state
from routing.core.replica_state import ReplicaState
from routing.models import ReplicaStateRow, RollupRow
from routing.services import record_store, records
from routing.services.records import STREAM
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.test_records import KEY, acorn, client, ingest, ingest_role, record, send, stored

__all__ = ["acorn", "client"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("replica_id", ["", "a\x1eb", "a\x1db", "\x1e", "a\0b", 'it\'s "quoted", {so} \\N', None])
def test_any_text_goes_into_its_own_column_and_row(acorn: Made, replica_id: str | None) -> None:
    """Columns travel as one text with separators: a text that holds one moves nothing into another row, alone or among others."""
    odd, plain = record(acorn, replica_id=replica_id, started_at=1_790_000_001.5), record(acorn, replica_id="plain", started_at=1_790_000_002.5)
    alone = record(acorn, replica_id=replica_id, started_at=1_790_000_003.5)
    with ingest_role():
        assert records.store([odd, plain]).stored == 2
        assert records.store([alone]).stored == 1
    kept = (replica_id or "").translate({0: "\ufffd", 0x1E: "\ufffd", 0x1D: "\ufffd"})
    assert [row.replica_id for row in stored(acorn)] == [kept, "plain", kept]
    with tenant_scope(acorn.id):
        assert sorted(RollupRow.objects.filter(grain=0).values_list("replica_id", flat=True)) == sorted([kept, kept, "plain"])


def test_a_state_of_a_replica_is_stored_and_a_forged_one_dropped(client: redis.Redis, acorn: Made) -> None:
    """States come in the stream of records, under a MAC of their own; a record's does not do, nor another router's."""

    def send_state(router: str = "r1", **fields: Any) -> None:
        state = ReplicaState(
            id=uuid.uuid4(), tenant_id=acorn.id, replica_id=uuid.UUID(int=7), router_id="r1", started_at=1_790_000_001.5, observed_us=15_000_000
        )
        data = replica_state.encode(msgspec.structs.replace(state, **fields.pop("state", {})))
        mac = replica_state.authenticate(KEY, router, data)
        entry: dict[Any, Any] = {"k": replica_state.KIND, "r": router, "t": str(acorn.id), "d": data, "m": mac, **fields}
        client.xadd(STREAM, entry)

    send_state(state={"busy_us": 5})
    send_state(m=b"x" * 32)
    send_state(router="r2")
    send_state(k=b"another")
    send_state(t=str(uuid.uuid4()))
    send_state(state={"busy_us": -1})
    send_state(state={"started_at": 9e9})
    one = record(acorn)
    send(client, one)
    consumer = ingest(client)
    with ingest_role():
        assert consumer.turn() == 8
    assert consumer.counts == {
        "stored": 1,
        "states": 1,
        "not authentic": 1,
        "of no kind that is known here": 1,
        "of another router or tenant than its entry says": 2,
        "malformed": 1,
        "of no time that could be": 1,
    }
    with tenant_scope(acorn.id):
        assert list(ReplicaStateRow.objects.values_list("busy_us", "observed_us", "width_s")) == [(5, 15_000_000, 60)]


def test_a_state_of_a_tenant_that_is_gone_costs_only_itself(client: redis.Redis, acorn: Made) -> None:
    states = [
        ReplicaState(id=uuid.uuid4(), tenant_id=tenant, replica_id=uuid.UUID(int=7), router_id="r1", started_at=1_790_000_001.5, observed_us=1)
        for tenant in (acorn.id, uuid.uuid4(), acorn.id)
    ]
    with ingest_role():
        assert record_store.store_states(states) == record_store.Stored(stored=2, refused=1)
