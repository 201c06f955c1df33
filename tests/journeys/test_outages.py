"""The data plane outlives everything behind it: databases killed, frozen, workers stopped. One product of its own, since it is hurt on purpose."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest

from deploy.local.options import REPOSITORY
from tests.bench import chaos
from tests.bench.chaos import Blow
from tests.product import POLL_S, START_S, STOP_S, Product, fresh_home, remove

pytestmark = [pytest.mark.journey, pytest.mark.timeout(START_S + STOP_S + 240), pytest.mark.xdist_group("outages")]

PATIENCE_S = 60.0
RECORD_QUEUE = 100  # the smallest that a router takes, so that a Valkey that is away soon costs records
CLAIM_IDLE_S = 1  # until entries in a dead ingest's hand are taken over


@pytest.fixture(scope="module")
def hurt() -> Iterator[Product]:
    """A product that these tests may hurt; each leaves it healed."""
    home = fresh_home()
    try:
        product = Product.start(home, fleet=2, ROUTER_RECORD_QUEUE=str(RECORD_QUEUE), INGEST_CLAIM_IDLE_S=str(CLAIM_IDLE_S))
        yield product
        assert product.stop() == 0, product.output.read_text()
    finally:
        remove(home)


def until(what: str, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {within_s:.0f} s"
        time.sleep(POLL_S)


def chat(product: Product, text: str = "hi", key: str | None = None, timeout_s: float = 30) -> httpx.Response:
    body = {"model": product.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key or product.key}"}
    return httpx.post(f"{product.router_url}/v1/chat/completions", json=body, headers=headers, timeout=timeout_s)


def control(product: Product, path: str, token: str | None = None) -> Any:
    return httpx.get(f"{product.control_url}/api/v1/{path}", headers={"Authorization": f"Bearer {token or product.token}"}, timeout=30)


class Traffic:
    """A client that never stops; ``statuses`` counts what it got, 0 for no answer."""

    def __init__(self, product: Product) -> None:
        self.statuses: Counter[int] = Counter()
        self.decisions: list[str] = []
        self._product, self._stop = product, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                answer = chat(self._product, f"question {number}")
            except httpx.HTTPError:
                self.statuses[0] += 1
            else:
                self.statuses[answer.status_code] += 1
                self.decisions.append(answer.headers["x-saltroute-decision"])

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def more(self, count: int) -> None:
        """Wait for ``count`` more answers."""
        wanted = self.statuses.total() + count
        until(f"{count} more answers", lambda: self.statuses.total() >= wanted)


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Processes that neither run nor end: the worst kind of outage, since connections hang."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def children(product: Product, prefix: str) -> list[int]:
    table = json.loads((product.home.run / "children.json").read_text())
    return [row[0] for name, row in table.items() if name.startswith(prefix)]


def test_what_clients_were_told_is_what_is_kept_although_ingest_and_valkey_die(hurt: Product) -> None:
    """``make chaos`` in small, and first, since all that the product ever recorded is added up.

    Ingest is killed with entries in hand, Valkey is frozen until the router drops records, then restarted. Delivered and counted as lost are all;
    each row says what its client was told; usage and rollups of every grain are the sums of the rows. The control: some were lost.
    """
    blows = (Blow(0.1, "kill", "ingest"), Blow(0.3, "freeze", "valkey", frozen_s=3.0, until_dropped=True), Blow(0.7, "stop", "valkey"))
    outcome = asyncio.run(chaos.run(hurt, count=2000, connections=16, blows=blows, settled_s=PATIENCE_S))
    assert outcome.holds, str(outcome)
    assert outcome.statuses.keys() == {200, 404}
    assert 0 < outcome.dropped <= outcome.noted.missing


@pytest.mark.parametrize("store", ["postgres", "valkey"])
def test_no_request_fails_when_a_store_is_killed_and_its_records_arrive_later(hurt: Product, store: str) -> None:
    """kill -9 while requests flow: every answer is 200; afterwards every decision that was handed out can be read."""
    with Traffic(hurt) as traffic:
        traffic.more(5)
        before = hurt.output.read_text().count(f"started {store} again")
        os.kill(hurt.pid(store), signal.SIGKILL)
        until(f"{store} back", lambda: hurt.output.read_text().count(f"started {store} again") > before)
        traffic.more(10)
    assert set(traffic.statuses) == {200}, traffic.statuses
    assert f"{store} was killed by SIGKILL" in hurt.output.read_text()
    wanted = set(traffic.decisions)

    def arrived() -> bool:
        for decision in list(wanted):
            if control(hurt, f"decisions/{decision}").status_code == 200:
                wanted.discard(decision)
        return not wanted or dropped(hurt) >= len(wanted)

    until("every record stored, or counted as dropped", arrived)


def dropped(product: Product) -> float:
    text = httpx.get(f"http://127.0.0.1:{product.ports['ROUTER_INTERNAL_PORT']}/metrics", timeout=10).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("saltroute_records_dropped_total"))


def test_a_router_restarts_without_either_store(hurt: Product) -> None:
    """Both frozen, so that connections hang: a killed router comes back and serves from its last snapshot; a bad key stays bad."""
    assert chat(hurt).status_code == 200
    router = hurt.pid("router")
    with frozen(*children(hurt, "postgres"), *children(hurt, "valkey")):
        os.kill(router, signal.SIGKILL)

        def served() -> bool:
            try:
                return hurt.pid("router") != router and chat(hurt, timeout_s=5).status_code == 200
            except httpx.HTTPError:
                return False

        until("the router serves again", served)
        assert chat(hurt, key="sk-sr-nobody-has-this-key-000000").status_code == 401
    until("the control plane answers again", lambda: control(hurt, "keys").status_code == 200)


def manage(product: Product, *arguments: str) -> None:
    """A management command that speaks to the product."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DATABASE_", "VALKEY_", "SALTROUTE_", "CELERY_", "DJANGO_"))}
    env = {**kept, "SALTROUTE_HOME": str(product.home.root)}
    subprocess.run([sys.executable, "manage.py", *arguments], cwd=REPOSITORY, env=env, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def admin(hurt: Product, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Headers of somebody who may issue and revoke keys."""
    token = tmp_path_factory.mktemp("token") / "token"
    manage(hurt, "createtoken", "journey", "--tenant", "acme", "--role", "admin", "--out", str(token))
    return {"Authorization": f"Bearer {token.read_text().strip()}"}


def revoke_a_key_in_use(product: Product, headers: dict[str, str], name: str) -> None:
    """Issue a key, use it, revoke it, and wait until it is refused. The time is printed; the bound here only ends the test."""
    made = httpx.post(f"{product.control_url}/api/v1/keys", json={"name": name}, headers=headers, timeout=30)
    assert made.status_code == 201, made.text
    secret, key_id = made.json()["secret"], made.json()["id"]
    until("the new key works", lambda: chat(product, key=secret).status_code == 200)
    assert httpx.delete(f"{product.control_url}/api/v1/keys/{key_id}", headers=headers, timeout=30).status_code in (200, 204)
    began = time.monotonic()
    until("the revoked key is refused", lambda: chat(product, key=secret).status_code == 401, within_s=10)
    sys.stdout.write(f"{name}: refused {time.monotonic() - began:.3f} s after the answer\n")
    assert chat(product).status_code == 200


def test_a_revoked_key_is_refused_with_every_worker_stopped(hurt: Product, admin: dict[str, str]) -> None:
    """Publishing does not depend on Celery: the change itself reaches Valkey."""
    with frozen(*children(hurt, "celery-")):
        revoke_a_key_in_use(hurt, admin, "revoked while workers sleep")


def test_a_revocation_waits_for_no_audit(hurt: Product, admin: dict[str, str]) -> None:
    """A thousand tasks wait in the audits' queue; a revocation passes them by."""
    code = "from settings.celery import app; import uuid; [app.send_task('routing.audit_run', [str(uuid.uuid4())] * 2) for _ in range(1000)]"
    manage(hurt, "shell", "-c", code)
    revoke_a_key_in_use(hurt, admin, "revoked behind a thousand audits")
