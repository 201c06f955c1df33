"""Is every request accounted for when what stands behind the router is killed, restarted and frozen on the way?

    make chaos [BENCH_ARGS="--count 100000 --connections 32 --record-queue 20000"]

The whole product by its own supervisor in a home of its own: simulated engines, router, ingest, workers, embedded PostgreSQL and Valkey. Several
clients send short requests of six keys in two tenants, one in fifty for a model that is not there. Meanwhile ingest is killed with entries in hand,
the worker that folds sums is killed, Valkey is restarted, killed and frozen, PostgreSQL is killed. Then records, the accounts of what was lost,
usage and rollups are held against what the clients were told, to the last token (:mod:`tests.bench.chaos_sums`).

Exit code 1 if anything does not add up. Requests a second are printed; they are those of router, engines, clients and all the rest on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx2 as httpx
import psycopg
import redis
from psycopg.conninfo import make_conninfo

from deploy.local.postgres import Postgres
from deploy.local.roles import DEFAULT_DATABASE
from deploy.local.secrets import POSTGRES_ADMIN, Secrets
from deploy.local.valkey import Valkey
from routing.services.records import GROUP, STREAM
from tests.bench.chaos_sums import Account, Answer, Line, account, lines
from tests.product import Product, fresh_home, remove

ANSWER_S = 60.0
RUN_S = 7200.0
FULL_S = 60.0
REVIVED_S = 90.0
SETTLED_S = 240.0
LOOK_S = 0.05
IN_HAND_S = 15.0
UNKNOWN_MODEL_EVERY = 50
WORDS = ("salt", "caravan", "desert", "harbour", "amber", "ledger", "tariff", "merchant", "camel", "river", "dune", "market")


# -- clients -----------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """Clients that ask one short question after another until ``count`` are asked; what they were told is in ``told``, by decision."""

    url: str
    keys: Sequence[tuple[str, str]]  # the key, and a model that it may use
    count: int
    told: dict[UUID, Answer] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)  # 0: no answer
    asked: int = 0
    twice: int = 0

    @property
    def answered(self) -> int:
        return self.statuses.total()

    async def run(self, connections: int) -> None:
        await asyncio.gather(*(self._client() for _ in range(connections)))

    async def _client(self) -> None:
        while self.asked < self.count:
            try:
                async with _connection(self.url) as (reader, writer):
                    while self.asked < self.count:
                        number, self.asked = self.asked, self.asked + 1
                        writer.write(self._request(number))
                        async with asyncio.timeout(ANSWER_S):
                            self._note(*await _answer(reader))
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.statuses[0] += 1

    def _note(self, decision: UUID, answer: Answer) -> None:
        self.statuses[answer.status] += 1
        self.twice += decision in self.told
        self.told[decision] = answer

    def _request(self, number: int) -> bytes:
        key, model = self.keys[number % len(self.keys)]
        topic = number // len(self.keys) % len(WORDS)
        text = f"{' '.join(WORDS[topic:] + WORDS[:topic])} {WORDS[topic]} " * 2 + f"question {number}"
        wanted = "not-there" if number % UNKNOWN_MODEL_EVERY == UNKNOWN_MODEL_EVERY - 1 else model
        body = json.dumps({"model": wanted, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[UUID, Answer]:
    """One answer that says how long it is.

    Raises:
        IncompleteReadError: the connection ended.
    """
    first, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    used = body.get("usage") or {}
    cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    status = int(first.split(" ")[1])
    return UUID(headers["x-saltroute-decision"]), Answer(status, used.get("prompt_tokens", 0), cached, used.get("completion_tokens", 0))


# -- what is done to the product ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blow:
    """When ``share`` of the requests are answered, ``what`` is done to the child ``whom``."""

    share: float
    what: str  # kill, stop (it may write out what it has) or freeze
    whom: str
    frozen_s: float = 20.0
    until_dropped: bool = False  # and frozen on until the router has dropped a record


BLOWS = (
    Blow(0.10, "kill", "ingest"),
    Blow(0.20, "kill", "celery-bulk"),
    Blow(0.30, "stop", "valkey"),
    Blow(0.40, "kill", "valkey"),
    Blow(0.50, "freeze", "valkey"),
    Blow(0.50, "kill", "ingest"),  # with what waited meanwhile in hand
    Blow(0.70, "kill", "postgres"),
    Blow(0.80, "kill", "celery-bulk"),
    Blow(0.90, "kill", "ingest"),
)


@dataclass
class Stage:
    """A running product and the ways into it that only its owner has."""

    product: Product

    @property
    def _held(self) -> Secrets:
        return Secrets(self.product.home.secrets)

    def keys(self) -> list[tuple[str, str]]:
        """Inference keys of the demo, each with a model; those of a tenant with a pool of its own once for each model."""
        found = {path.name.removeprefix("demo_"): path.read_text().strip() for path in sorted(self.product.home.secrets.glob("demo_*_KEY"))}
        own = [(key, "llama-private") for name, key in found.items() if name.startswith("ACME") and self.product.model and self._private()]
        return [(key, "llama-chat") for key in found.values()] + own

    def _private(self) -> bool:
        return "llama-private" in (self.product.home.root / "demo.yaml").read_text()

    @contextmanager
    def database(self) -> Iterator[psycopg.Connection[Any]]:
        url = Postgres(self.product.home, admin_password=self._held.password(POSTGRES_ADMIN)).admin_url
        with psycopg.connect(make_conninfo(url, dbname=DEFAULT_DATABASE), connect_timeout=30) as connection:
            yield connection

    def valkey(self) -> redis.Redis:
        held = self._held.valkey_passwords()
        url = Valkey(self.product.home, held).url("admin").replace("{password}", held["admin"])
        return redis.Redis.from_url(url, socket_timeout=5)

    def counters(self) -> tuple[int, int]:
        """Records that the router wrote, and those that it dropped."""
        said = self._records()
        return said["sent_total"], said["dropped_total"]

    def queued(self) -> int:
        """Records that the router has yet to write."""
        return self._records()["queued"]

    def _records(self) -> dict[str, int]:
        page = httpx.get(f"http://127.0.0.1:{self.product.ports['ROUTER_INTERNAL_PORT']}/metrics", timeout=30).text
        metric = "saltroute_records_"
        said = (line.removeprefix(metric).rsplit(" ", 1) for line in page.splitlines() if line.startswith(metric) and "{" not in line)
        return {name: int(float(value)) for name, value in said}

    def usage(self) -> int:
        """Requests of the sample's tenant, as the control API says."""
        answer = httpx.get(f"{self.product.control_url}/api/v1/usage?by=day", headers={"Authorization": f"Bearer {self.product.token}"}, timeout=60)
        return int(answer.raise_for_status().json()["total"]["requests"])

    def _in_hand(self) -> int:
        try:
            with self.valkey() as client:
                return int(client.xpending(STREAM, GROUP)["pending"])
        except redis.RedisError:
            return 0

    async def strike(self, blow: Blow) -> None:
        """Do it, and wait until the supervisor has put it right."""
        if blow.whom == "ingest":
            await _until("entries in ingest's hand", lambda: self._in_hand() > 0, IN_HAND_S, look_s=0.001, must=False)
        if blow.what == "freeze":
            pid = self.product.pid(blow.whom)
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(blow.frozen_s)
                if blow.until_dropped:
                    await _until("a full queue", lambda: self.counters()[1] > 0, FULL_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            return
        before = self._revivals(blow.whom)
        os.kill(self.product.pid(blow.whom), signal.SIGKILL if blow.what == "kill" else signal.SIGTERM)
        await _until(f"{blow.whom} runs again", lambda: self._revivals(blow.whom) > before, REVIVED_S)

    def _revivals(self, whom: str) -> int:
        return self.product.output.read_text().count(f"started {whom} again")

    def settled(self) -> bool:
        """Whether nothing is under way any more: everything that the router numbered has come, but what it dropped or Valkey lost before the last."""
        sent, dropped = self.counters()
        with self.valkey() as client, self.database() as database:
            return int(client.xlen(STREAM)) == 0 and account(database).highest >= sent + dropped


async def _until(what: str, condition: Any, within_s: float, *, look_s: float = LOOK_S, must: bool = True) -> bool:
    """Look until it holds; False, or TimeoutError where it ``must``, when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline_s:
            if must:
                raise TimeoutError(f"{what}: not within {within_s:.0f} s")
            return False
        await asyncio.sleep(look_s)
    return True


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    lines: tuple[Line, ...]
    statuses: Counter[int]
    took_s: float
    noted: Account
    dropped: int

    @property
    def holds(self) -> bool:
        return all(one.holds for one in self.lines)

    def __str__(self) -> str:
        asked = self.statuses.total()
        said = ", ".join(f"{count:,} x {status}" for status, count in sorted(self.statuses.items()))
        lost = self.noted.missing
        head = f"{asked:,} requests in {self.took_s:.0f} s, {asked / self.took_s:.0f} a second; answers: {said}\n"
        where = f"{lost:,} records lost, of those {self.dropped:,} dropped at the router's full queue and {lost - self.dropped:,} with Valkey\n"
        return head + where + "\n".join(map(str, self.lines)) + "\n" + ("Everything adds up." if self.holds else "It does not add up.")


async def run(product: Product, *, count: int, connections: int = 32, blows: Sequence[Blow] = BLOWS, settled_s: float = SETTLED_S) -> Outcome:
    """Send ``count`` requests to a product that has seen no others but its demo's own, strike, wait until nothing is under way, add up.

    Raises:
        TimeoutError: a child did not come back.
    """
    stage = Stage(product)
    load = Load(product.router_url, stage.keys(), count)
    began_s = time.monotonic()
    asking = asyncio.create_task(load.run(connections))
    ended: list[float] = []
    asking.add_done_callback(lambda _: ended.append(time.monotonic()))
    try:
        for blow in blows:
            await _until("its turn", lambda at=blow.share * count: load.answered >= at or asking.done(), RUN_S)
            at_s, answered = time.monotonic() - began_s, load.answered
            await stage.strike(blow)
            sys.stdout.write(
                f"{at_s:6.0f} s   {answered:7,} answers   {blow.what} {blow.whom}, put right after {time.monotonic() - began_s - at_s:.1f} s\n"
            )
            sys.stdout.flush()
        await asking
        took_s = ended[0] - began_s
        # What was lost before shows by the numbers of records that come after it: these need a queue with room, and it is full until the router's
        # next try to write.
        await _until("room in the router's queue", lambda: stage.queued() == 0, settled_s)
        last = Load(product.router_url, load.keys, 2 * connections, told=load.told)
        await last.run(2)
    finally:
        asking.cancel()
    settled = await _until("every record stored", stage.settled, settled_s, look_s=0.5, must=False)
    return await asyncio.to_thread(_add_up, stage, load, last, took_s, settled=settled)


def _add_up(stage: Stage, load: Load, last: Load, took_s: float, *, settled: bool) -> Outcome:
    sent, dropped = stage.counters()
    with stage.database() as database:
        found = [
            Line("records that never came, or came without their numbers, 1 for any", int(not settled), 0),
            Line("requests without an answer", load.statuses[0] + last.statuses[0], 0),
            Line(
                "answers that are neither 200 nor the 404 that was asked for",
                sum(load.statuses.values()) - load.statuses[200] - load.statuses[404],
                0,
            ),
            Line("decisions that were handed out twice", load.twice + last.twice, 0),
            *lines(database, load.told, sent=sent, dropped=dropped),
        ]
        tenant = "SELECT count(*) FROM routing_decisionrow WHERE coalesce(record->>'audit', 'false') <> 'true' AND tenant_id ="
        row = database.execute(f"{tenant} (SELECT id FROM tenants_tenant WHERE slug = 'acme')").fetchone()
        found.append(Line("the control API's usage of one tenant: its rows", stage.usage(), row[0] if row else 0))
        return Outcome(tuple(found), load.statuses, took_s, account(database), dropped)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument(
        "--record-queue", type=int, default=20_000, help="ROUTER_RECORD_QUEUE; a small one makes the router drop records while Valkey is frozen"
    )
    options = parser.parse_args(arguments)
    home = fresh_home()
    try:
        product = Product.start(home, ROUTER_RECORD_QUEUE=str(options.record_queue), ROUTER_RECORD_SAMPLE_PERCENT="1")
        try:
            outcome = asyncio.run(run(product, count=options.count, connections=options.connections))
        finally:
            product.stop()
    finally:
        remove(home)
    sys.stdout.write(f"{outcome}\n")
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
