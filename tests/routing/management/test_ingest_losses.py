"""Five thousand records on their way while ingest is killed and Valkey loses its memory: each is stored once, or counted as missing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo
from redis.asyncio import Redis

from deploy.local.places import Home, short_temporary_home
from deploy.local.valkey import USERS, Valkey
from routing.core.record import DecisionRecord
from routing.core.rollup import Usage
from routing.dataplane.metrics import Metrics
from routing.dataplane.telemetry import Telemetry
from routing.models import DecisionRow, RollupRow
from routing.services import retention, usage
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made, make
from tests.routing.services.rows import secret
from tests.services import Services

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]  # four starts of a process
REPOSITORY = Path(__file__).parents[3]
RECORDS = 5000
STORED = RECORDS - 500 - 300  # lost with Valkey's memory, dropped at a full queue
QUEUE = 1500  # records: what one tenant alone may have of a queue of BOUND
BOUND = 1714
DEADLINE_S = 90.0
PASSWORDS = {user: f"password of {user}" for user in USERS}


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A Valkey of this test's own, which forgets everything when it restarts."""
    home = Home(short_temporary_home("srl-"))
    home.make()
    server = Valkey(home, PASSWORDS, persistent=False)
    server.start()
    yield server
    server.stop()


def url(server: Valkey, user: str) -> str:
    return server.url(user).replace("{password}", PASSWORDS[user])


@pytest.fixture
def ingest(services: Services, valkey: Valkey) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start ``manage.py ingest``; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": make_conninfo(services.role_url("saltroute_ingest"), dbname=connection.settings_dict["NAME"]),
        "VALKEY_URL": url(valkey, "ingest"),
        "SALTROUTE_RECORDS_KEY_FILE": str(services.held.file("records.key")),
        "SALTROUTE_SECRET_KEY_FILE": str(services.held.file("django.key")),
        "INGEST_CLAIM_IDLE_S": "0.2",
    }

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "manage.py", "ingest"], cwd=REPOSITORY, env=env))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def rows(tenant: Made) -> int:
    with tenant_scope(tenant.id):
        return DecisionRow.objects.count()


def until(condition: Callable[[], bool]) -> None:
    """Look again until it holds."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)  # between two looks; nothing depends on its length


class Sender:
    """A router's way of sending records, and all that it ever made."""

    def __init__(self, tenant: Made, valkey_url: str, runner: asyncio.Runner) -> None:
        self.made: dict[uuid.UUID, DecisionRecord] = {}
        self.metrics = Metrics()
        self.telemetry = Telemetry(router_id="r1", records_key=secret("RECORDS_KEY"), queue_bound=BOUND, stream_maxlen=100_000, metrics=self.metrics)
        self._tenant, self._url, self._runner = tenant, valkey_url, runner

    def make(self, count: int) -> None:
        """Put records into the router's queue."""
        for _ in range(count):
            number = len(self.made)
            one = DecisionRecord(
                id=uuid.uuid4(),
                tenant_id=self._tenant.id,
                started_at=time.time(),
                route="chat",
                outcome="ok",
                status=200,
                router_id="r1",
                config_version=1,
                key_id=uuid.UUID(int=number % 7),
                prompt_tokens=number,
                cached_tokens=number // 2,
                completion_tokens=3,
                prefill_tokens_per_s=5000.0,
            )
            self.made[one.id] = one
            self.telemetry.add(one)

    def send(self) -> bool:
        """Send what is queued; False: Valkey is away."""

        async def sent() -> bool:
            async with Redis.from_url(self._url) as client:
                while self.telemetry.queued():
                    if not await self.telemetry.send_batch(client):
                        return False
            return True

        return self._runner.run(sent())


def test_what_was_sent_is_stored_once_or_missing(transactional_db: None, valkey: Valkey, ingest: Callable[[], subprocess.Popen[bytes]]) -> None:
    acorn = make("acorn")
    with asyncio.Runner() as runner:
        router = Sender(acorn, url(valkey, "router"), runner)
        first = ingest()
        router.make(1500)
        assert router.send()
        until(lambda: rows(acorn) > 0)
        first.kill()  # with whatever batch it has in hand
        first.wait(10)
        router.make(1000)
        assert router.send()
        second = ingest()
        until(lambda: rows(acorn) == 2500)  # what the first had read and not acknowledged is taken over
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
        router.make(500)
        assert router.send()
        valkey.stop()
        router.make(1800)  # 300 find the queue full
        assert router.telemetry.queued() == QUEUE
        assert not router.send()
        valkey.start()  # and knows nothing of the 500
        third = ingest()
        assert router.send()
        router.make(200)
        assert router.send()
        until(lambda: rows(acorn) == STORED)
        third.send_signal(signal.SIGTERM)
        assert third.wait(30) == 0
    assert len(router.made) == RECORDS
    assert "saltroute_records_dropped_total 300.0" in router.metrics.page().decode()
    check(acorn, router.made)


def check(acorn: Made, made: dict[uuid.UUID, DecisionRecord]) -> None:
    """Stored and missing are all that were sent, and every sum is that of the rows."""
    (account,) = retention.accounts()
    assert (account.numbered, account.stored, account.refused, account.missing) == (RECORDS, STORED, 0, RECORDS - STORED)
    with tenant_scope(acorn.id):
        stored = [made[row_id] for row_id in DecisionRow.objects.values_list("id", flat=True)]
        until_day = datetime.now(UTC).date()
        found = usage.report(acorn.id, since=until_day - timedelta(days=1), until=until_day)
        by_minute = sum(RollupRow.objects.filter(grain=0).values_list("requests", flat=True))
    saved_us = sum(round(one.cached_tokens / 5000.0 * 1e6) for one in stored if one.cached_tokens)
    assert found.total == Usage(
        requests=STORED,
        input_tokens=sum(one.prompt_tokens or 0 for one in stored),
        cached_tokens=sum(one.cached_tokens or 0 for one in stored),
        output_tokens=STORED * 3,
        saved_us=saved_us,
    )
    assert by_minute == STORED
