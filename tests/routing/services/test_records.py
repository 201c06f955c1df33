"""Ingest, on real Valkey and PostgreSQL, as the role that may insert decision records and nothing else."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import redis
from django.db import DatabaseError, connection, transaction
from django.db.backends.signals import connection_created
from redis.backoff import NoBackoff
from redis.retry import Retry

from routing import queries
from routing.core.record import CandidateRecord, DecisionRecord, authenticate, encode
from routing.models import DecisionRow, RecordAccount, RollupRow, UsageRow
from routing.services import records
from routing.services.records import GROUP, STREAM, Ingest
from tenants.models import Tenant
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made, make

pytestmark = pytest.mark.django_db(transaction=True)
KEY = b"k" * 32


@pytest.fixture
def acorn(transactional_db: None) -> Made:
    return make("acorn")


@pytest.fixture
def client(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as made:
        yield made


@contextmanager
def ingest_role() -> Iterator[None]:
    """Act as ``manage.py ingest`` does, and prove that the role cannot read."""

    def become_ingest(**kwargs: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_ingest")

    become_ingest()
    connection_created.connect(become_ingest)  # after the fixture that makes every new connection the app's
    try:
        with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
            DecisionRow.objects.count()
        yield
    finally:
        connection_created.disconnect(become_ingest)
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_app")


def record(tenant: Made, **fields: Any) -> DecisionRecord:
    given = {
        "id": uuid.uuid4(),
        "tenant_id": tenant.id,
        "started_at": 1_790_000_000.5,
        "route": "chat",
        "outcome": "ok",
        "status": 200,
        "router_id": "r1",
        "config_version": 3,
        "candidates": (CandidateRecord(replica_id="x", replica_name="a", terms={"wait": 0.5}),),
    }
    return DecisionRecord(**{**given, **fields})


def send(client: redis.Redis, one: DecisionRecord, *, router: str = "r1", **fields: Any) -> None:
    """Append a record as a router does; ``fields`` replace the entry's own."""
    data = encode(one)
    entry: dict[Any, Any] = {"r": router, "t": str(one.tenant_id), "d": data, "m": authenticate(KEY, router, data), **fields}
    client.xadd(STREAM, entry)


def ingest(client: redis.Redis, consumer: str = "c1", **options: Any) -> Ingest:
    made = Ingest(client, records_key=KEY, consumer=consumer, block_s=0.001, backoff_s=(0.001, 0.01), **options)
    made.ensure_group()
    return made


def stored(tenant: Made) -> list[DecisionRow]:
    with tenant_scope(tenant.id):
        return list(DecisionRow.objects.order_by("started_at"))


def test_a_record_is_stored_and_acknowledged(client: redis.Redis, acorn: Made) -> None:
    """Columns for the lists, the whole record as JSON, and nothing left in the stream."""
    one = record(acorn, endpoint_id=uuid.uuid4(), replica_id="abc", ttft_s=0.25, prompt_tokens=100, cached_tokens=64)
    send(client, one)
    with ingest_role():
        assert ingest(client).turn() == 1
    (row,) = stored(acorn)
    assert (row.id, row.endpoint_id, row.replica_id, row.ttft_s, row.cached_tokens) == (one.id, one.endpoint_id, "abc", 0.25, 64)
    assert row.started_at.timestamp() == 1_790_000_000.5
    assert row.record["candidates"] == [{"replica_id": "x", "replica_name": "a", "terms": {"wait": 0.5}}]
    assert client.xlen(STREAM) == 0
    assert client.xpending(STREAM, GROUP)["pending"] == 0


def test_the_same_record_twice_is_one_row(client: redis.Redis, acorn: Made) -> None:
    """At least once may mean twice: in one batch, and in two."""
    one = record(acorn)
    send(client, one)
    send(client, one)
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
        send(client, one)
        consumer.turn()
    assert len(stored(acorn)) == 1
    assert client.xlen(STREAM) == 0


def test_records_of_other_tenants_land_with_their_tenant(client: redis.Redis, acorn: Made) -> None:
    birch = make("birch")
    send(client, record(acorn))
    send(client, record(birch))
    with ingest_role():
        ingest(client).turn()
    assert len(stored(acorn)) == len(stored(birch)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"m": b"x" * 32}, "not authentic"),
        ({"r": b"r2"}, "not authentic"),
        ({"r": b"\xff"}, "not authentic"),
        ({"d": b"not msgpack"}, "not authentic"),
        ({"t": str(uuid.UUID(int=1)).encode()}, "of another router or tenant than its entry says"),
    ],
)
def test_a_forged_entry_is_dropped_with_one_line(
    client: redis.Redis, acorn: Made, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    """Dropped, counted and acknowledged; the good ones beside it are stored. The log says how many and why, and nothing of their content."""
    good = record(acorn)
    send(client, good)
    send(client, record(acorn, endpoint="secret-endpoint"), **change)
    with ingest_role(), caplog.at_level(logging.WARNING, logger="routing.services.records"):
        consumer = ingest(client)
        consumer.turn()
    assert [row.id for row in stored(acorn)] == [good.id]
    assert [line.getMessage() for line in caplog.records] == [f"dropped 1 stream entries: 1 {reason}"]
    assert consumer.counts == {"stored": 1, reason: 1}
    assert client.xlen(STREAM) == 0


def test_an_authentic_entry_of_another_router_is_dropped(client: redis.Redis, acorn: Made) -> None:
    """A router signs with a key of its own, so it cannot write under another's name."""
    send(client, record(acorn, router_id="r1"), router="r2")
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
    assert stored(acorn) == []
    assert consumer.counts["of another router or tenant than its entry says"] == 1


def test_damage_under_a_good_mac_is_dropped(client: redis.Redis, acorn: Made) -> None:
    data = b"\xc1"
    client.xadd(STREAM, {"r": "r1", "t": str(acorn.id), "d": data, "m": authenticate(KEY, "r1", data)})
    client.xadd(STREAM, {"r": "r1"})
    send(client, record(acorn, started_at=1e300))
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
    assert consumer.counts == {"stored": 0, "malformed": 1, "incomplete": 1, "of no time that could be": 1}
    assert client.xlen(STREAM) == 0


def test_a_row_that_postgresql_refuses_costs_only_itself(client: redis.Redis, acorn: Made) -> None:
    """A tenant that does not exist and a number out of range: the rest of the batch is stored."""
    send(client, record(Made(uuid.uuid4(), "nobody")))
    good = record(acorn)
    send(client, good)
    send(client, record(acorn, prompt_tokens=2**40))
    with ingest_role():
        consumer = ingest(client)
        consumer.turn()
    assert [row.id for row in stored(acorn)] == [good.id]
    assert consumer.counts == {"stored": 1, "refused by the database": 2}
    assert client.xlen(STREAM) == 0


def test_what_json_cannot_hold_is_replaced(client: redis.Redis, acorn: Made) -> None:
    """A NUL in a client's model name and a NaN estimate are no reason to lose a record."""
    send(client, record(acorn, model="m\0x", expected_ttft_s=float("nan")))
    with ingest_role():
        ingest(client).turn()
    (row,) = stored(acorn)
    assert (row.record["model"], row.expected_ttft_s) == ("m\ufffdx", None)


def test_entries_of_a_dead_consumer_are_claimed(client: redis.Redis, acorn: Made) -> None:
    """Read and never acknowledged: another consumer takes them over once they have been idle."""
    one = record(acorn)
    send(client, one)
    ingest(client, "dead")
    client.xreadgroup(GROUP, "dead", {STREAM: ">"})
    with ingest_role():
        assert ingest(client, "patient", claim_idle_s=3600).turn() == 0
        assert ingest(client, "heir", claim_idle_s=0).turn() == 1
    assert [row.id for row in stored(acorn)] == [one.id]
    assert client.xpending(STREAM, GROUP)["pending"] == 0


def test_entries_trimmed_while_pending_are_counted(client: redis.Redis, acorn: Made) -> None:
    send(client, record(acorn))
    ingest(client, "dead")
    client.xreadgroup(GROUP, "dead", {STREAM: ">"})
    client.xtrim(STREAM, maxlen=0, approximate=False)
    with ingest_role():
        consumer = ingest(client, "heir", claim_idle_s=0)
        assert consumer.turn() == 0
    assert consumer.counts == {"trimmed": 1}


@contextmanager
def on_warning(act: Callable[[], None]) -> Iterator[None]:
    """Do something at the moment ingest says that what it needs is away."""

    class Act(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            act()

    handler = Act(logging.WARNING)
    records._log.addHandler(handler)
    try:
        yield
    finally:
        records._log.removeHandler(handler)


@pytest.fixture
def cut_postgresql(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[], None]]:
    """Take PostgreSQL away from this process: the connection is closed and a new one finds nobody. Returns what brings it back."""

    def cut() -> Callable[[], None]:
        host = connection.settings_dict["HOST"]
        monkeypatch.setitem(connection.settings_dict, "HOST", "/nowhere")
        connection.close()
        return lambda: monkeypatch.setitem(connection.settings_dict, "HOST", host)

    return cut


def test_postgresql_away_keeps_the_batch(client: redis.Redis, acorn: Made, cut_postgresql: Callable[[], Callable[[], None]]) -> None:
    """Retried until it is back; nothing is acknowledged before the commit."""
    send(client, record(acorn))
    pending_while_away: list[int] = []
    with ingest_role():
        consumer = ingest(client)
        bring_back = cut_postgresql()

        def away() -> None:
            pending_while_away.append(client.xpending(STREAM, GROUP)["pending"])
            if len(pending_while_away) == 3:
                bring_back()

        with on_warning(away):
            consumer.turn()
    assert pending_while_away == [1, 1, 1]
    assert len(stored(acorn)) == 1
    assert client.xlen(STREAM) == 0


def test_a_stop_while_postgresql_is_away_leaves_the_batch_pending(
    client: redis.Redis, acorn: Made, cut_postgresql: Callable[[], Callable[[], None]]
) -> None:
    """Not acknowledged, so the next process gets it."""
    send(client, record(acorn))
    consumer = ingest(client)
    bring_back = cut_postgresql()
    with on_warning(consumer.stop):
        consumer.run()
    bring_back()
    assert client.xpending(STREAM, GROUP)["pending"] == 1
    assert [one["name"] for one in client.xinfo_consumers(STREAM, GROUP)] == [b"c1"]


def test_valkey_away_is_waited_for(valkey_url: str, client: redis.Redis, acorn: Made) -> None:
    """A group that vanished with an unsaved Valkey, and a Valkey that does not answer: the run goes on, and leaves no name behind at its end."""
    send(client, record(acorn))
    turns, warnings = 0, 0

    def clock() -> float:
        nonlocal turns
        turns += 1
        if turns == 1:
            client.xgroup_destroy(STREAM, GROUP)
        elif turns == 2:
            client.client_pause(200, all=True)
        return 0.0

    def warned() -> None:
        nonlocal warnings
        warnings += 1

    with redis.Redis.from_url(valkey_url, socket_timeout=0.05, retry=Retry(NoBackoff(), 0)) as own, ingest_role():
        consumer = ingest(own, clock=clock)
        with on_warning(warned), watching(consumer, stored_at_least=1):
            consumer.run()
    assert warnings >= 2
    assert len(stored(acorn)) == 1
    assert client.xinfo_consumers(STREAM, GROUP) == []


@contextmanager
def watching(consumer: Ingest, *, stored_at_least: int) -> Iterator[None]:
    """Stop ``consumer`` once it has stored so much."""

    class Watched(Counter[str]):
        def __setitem__(self, name: str, value: int) -> None:
            super().__setitem__(name, value)
            if name == "stored" and value >= stored_at_least:
                consumer.stop()

    consumer.counts = Watched()
    yield


def test_a_batch_is_one_statement_for_each_table(client: redis.Redis, acorn: Made, django_assert_num_queries: Any) -> None:
    """One transaction with one INSERT for the records, one for what they add up to by minute, one by day; however many records."""
    for _ in range(50):
        send(client, record(acorn))
    with ingest_role():
        consumer = ingest(client)
        with django_assert_num_queries(5):  # with BEGIN and COMMIT
            assert consumer.turn() == 50
    assert len(stored(acorn)) == 50
    with tenant_scope(acorn.id):
        assert Tenant.objects.count() == 1


def sums(tenant: Made) -> tuple[int, int, int, int]:
    """Requests and input tokens, of the minutes and of the days."""
    with tenant_scope(tenant.id):
        by_minute = list(RollupRow.objects.filter(grain=0).values_list("requests", "prompt_tokens"))
        by_day = list(UsageRow.objects.values_list("requests", "input_tokens"))
    return sum(one for one, _ in by_minute), sum(two for _, two in by_minute), sum(one for one, _ in by_day), sum(two for _, two in by_day)


def accounts() -> tuple[int, int, int]:
    """The highest number seen, and how many were stored and refused."""
    rows = list(RecordAccount.objects.values_list("highest", "stored", "refused"))
    return max(one[0] for one in rows), sum(one[1] for one in rows), sum(one[2] for one in rows)


def test_a_record_is_added_up_once_however_often_it_comes(client: redis.Redis, acorn: Made) -> None:
    """Twice in a batch, again in another, and beside new ones."""
    one, two = record(acorn, prompt_tokens=100, boot_ms=7, serial=1), record(acorn, prompt_tokens=10, boot_ms=7, serial=2)
    with ingest_role():
        consumer = ingest(client)
        for batch in ((one, one), (one,), (two, one)):
            for each in batch:
                send(client, each)
            consumer.turn()
    assert sums(acorn) == (2, 110, 2, 110)
    assert accounts() == (2, 2, 0)
    assert consumer.counts == {"stored": 2, "repeated": 3}


def test_what_is_refused_is_in_no_sum_and_in_the_account(client: redis.Redis, acorn: Made) -> None:
    send(client, record(acorn, prompt_tokens=100, boot_ms=7, serial=1))
    send(client, record(acorn, prompt_tokens=2**40, boot_ms=7, serial=2))
    send(client, record(acorn, prompt_tokens=5, boot_ms=7, serial=3, started_at=9e9))
    send(client, record(acorn, prompt_tokens=20, boot_ms=7, serial=5))
    with ingest_role():
        ingest(client).turn()
    assert sums(acorn) == (2, 120, 2, 120)
    assert accounts() == (5, 2, 2)  # number 4 never came


def test_a_record_comes_back_whole(client: redis.Redis, acorn: Made) -> None:
    """Columns and document together are the record, without the numbers that are of the way only."""
    one = record(acorn, replica_id="abc", replica_name="a", ttft_s=0.25, prompt_tokens=100, key_id=uuid.uuid4(), error_code="x", boot_ms=3, serial=4)
    send(client, one)
    with ingest_role():
        ingest(client).turn()
    with tenant_scope(acorn.id):
        row, found = queries.decision(acorn.id, one.id)
    assert found == msgspec.structs.replace(one, boot_ms=0, serial=0)
    assert not {"id", "tenant_id", "serial", "prompt_tokens"} & set(row.record)
