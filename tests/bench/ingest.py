"""Ingest of decision records: how many a second, how far behind, and what a record costs on the wire and as a row.

    python -m tests.bench.ingest [--rate 2000] [--seconds 20] [--burst 20000] [--tenants 4] [--replicas 8]

Starts a PostgreSQL and a Valkey of its own, and ``manage.py ingest`` as the process that the product runs, with its role and ACL user. First a burst
is waiting when it starts: what it takes at most. Then records come at a steady rate. One in a hundred holds its candidates. PostgreSQL writes to disk
as the test services do (fsync off), so a slow disk is not in these figures. Prints numbers; asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from routing.core.cause import MISSES
from routing.core.record import AttemptRecord, CandidateRecord, CauseRecord, DecisionRecord, authenticate, encode
from tests import services

REPOSITORY = Path(__file__).parents[2]
BATCH = 200  # as routers send them
STREAM = "saltroute:records"
LOOK_S = 0.05
DRAIN_S = 120.0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class Makes:
    """Records as a router makes them: some tenants, keys and endpoints, a fleet of replicas."""

    tenants: list[uuid.UUID]
    replicas: int
    rng: random.Random
    serial: int = 0

    def __post_init__(self) -> None:
        self.ids = [self._id() for _ in range(self.replicas)]
        self.keys = {tenant: [self._id() for _ in range(5)] for tenant in self.tenants}
        self.endpoints = {tenant: [self._id() for _ in range(2)] for tenant in self.tenants}

    def _id(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def record(self, *, full: bool) -> DecisionRecord:
        """One request; with all candidates or none."""
        rng, tenant = self.rng, self.rng.choice(self.tenants)
        prompt = rng.randrange(200, 30_000)
        cached = prompt // 16 * 16 * rng.randrange(0, 10) // 10
        chosen = rng.randrange(self.replicas)
        self.serial += 1
        candidates = tuple(
            CandidateRecord(
                replica_id=str(one),
                replica_name=f"gpu-{place}",
                matched_tokens=cached,
                expected_cached_tokens=cached * 0.97,
                uncached_tokens=prompt - cached * 0.97,
                expected_ttft_s=rng.random(),
                score_s=rng.random(),
                queued_tokens=rng.random() * 10_000,
                in_flight=rng.randrange(8),
                evidence="event",
                evidence_age_s=rng.random() * 100,
                residency="exact",
                terms={"wait": rng.random(), "prefill": rng.random(), "pressure": rng.random(), "slo_guard": rng.random()},
            )
            for place, one in enumerate(self.ids)
        )
        return DecisionRecord(
            id=self._id(),
            tenant_id=tenant,
            started_at=time.time(),
            route="chat",
            outcome="ok",
            status=200,
            router_id="bench",
            config_version=12,
            request_id=f"req-{rng.getrandbits(64):x}",
            endpoint_id=rng.choice(self.endpoints[tenant]),
            endpoint="llama-chat",
            key_id=rng.choice(self.keys[tenant]),
            scope_id=tenant,
            namespace=f"ns-{rng.getrandbits(128):032x}",
            model="llama-3.1-8b",
            policy="ettft",
            policy_version=3,
            stream=True,
            replica_id=str(self.ids[chosen]),
            replica_name=f"gpu-{chosen}",
            matched_tokens=cached,
            expected_cached_tokens=cached * 0.97,
            estimated_prompt_tokens=prompt,
            prompt_tokens=prompt,
            completion_tokens=rng.randrange(1, 800),
            cached_tokens=cached,
            expected_ttft_s=rng.random(),
            ttft_s=rng.random(),
            e2e_s=1 + rng.random() * 10,
            decide_s=rng.random() / 1000,
            slo_ttft_s=2.0,
            considered=self.replicas,
            best_matched_tokens=cached,
            prefill_tokens_per_s=8000 + rng.random(),
            boot_ms=1_790_000_000_000,
            serial=self.serial,
            cause=CauseRecord(
                parts_us={
                    "ideal": rng.randrange(10**5),
                    "router": rng.randrange(10**4),
                    f"missed_{(miss := rng.choice(MISSES))}": rng.randrange(10**6),
                    "generation": rng.randrange(10**7),
                },
                main="generation",
                missed_tokens={miss: max(0, prompt - cached - 16)},
                warm_tokens=max(0, prompt - 16),
                own_pool=True,
                blind_replica_id=str(self.ids[0]),
                blind_replica_name="gpu-0",
                blind_ttft_s=rng.random(),
            ),
            attempts=(AttemptRecord(replica_id=str(self.ids[chosen]), status=200, duration_s=3 + rng.random()),),
            candidates=candidates if full else (),
        )

    def entries(self, count: int, key: bytes) -> Iterator[dict[str, bytes | str]]:
        """Stream entries, signed."""
        for number in range(count):
            one = self.record(full=number % 100 == 0)
            data = encode(one)
            yield {"r": "bench", "t": str(one.tenant_id), "d": data, "m": authenticate(key, "bench", data)}


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """The servers, the ingest process, and what is read of both."""

    def __init__(self, tenants: int) -> None:
        self.services = services.prepare()
        self.services.start_postgres()
        self.services.start_valkey()
        self._root = self.services.postgres.data.parent if self.services.postgres is not None else self.services.root
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings.django"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from tests.routing.services.made import make

        self.tenants = [make(f"tenant-{number}").id for number in range(tenants)]
        self.client = redis.Redis.from_url(self.services.valkey_url())
        self.process: subprocess.Popen[str] | None = None
        self.key = self.services.held.file("records.key").read_bytes()

    def start(self) -> None:
        """Start ingest as the product does."""
        env = {
            "PATH": os.environ["PATH"],
            "DATABASE_URL": self.services.role_url("saltroute_ingest"),
            "VALKEY_URL": self.services.valkey_url("ingest"),
            "SALTROUTE_RECORDS_KEY_FILE": str(self.services.held.file("records.key")),
            "SALTROUTE_SECRET_KEY_FILE": str(self.services.held.file("django.key")),
        }
        self.process = subprocess.Popen([sys.executable, "manage.py", "ingest"], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)

    def add(self, entries: list[dict[str, bytes | str]]) -> None:
        pipe = self.client.pipeline(transaction=False)
        for entry in entries:
            pipe.xadd(STREAM, entry)  # type: ignore[arg-type]  # the stubs know one type of field only
        pipe.execute()

    def waiting(self) -> int:
        return int(self.client.xlen(STREAM))

    def drained(self) -> float:
        """Wait until the stream is empty; returns for how long."""
        began_s = time.monotonic()
        while self.waiting():
            if time.monotonic() - began_s > DRAIN_S or self.process is None or self.process.poll() is not None:
                raise SystemExit("ingest did not get to the end")
            time.sleep(LOOK_S)
        return time.monotonic() - began_s

    def cpu_s(self) -> tuple[float, float]:
        """Processor time of the ingest process so far, and of all processes of PostgreSQL."""
        if self.process is None:
            return 0.0, 0.0
        database = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name = stat.read_text().partition("(")[2].partition(")")[0]
                database += _cpu_s(stat) if name == "postgres" and self._root in Path(os.readlink(stat.parent / "cwd")).parents else 0.0
            except OSError:
                continue  # ended meanwhile, or somebody else's
        return _cpu_s(Path(f"/proc/{self.process.pid}/stat")), database

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        from django.db import connection

        from tenants.scoping import tenant_scope

        found: list[tuple[object, ...]] = []
        for tenant in self.tenants:
            with tenant_scope(tenant), connection.cursor() as cursor:
                cursor.execute(statement)
                found += cursor.fetchall()
        return found

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            said, _ = self.process.communicate(timeout=30)
            _say("ingest, an idle wait counts as reading: " + "; ".join(said.split("\n")).strip("; "))
        from django.db import connection

        connection.close()
        self.client.close()
        self.services.stop()


def sizes(makes: Makes) -> None:
    """What a record costs on the wire."""
    full, short = (len(encode(makes.record(full=full))) for full in (True, False))
    mean = 0.99 * short + 0.01 * full
    _say(f"wire, {makes.replicas} replicas: {full} bytes with candidates, {short} without; {mean:.0f} on average (before: {full} each)")


def _each(now: tuple[float, float], before: tuple[float, float], records: int) -> str:
    ingest_us, database_us = ((one - other) / records * 1e6 for one, other in zip(now, before, strict=True))
    return f"processor time for each {ingest_us:.0f} us in ingest, {database_us:.0f} us in PostgreSQL"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rate", 2000), ("seconds", 20), ("burst", 20_000), ("tenants", 4), ("replicas", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    bench = Bench(options.tenants)
    try:
        makes = Makes(bench.tenants, options.replicas, random.Random(7))
        sizes(makes)
        makes.serial = 0
        burst = list(makes.entries(options.burst, bench.key))
        for at in range(0, len(burst), BATCH):
            bench.add(burst[at : at + BATCH])
        bench.start()
        while bench.waiting() == options.burst:
            time.sleep(0.01)
        began_cpu_s = bench.cpu_s()
        took_s = bench.drained()
        load = os.getloadavg()[0]
        _say(f"load of the machine {load:.1f}: above 3 the rates are of what others leave, the processor times are not")
        _say(f"burst of {options.burst}: {options.burst / took_s:,.0f} records/s; {_each(bench.cpu_s(), began_cpu_s, options.burst)}")
        steady = list(makes.entries(options.rate * options.seconds, bench.key))
        per_look = max(1, round(options.rate * LOOK_S))
        behind: list[int] = []
        began_s, began_cpu_s = time.monotonic(), bench.cpu_s()
        for number, at in enumerate(range(0, len(steady), per_look), start=1):
            bench.add(steady[at : at + per_look])
            behind.append(bench.waiting())
            time.sleep(max(0.0, began_s + number * LOOK_S - time.monotonic()))
        came_s = time.monotonic() - began_s
        lag_s = bench.drained()
        cost = _each(bench.cpu_s(), began_cpu_s, len(steady))
        behind.sort()
        p50, p99 = behind[len(behind) // 2], behind[len(behind) * 99 // 100]
        _say(
            f"steady: {len(steady) / came_s:,.0f} records/s came for {came_s:.0f} s; behind p50 {p50 / options.rate * 1000:.0f} ms, "
            f"p99 {p99 / options.rate * 1000:.0f} ms; {lag_s:.2f} s to the end after the last; {cost}"
        )
        report(bench, makes.serial)
    finally:
        bench.stop()


def report(bench: Bench, sent: int) -> None:
    """Whether all arrived, and what a row costs."""
    from routing.services.retention import accounts

    stored = sum(int(str(row[0])) for row in bench.sql("SELECT count(*) FROM routing_decisionrow"))
    used = sum(int(str(row[0])) for row in bench.sql("SELECT coalesce(sum(requests), 0) FROM routing_usagerow"))
    (account,) = accounts()
    _say(f"sent {sent}, stored {stored}, in usage {used}, missing {account.missing}")
    heap, whole = (
        sum(int(str(row[0])) for row in bench.sql(f"SELECT sum({size}(inhrelid)) FROM pg_inherits WHERE inhparent = 'routing_decisionrow'::regclass"))
        / len(bench.tenants)
        for size in ("pg_table_size", "pg_total_relation_size")
    )
    rollup_rows = sum(int(str(row[0])) for row in bench.sql("SELECT count(*) FROM routing_rolluprow"))
    _say(f"row: {heap / stored:.0f} bytes, {whole / stored:.0f} with indexes; {rollup_rows} rows of rollups before folding")
    documents = bench.sql(
        "SELECT coalesce(avg(pg_column_size(record)) FILTER (WHERE record ? 'candidates'), 0), "
        "coalesce(avg(pg_column_size(record)) FILTER (WHERE NOT record ? 'candidates'), 0) FROM routing_decisionrow"
    )
    full, short = (sum(float(str(row[place])) for row in documents) / len(documents) for place in (0, 1))
    _say(f"document: {full:.0f} bytes with candidates (compressed by PostgreSQL), {short:.0f} without")


if __name__ == "__main__":
    main()
