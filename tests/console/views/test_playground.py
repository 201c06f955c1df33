"""The playground: a request goes to the router as the tenant's own client would send it, its answer comes back in pieces, and places are bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import pytest
from django.core.signals import request_finished
from django.db import close_old_connections
from django.utils import timezone
from pytest_django import Settings

from tenants.models import ApiKey, AuditEntry
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db
KEY = "sk-sr-" + "k" * 43
DECISION = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
FIELDS = {"key": KEY, "endpoint": "llama-chat", "messages": json.dumps([{"role": "user", "content": "Hello Timbuktu"}])}


class Router:
    """A server that speaks as a router does; ``asked`` is what came, ``hold`` keeps answers back until it is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.status, self.words, self.left = 200, ["Salt", " and", " gold"], threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, dict(self.headers), sent))
                self.send_response(outer.status)
                self.send_header("x-saltroute-decision", DECISION)
                if outer.status != 200:
                    text = json.dumps({"error": {"message": "Too many.", "code": "quota", "type": "x"}}).encode()
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                    return
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for number, word in enumerate(outer.words):
                        self._event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
                        if number == 0:
                            outer.hold.wait(30)
                    usage = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}
                    self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
                    self._event({"choices": [], "usage": usage})
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    outer.left.set()
                self.close_connection = True

            def _event(self, value: object) -> None:
                self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
                self.wfile.flush()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def _running() -> Iterator[Router]:
    router = Router()
    thread = threading.Thread(target=router.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield router
    finally:
        router.hold.set()
        router.server.shutdown()
        router.server.server_close()
        thread.join()


@pytest.fixture
def router(settings: Settings) -> Iterator[Router]:
    """A router where the playground sends to."""
    with _running() as one:
        settings.PLAYGROUND_ROUTER_URL = one.url
        yield one


@pytest.fixture
def three_places(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Places of this test alone."""
    from console.views import playground
    from routing.services.playground.places import Places

    monkeypatch.setattr(playground, "places", Places(3))
    return playground.places


def _events(response: Any) -> list[dict[str, Any]]:
    text: bytes = b"".join(response.streaming_content)
    return [json.loads(line) for line in text.splitlines()]


def _close(response: Any) -> None:
    """Close an answer as a server does; its signal would close this test's database connection too."""
    request_finished.disconnect(close_old_connections)
    try:
        response.close()
    finally:
        request_finished.connect(close_old_connections)


@pytest.mark.usefixtures("three_places")
def test_a_chat_is_sent_as_the_tenants_client_and_comes_back_in_pieces(town: Town, router: Router, caplog: pytest.LogCaptureFixture) -> None:
    """By the tenant's own path, with key, scope and context as headers; the answer's text, its decision and what was cached; the key is in no row,
    no log and no answer."""
    caplog.set_level("DEBUG")
    more = {"scope": "support", "context": "repo=abc", "max_tokens": "32", "temperature": "0.5", "seed": "7"}
    response = town.owner.post("/t/acorn/playground/send", {**FIELDS, **more})
    events = _events(response)
    path, headers, body = router.asked[0]
    assert path == "/t/acorn/v1/chat/completions"
    assert (headers["Authorization"], headers["X-Saltroute-Scope"], headers["X-Saltroute-Context"]) == (f"Bearer {KEY}", "support", "repo=abc")
    assert body == {
        "model": "llama-chat",
        "messages": [{"role": "user", "content": "Hello Timbuktu"}],
        "max_tokens": 32,
        "temperature": 0.5,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "".join(one["text"] for one in events if one["type"] == "text") == "Salt and gold"
    assert events[-1]["type"] == "end"
    assert (events[-1]["decision"], events[-1]["prompt_tokens"], events[-1]["cached_tokens"], events[-1]["finish"]) == (DECISION, 40, 32, "stop")
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert KEY not in caplog.text + json.dumps(events) + str(dict(response.headers))
    with tenant_scope(town.acorn.tenant_id):
        assert not AuditEntry.objects.exists()


@pytest.mark.usefixtures("three_places")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": "srct-" + "k" * 43}, "key"),
        ({"key": "with a space in the key"}, "key"),
        ({"messages": "[]"}, "messages"),
        ({"messages": "not json"}, "messages"),
        ({"messages": "[" * 100_000}, "messages"),
        ({"messages": json.dumps([{"role": "tool", "content": "x"}])}, "messages"),
        ({"messages": json.dumps([{"role": "user", "content": "x" * 140_000}])}, "messages"),
        ({"messages": json.dumps([{"role": "user", "content": "x"}] * 101)}, "messages"),
        ({"scope": "../birch"}, "scope"),
        ({"context": "a=b\r\nX-Evil: 1"}, "context"),
        ({"max_tokens": "99999"}, "max_tokens"),
        ({"max_tokens": "1.5"}, "max_tokens"),
        ({"temperature": "nan"}, "temperature"),
        ({"endpoint": ""}, "endpoint"),
    ],
)
def test_what_is_not_acceptable_is_named_and_never_sent(town: Town, router: Router, fields: dict[str, str], field: str) -> None:
    """The control is the test before: the same fields without these are sent."""
    response = town.owner.post("/t/acorn/playground/send", {**FIELDS, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["field"] == field
    assert KEY not in response.content.decode()
    assert router.asked == []


@pytest.mark.usefixtures("three_places")
def test_another_tenants_endpoint_is_not_there(town: Town, router: Router) -> None:
    """An endpoint that only birch has cannot be asked for on acorn's page; the control is acorn's own."""
    from routing.models import Endpoint

    with tenant_scope(town.birch.tenant_id):
        Endpoint.objects.update(name="birch-only")
    assert town.owner.post("/t/acorn/playground/send", {**FIELDS, "endpoint": "birch-only"}).status_code == 404
    assert _events(town.owner.post("/t/acorn/playground/send", FIELDS))[-1]["type"] == "end"
    assert len(router.asked) == 1


@pytest.mark.usefixtures("three_places")
def test_the_routers_refusal_is_shown(town: Town, router: Router) -> None:
    router.status = 429
    events = _events(town.viewer.post("/t/acorn/playground/send", FIELDS))
    assert [one["type"] for one in events] == ["refused"]
    assert (events[0]["status"], events[0]["code"], events[0]["message"]) == (429, "quota", "Too many.")


def test_a_router_that_is_away_is_an_answer(town: Town, three_places: Any, settings: Settings) -> None:
    with _running() as gone:
        settings.PLAYGROUND_ROUTER_URL = gone.url
    assert [one["type"] for one in _events(town.owner.post("/t/acorn/playground/send", FIELDS))] == ["refused"]
    assert three_places.taken == 0


def test_places_are_bounded_for_each_tenant_and_in_all_and_come_back(town: Town, router: Router, three_places: Any) -> None:
    """Two streams of one tenant are under way: its third is refused, counted and in its audit log; another tenant's goes; a fourth is refused to
    anybody. Reading one to its end, or closing it unread, frees its place."""
    router.hold.clear()
    first, second = (town.owner.post("/t/acorn/playground/send", FIELDS) for _ in range(2))
    refused = town.viewer.post("/t/acorn/playground/send", FIELDS)
    assert refused.status_code == 429
    assert "Your tenant has 2 answers under way here, as many as one may (PLAYGROUND_STREAMS)" in refused.json()["error"]["message"]
    assert refused.headers["Retry-After"] == "5"
    other = town.stranger.post("/t/birch/playground/send", FIELDS)
    assert other.status_code == 200
    full = town.stranger.post("/t/birch/playground/send", FIELDS)
    assert (full.status_code, "All 3 places of the playground are taken" in full.json()["error"]["message"]) == (429, True)
    for made, who in ((town.acorn, "viewer@example.com"), (town.birch, "stranger@example.com")):
        with tenant_scope(made.tenant_id):
            (noted,) = AuditEntry.objects.values_list("action", "object_label", "reason", "actor_label")
        assert noted == ("request.denied", f"POST /t/{made.slug}/playground/send", "overloaded", who)
    assert (three_places.taken, three_places.served, three_places.refused) == (3, 3, 2)
    _close(second)  # nobody began to read it
    _close(other)
    assert three_places.taken == 1
    router.hold.set()
    assert _events(first)[-1]["type"] == "end"
    assert three_places.taken == 0
    assert town.owner.post("/t/acorn/playground/send", FIELDS).status_code == 200


def test_a_reader_who_leaves_ends_the_request_to_the_router(town: Town, router: Router, three_places: Any) -> None:
    """The page stops in mid-answer: the connection to the router is closed (there the engine's work ends with it), and the place is free."""
    router.hold.clear()
    router.words = ["word"] * 200_000
    response: Any = town.owner.post("/t/acorn/playground/send", FIELDS)
    pieces = iter(response.streaming_content)
    seen = [json.loads(next(pieces))["type"] for _ in range(2)]
    assert seen == ["head", "text"]
    _close(response)
    router.hold.set()
    assert router.left.wait(30)
    assert three_places.taken == 0


@pytest.mark.usefixtures("three_places")
def test_too_long_an_answer_is_cut(town: Town, router: Router) -> None:
    router.words = ["x" * 60_000] * 6
    events = _events(town.owner.post("/t/acorn/playground/send", FIELDS))
    assert events[-1]["finish"] == "cut: MAX_TEXT_BYTES"
    assert sum(len(one["text"]) for one in events if one["type"] == "text") <= 256 * 1024


def test_a_key_for_a_quarter_of_an_hour_one_at_a_time(town: Town) -> None:
    """Told once in an answer that no cache keeps; it expires by itself; the next one revokes it; whoever issues no keys gets none."""
    before = timezone.now()
    first = town.owner.post("/t/acorn/playground/key")
    assert first.status_code == 200
    assert first.headers["Cache-Control"] == "private, no-store"
    second = town.owner.post("/t/acorn/playground/key")
    assert first.json()["key"] != second.json()["key"]
    with tenant_scope(town.acorn.tenant_id):
        made = list(ApiKey.objects.filter(name__startswith="playground").order_by("created_at"))
        assert [key.revoked_at is None for key in made] == [False, True]
        assert made[1].expires_at is not None
        assert timedelta(minutes=14) < made[1].expires_at - before < timedelta(minutes=16)
        assert made[1].created_by == "owner@example.com"
        assert AuditEntry.objects.filter(action="api_key.issue").count() == 2
    refused = town.viewer.post("/t/acorn/playground/key")
    assert refused.status_code == 403
    assert "error" in refused.json()
    with tenant_scope(town.acorn.tenant_id):
        assert ApiKey.objects.filter(name__startswith="playground").count() == 2


def test_the_page_holds_no_key_and_fills_snippets_in(town: Town) -> None:
    page = town.owner.get("/t/acorn/playground?endpoint=llama-chat").content.decode()
    assert page.count("llama-chat") > 4
    assert "langchain_openai" in page
    assert "base_url=" in page
    assert "sk-sr-" not in page
    assert "Get a key" in page
    assert "Get a key" not in town.viewer.get("/t/acorn/playground").content.decode()


def test_what_is_known_of_an_answer_comes_when_its_record_does(town: Town, as_owner: AsOwner) -> None:
    """Before, the fragment asks again, and not for ever; then it names the replica, reuse and cause, and leads to the decision."""
    absent = uuid4()
    first = town.viewer.get(f"/t/acorn/playground/decisions/{absent}").content.decode()
    assert "?look=2" in first
    for last in ("25", "x", "9999"):
        ended = town.viewer.get(f"/t/acorn/playground/decisions/{absent}?look={last}").content.decode()
        assert "hx-get" not in ended
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    found = town.viewer.get(f"/t/acorn/playground/decisions/{decision.id}").content.decode()
    assert "1,008 of 1,200 prompt tokens" in found
    assert f"/t/acorn/decisions/{decision.id}" in found
    assert "<dt>Replica</dt><dd>a</dd>" in found
