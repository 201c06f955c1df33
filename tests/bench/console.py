"""The console over a busy tenant: how long the server takes for each page, and how many queries it makes.

    python -m tests.bench.console [--endpoints 1000] [--days 7] [--replicas 16] [--decisions 20000] [--rounds 5]

Starts a PostgreSQL and a Valkey of its own and writes rollups as they look after folding, of endpoints that all had requests in every step, then asks
each page (as an owner, without a network) and prints the processor time that web and PostgreSQL spent, which is what passes on a machine that is not
busy, and the time that passed here. Then the plots of pages that have some, in a browser (``console_plots``). Prints numbers; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests import services
from tests.bench import console_plots

NO_ARGUMENT = ("overview", "pools", "endpoints", "policies", "isolation", "reconciliation", "alerts", "usage", "keys", "causes", "decisions", "audit")
OTHERS = ("playground", "traces", "quotas", "members", "namespaces")
RANGES = ("15m", "1h", "6h", "24h", "7d")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Bench:
    """The servers and one tenant with everything."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.services = services.prepare()
        self.services.start_postgres()
        self.services.start_valkey()
        self._root = self.services.postgres.data.parent if self.services.postgres is not None else self.services.root
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings.django"
        import django
        from django.conf import settings
        from django.core.management import call_command

        django.setup()
        settings.ALLOWED_HOSTS = ["*"]
        settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
        call_command("migrate", verbosity=0)
        from tests.console import rows

        self.rows = rows
        self.made = rows.tenant("acorn", replicas=tuple(f"gpu-{number}" for number in range(options.replicas)))
        person = rows.person("ada@example.com")
        rows.member(self.made.tenant_id, person, "owner")
        from django.test import Client

        self.client = Client()
        self.client.force_login(person)

    def stop(self) -> None:
        from django.db import connection

        connection.close()
        self.services.stop()

    def fill(self) -> None:
        """Endpoints, their rollups at every grain, states of replicas, decisions, changes."""
        from routing.models import Endpoint
        from routing.services import record_store
        from tenants.scoping import tenant_scope

        rng, made = random.Random(7), self.made
        with tenant_scope(made.tenant_id):
            first = Endpoint.objects.get()
            copies = []
            for number in range(1, self.options.endpoints):
                copy = Endpoint.objects.get()
                copy.id, copy.name = uuid.UUID(int=rng.getrandbits(128), version=4), f"endpoint-{number:04}"
                copy._state.adding = True
                copies.append(copy)
            Endpoint.objects.bulk_create(copies)
            self.endpoints = [first.id, *(one.id for one in copies)]
            self._rollups()
            now = datetime.now(UTC)
            for at in range(0, self.options.decisions, 1000):
                batch = [
                    self.rows.record(
                        made,
                        endpoint_id=rng.choice(self.endpoints),
                        started_at=(now - timedelta(seconds=rng.random() * 86_400)).timestamp(),
                        candidates=(),
                    )
                    for _ in range(min(1000, self.options.decisions - at))
                ]
                record_store.insert_rows("routing_decisionrow", record_store._DECISION, [record_store._row(one) for one in batch])
            self._states(now)

    def _rollups(self) -> None:
        """One row of each step for each endpoint, as wide as its age wants it; written by one statement for each width."""
        from routing.core.rollup import GRAINS, WIDTHS_OF

        now_s, count = int(time.time()), 0
        for grain in GRAINS:
            edges = [(0, 60), *reversed(WIDTHS_OF[grain])]
            for place, (from_s, width_s) in enumerate(edges):
                until_s = edges[place + 1][0] if place + 1 < len(edges) else self.options.days * 86_400
                count += self._steps(grain, begin_s=now_s - until_s, end_s=now_s - from_s, width_s=width_s)
        _say(f"{count:,} rows of rollups for {len(self.endpoints):,} endpoints and {self.options.days} days")

    def _steps(self, grain: str, *, begin_s: int, end_s: int, width_s: int) -> int:
        """Rows of one grain and width: the same sums in each, of forty requests."""
        from django.db import connection

        from routing.core.record import CauseRecord
        from routing.core.rollup import GRAINS, SUMS, rollups

        parts_us = {"ideal": 100_000, "generation": 900_000, "missed_evicted": 4000}
        cause = CauseRecord(parts_us=parts_us, main="generation", missed_tokens={"evicted": 77}, warm_tokens=1190, own_pool=True)
        sample = [self.rows.record(self.made, cause=cause, ttft_s=random.Random(number).lognormvariate(-1.5, 0.8)) for number in range(40)]
        (found,) = rollups(sample).values()
        each = grain in ("detail", "endpoint")
        values = {
            "tenant_id": self.made.tenant_id,
            "width_s": width_s,
            "scope_id": self.made.root_scope_id if grain in ("detail", "scope") else None,
            "replica_id": str(self.made.replica_ids[0]) if grain == "detail" else "",
            "outcome": "ok",
            "grain": GRAINS.index(grain),
            **{name: getattr(found, name) for name in SUMS},
            "codes": "{}",
            "causes": json.dumps(found.causes.document()),
            "histograms": found.encoded_histograms(),
        }
        source = "unnest(%s::uuid[]) AS endpoint_id" if each else "(SELECT NULL::uuid AS endpoint_id) one"
        names = ", ".join(values)
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO routing_rolluprow (id, created_at, start_at, endpoint_id, {names})"
                f" SELECT gen_random_uuid(), now(), to_timestamp(start_s), endpoint_id, {', '.join(['%s'] * len(values))}"
                f" FROM generate_series(%s::bigint, %s::bigint, %s) AS start_s, {source}",
                [*values.values(), -(-begin_s // width_s) * width_s, end_s // width_s * width_s - 1, width_s, *([self.endpoints] if each else [])],
            )
            return int(cursor.rowcount)

    def _states(self, now: datetime) -> None:
        from routing.core.replica_state import ReplicaState
        from routing.services import record_store

        states = [
            ReplicaState(
                id=uuid.uuid4(),
                tenant_id=self.made.tenant_id,
                replica_id=replica_id,
                router_id=router,
                started_at=(now - timedelta(minutes=minutes)).timestamp(),
                observed_us=60_000_000,
                busy_us=30_000_000,
                event_us=60_000_000,
                evicted_blocks=100,
                kv_used_ppm=600_000,
                resident_blocks=5000,
                distinct_blocks=4000,
            )
            for replica_id in self.made.replica_ids
            for router in ("r1", "r2")
            for minutes in [*range(120), *range(120, 1500, 10), *range(1500, self.options.days * 1440, 60)]
        ]
        for at in range(0, len(states), 2000):
            record_store.store_states(states[at : at + 2000])
        _say(f"{len(states):,} rows of states of {len(self.made.replica_ids)} replicas")

    def shown(self, path: str) -> str:
        """A path with letters in place of ids."""
        made = self.made
        return (
            path.replace(str(made.endpoint_id), "E")
            .replace(str(made.root_scope_id), "S")
            .replace(str(made.replica_ids[0]), "R")
            .replace(str(made.policy_id), "P")
        )

    def ask(self, path: str) -> Asked:
        """Ask for a page some times."""
        from django.db import connection

        queries = 0

        def count(execute: Any, *given: Any) -> Any:
            nonlocal queries
            queries += 1
            return execute(*given)

        took: list[float] = []
        spent: list[float] = []
        size = 0
        for number in range(self.options.rounds + 1):
            began, web_s, database_s = time.perf_counter(), time.process_time(), self._database_s()
            with connection.execute_wrapper(count):
                answer = self.client.get(path)
            if answer.status_code != 200:
                raise SystemExit(f"{path}: {answer.status_code}")
            size = len(answer.content)
            if number:  # the first warms caches
                took.append((time.perf_counter() - began) * 1000)
                spent.append((time.process_time() - web_s + self._database_s() - database_s) * 1000)
        return Asked(sorted(took)[len(took) // 2], sum(spent) / len(spent), queries // (self.options.rounds + 1), size)

    def _database_s(self) -> float:
        """Processor time of all processes of PostgreSQL, those that have ended since included: a request's connection ends with it."""
        spent = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text()
                if "(postgres)" in fields and self._root in Path(os.readlink(stat.parent / "cwd")).parents:
                    after = fields.rpartition(")")[2].split()
                    spent += sum(int(after[place]) for place in (11, 12, 13, 14))
            except OSError:
                continue
        return spent / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Asked:
    """A page: median time and mean processor time of web and database together, in ms; queries; bytes."""

    median_ms: float
    processor_ms: float
    queries: int
    size: int


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("endpoints", 1000), ("days", 7), ("replicas", 16), ("decisions", 20_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    bench = Bench(parser.parse_args())
    try:
        bench.fill()
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")
            cursor.execute("ANALYZE")
        base, made = "/t/acorn", bench.made
        paths = [base, *(f"{base}/{name}" for name in (*NO_ARGUMENT[1:], *OTHERS))]
        paths += [f"{base}?range={name}" for name in RANGES]
        paths += [f"{base}?range={name}&endpoint={made.endpoint_id}" for name in RANGES]
        paths += [f"{base}?range=7d&scope={made.root_scope_id}", f"{base}?range=7d&scope={made.root_scope_id}&endpoint={made.endpoint_id}"]
        paths += [f"{base}/causes?by={by}&range={span}" for by in ("endpoint", "scope", "hour") for span in ("1h", "24h", "7d")]
        paths += [f"{base}/causes?endpoint={made.endpoint_id}&range=7d", f"{base}/overview/replicas?range=7d"]
        paths += [f"{base}/policies/{made.policy_id}{rest}" for rest in ("", "/edit", "/versions/1/activate")]
        paths += [f"{base}/endpoints/{made.endpoint_id}/{name}" for name in ("trial", "trial/write", "dry-run")]
        paths += [f"{base}/endpoints/{made.endpoint_id}", *(f"{base}/replicas/{made.replica_ids[0]}?range={name}" for name in ("1h", "7d"))]
        for path in dict.fromkeys(paths):
            one = bench.ask(path)
            late = "  OVER" if one.processor_ms > 300 else ""
            spent = f"{one.processor_ms:7.0f} ms of processors, {one.median_ms:6.0f} ms passed"
            _say(f"{bench.shown(path):44} {spent}, {one.queries:3} queries, {one.size / 1000:6.0f} kB{late}")
        plotted = [f"{base}?range={name}" for name in ("1h", "7d")]
        plotted += [f"{base}?range=7d&endpoint={made.endpoint_id}", f"{base}/replicas/{made.replica_ids[0]}?range=7d"]
        cookies = {name: one.value for name, one in bench.client.cookies.items()}
        console_plots.measure({bench.shown(path): path for path in plotted}, cookies, _say)
        _say(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: above 2 the times are of what others leave")
    finally:
        bench.stop()


if __name__ == "__main__":
    main()
