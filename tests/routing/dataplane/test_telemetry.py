"""Records wait for a Valkey that is away, in order, within a bound, and every one that is lost is counted."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import cast

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from routing.core import record
from routing.core.record import DecisionRecord
from routing.dataplane.metrics import Metrics
from routing.dataplane.outlet import BATCH
from routing.dataplane.telemetry import FULL_PER_S, STREAM, Telemetry
from tests.services import Services


def _telemetry(bound: int = 1000) -> tuple[Telemetry, Metrics]:
    metrics = Metrics()
    return Telemetry(router_id="r", records_key=b"k", queue_bound=bound, stream_maxlen=100_000, metrics=metrics), metrics


def _record(number: int) -> DecisionRecord:
    return DecisionRecord(
        id=uuid.UUID(int=number), tenant_id=uuid.UUID(int=1), started_at=0.0, route="r", outcome="ok", status=200, router_id="r", config_version=1
    )


@pytest.fixture
async def away() -> AsyncIterator[Redis]:
    async with Redis.from_url("redis://127.0.0.1:1/0", retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
async def live(valkey_url: str, services: Services) -> AsyncIterator[Redis]:
    """Valkey as a router may use it."""
    async with Redis.from_url(services.valkey_url("router")) as client:
        yield client


async def test_what_could_not_be_sent_is_sent_later_once_and_in_order(away: Redis, live: Redis, valkey_url: str) -> None:
    telemetry, metrics = _telemetry()
    for number in range(BATCH + 50):
        telemetry.add(_record(number))
    assert await telemetry.send_batch(away) is False
    assert telemetry.queued() == BATCH + 50
    while telemetry.queued():
        assert await telemetry.send_batch(live)
    async with Redis.from_url(valkey_url) as reader:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await reader.xrange(STREAM))
    assert [record.decode(fields[b"d"]).id.int for _, fields in entries] == list(range(BATCH + 50))
    assert f"saltroute_records_sent_total {float(BATCH + 50)}" in metrics.page().decode()


async def test_what_is_left_at_exit_is_counted(away: Redis) -> None:
    telemetry, metrics = _telemetry(bound=5)
    for number in range(8):
        telemetry.add(_record(number))
    assert [one.id.int for one in telemetry.waiting()] == [0, 1, 2, 3, 4]
    await telemetry.flush(away, within_s=1.0)
    assert "saltroute_records_dropped_total 8.0" in metrics.page().decode()


async def test_an_exit_with_a_live_valkey_loses_nothing(live: Redis) -> None:
    telemetry, metrics = _telemetry()
    for number in range(3 * BATCH):
        telemetry.add(_record(number))
    await telemetry.flush(live, within_s=10.0)
    assert telemetry.queued() == 0
    assert "saltroute_records_dropped_total 0.0" in metrics.page().decode()


async def test_every_record_takes_a_number_dropped_ones_too() -> None:
    """So that ingest sees from the gaps how many never came."""
    telemetry, _ = _telemetry(bound=2)
    for number in range(3):
        telemetry.add(_record(number))
    telemetry._queue.bound = telemetry._shares.whole = 3
    telemetry.add(_record(3))
    assert [one.serial for one in telemetry.waiting()] == [1, 2, 4]
    assert len({one.boot_ms for one in telemetry.waiting()}) == 1
    assert telemetry.waiting()[0].boot_ms > 0


async def test_full_records_are_bounded_and_the_shortened_ones_counted() -> None:
    """An outage in which every request fails fills no stream with candidates."""
    telemetry, metrics = _telemetry()
    failed = msgspec.structs.replace(_record(9999), outcome="upstream_error")
    kept = sum(telemetry.keeps_candidates(failed, asked=False) for _ in range(1000))
    assert FULL_PER_S <= kept < 1000
    assert f'saltroute_records_shortened_total{{why="error"}} {float(1000 - kept)}' in metrics.page().decode()
    assert not telemetry.keeps_candidates(_record(9999), asked=False)
