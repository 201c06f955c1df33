"""``make up ROUTERS=2``: two processes on one port, one configuration, one view of what the engines hold; one of them is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from deploy.local.places import free_run
from deploy.local.process import started_at
from tests.journeys.test_outages import chat, control, manage, until
from tests.product import START_S, STOP_S, Product, fresh_home, remove

pytestmark = [pytest.mark.journey, pytest.mark.timeout(START_S + STOP_S + 240), pytest.mark.xdist_group("several-routers")]

ROUTERS = ("router-1", "router-2")


@pytest.fixture(scope="module")
def two() -> Iterator[Product]:
    """A product with two routers."""
    home = fresh_home()
    first = free_run(19000 + os.getpid() % 1000, 2)
    try:
        product = Product.start(home, fleet=2, ROUTERS="2", ROUTER_INTERNAL_PORT=str(first))
        product.ports["ROUTER_INTERNAL_PORT"] = first
        yield product
        assert product.stop() == 0, product.output.read_text()
    finally:
        remove(home)


def internal(product: Product, router: str, path: str) -> httpx.Response:
    """A page of one router's own."""
    port = product.ports["ROUTER_INTERNAL_PORT"] + ROUTERS.index(router)
    return httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=10)


def metric(product: Product, router: str, name: str) -> float:
    lines = internal(product, router, "metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def served(product: Product, router: str) -> float:
    return metric(product, router, 'saltroute_requests_total{outcome="ok"')


def applied(product: Product) -> Any:
    return control(product, "routers").json()


def test_both_serve_one_port_under_one_configuration(two: Product) -> None:
    assert {internal(two, router, "status").json()["router_id"] for router in ROUTERS} == set(ROUTERS)
    until("both routers apply", lambda: (applied(two)["applied"], applied(two)["total"]) == (2, 2))
    for number in range(40):  # each on a connection of its own
        assert chat(two, f"question {number} " * 40).status_code == 200
    assert all(served(two, router) > 0 for router in ROUTERS)
    assert all(metric(two, router, "saltroute_siblings ") == 1 for router in ROUTERS)
    for router in ROUTERS:
        for event in ("forged", "malformed", "replayed"):
            assert metric(two, router, f'saltroute_siblings_events_total{{event="{event}"}}') == 0
        until("it hears of the other's", lambda: metric(two, router, 'saltroute_siblings_events_total{event="placed"}') > 0)  # noqa: B023 - at once


def test_what_one_placed_the_other_finds(two: Product) -> None:
    """Whichever of the two gets a turn, the conversation stays with the engine that holds it."""
    text = "Tell me about the salt trade of Timbuktu. " * 60
    homes = set()
    for turn in range(12):
        answer = chat(two, text)
        assert answer.status_code == 200
        decision = answer.headers["x-saltroute-decision"]
        until("the record", lambda: control(two, f"decisions/{decision}").status_code == 200)  # noqa: B023 - asked at once
        homes.add(control(two, f"decisions/{decision}").json()["replica_id"])
        if turn:
            assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert len(homes) == 1


def test_a_revoked_key_is_refused_by_both(two: Product, tmp_path: Path) -> None:
    token = tmp_path / "token"
    manage(two, "createtoken", "several", "--tenant", "acme", "--role", "admin", "--out", str(token))
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    made = httpx.post(f"{two.control_url}/api/v1/keys", json={"name": "several"}, headers=headers, timeout=30)
    assert made.status_code == 201, made.text
    key, key_id = made.json()["secret"], made.json()["id"]
    until("the new key works", lambda: all(chat(two, key=key).status_code == 200 for _ in range(8)))
    assert httpx.delete(f"{two.control_url}/api/v1/keys/{key_id}", headers=headers, timeout=30).status_code in (200, 204)
    until("both routers apply", lambda: (applied(two)["applied"], applied(two)["total"]) == (2, 2))
    until("the key is refused", lambda: all(chat(two, key=key).status_code == 401 for _ in range(16)))


def test_one_is_killed_and_comes_back_knowing_what_the_other_knows(two: Product) -> None:
    before = two.output.read_text().count("started router-2 again")
    killed = two.pid("router-2")
    os.kill(killed, signal.SIGKILL)
    until("it is gone", lambda: started_at(killed) is None)  # until then the kernel may give it a connection that nobody will accept
    for number in range(20):  # the kernel gives connections to the one that is left
        assert chat(two, f"question {number} " * 40).status_code == 200
    until("the second router is back", lambda: two.output.read_text().count("started router-2 again") > before)
    until("it is ready", lambda: _ready(two, "router-2"))
    assert metric(two, "router-2", 'saltroute_siblings_events_total{event="warmed"}') > 0
    until("both routers apply", lambda: (applied(two)["applied"], applied(two)["total"]) == (2, 2))
    until("both serve", lambda: chat(two).status_code == 200 and served(two, "router-2") > 0)


def _ready(product: Product, router: str) -> bool:
    try:
        return internal(product, router, "readyz").status_code == 200
    except httpx.HTTPError:
        return False
