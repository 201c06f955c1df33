"""``manage.py trace`` on a tenant's own traffic: captured, or its decision records with what those cannot tell."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from routing.core.record import DecisionRecord
from routing.services import captures, record_store
from tenants.scoping import tenant_scope
from tests.routing.services.captured import keep, packed, record
from tests.routing.services.made import Made, make
from tests.routing.services.rows import ACTOR, an_endpoint

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def acorn(db: None) -> Made:
    return make("acorn")


@pytest.fixture
def chat(acorn: Made) -> uuid.UUID:
    with tenant_scope(acorn.id):
        return an_endpoint(acorn.id, "chat").id


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("trace", *arguments, "--tenant", "acorn", stdout=out, stderr=StringIO())
    return out.getvalue()


def capture(acorn: Made, chat: uuid.UUID, count: int = 40) -> None:
    """Half of the requests in one scope and half in another, all with one beginning."""
    with tenant_scope(acorn.id):
        found = captures.enable(tenant_id=acorn.id, actor=ACTOR, endpoint_id=chat, days=1, share=1.0, now=NOW)
    made = found.captures[0].id
    keep(
        *(
            record(
                acorn.id,
                made,
                NOW - timedelta(minutes=30) + timedelta(seconds=number),
                serial=number + 1,
                prompt_tokens=1024,
                blocks=packed(1, 10 + number),
                scope=1 + number % 2,
            )
            for number in range(count)
        )
    )


def decide(acorn: Made, chat: uuid.UUID, count: int = 20, **fields: Any) -> None:
    """Decisions as ingest stores them; every second engine says what it had cached."""
    usual: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1, "endpoint_id": chat}
    made = [
        DecisionRecord(
            id=uuid.uuid4(),
            tenant_id=acorn.id,
            started_at=(NOW - timedelta(minutes=count - number)).timestamp(),
            prompt_tokens=100 * (number + 1),
            completion_tokens=10,
            cached_tokens=50 * (number + 1) if number % 2 else None,
            **{**usual, **fields},
        )
        for number in range(count)
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert record_store.store(made).stored == count
        cursor.execute("SET ROLE saltroute_app")


def test_captured_traffic_is_analysed_like_its_file(acorn: Made, chat: uuid.UUID, tmp_path: Path) -> None:
    """The same figures to the last digit, by way of the database and by way of the file."""
    capture(acorn, chat)
    direct = json.loads(run("analyze", "--endpoint", "chat", "--json"))
    path = tmp_path / "own.jsonl"
    run("export", "--endpoint", "chat", "--out", str(path))
    out = StringIO()
    call_command("trace", "analyze", str(path), "--json", stdout=out)
    by_file = json.loads(out.getvalue())
    assert by_file.pop("trace") == "own.jsonl"
    assert direct.pop("trace") == "chat"
    assert direct == by_file
    assert direct["ceiling"] == pytest.approx(39 / 80)
    assert direct["ceiling_in_scope"] == pytest.approx(38 / 80)
    assert run("export", "--endpoint", "chat", "--out", "-").encode() == path.read_bytes()


def test_a_replay_keeps_scopes_apart_by_either_way(acorn: Made, chat: uuid.UUID, tmp_path: Path) -> None:
    """As engines do: what two scopes could share is not among what is possible."""
    capture(acorn, chat)
    path = tmp_path / "own.jsonl"
    run("export", "--endpoint", "chat", "--out", str(path))
    out = StringIO()
    call_command("trace", "replay", str(path), "--json", stdout=out)
    for text in (run("replay", "--endpoint", "chat", "--json"), out.getvalue()):
        (one,) = json.loads(text)["runs"]
        assert one["answered"] == 40
        assert one["ceiling"] == pytest.approx(38 / 80)


def test_without_a_capture_the_command_says_switch_it_on(acorn: Made, chat: uuid.UUID) -> None:
    for verb in (("analyze",), ("replay",), ("export", "--out", "-")):
        with pytest.raises(CommandError, match="Switch on trace capture"):
            run(*verb, "--endpoint", "chat")


def test_records_tell_lengths_and_reuse_and_what_they_cannot(acorn: Made, chat: uuid.UUID) -> None:
    decide(acorn, chat)
    decide(acorn, uuid.uuid4())
    decide(acorn, chat, outcome="refused")
    decide(acorn, chat, audit=True)
    text = run("analyze", "--endpoint", "chat", "--records")
    assert "20 answered requests over 1,140 s" in text
    assert "prompt tokens: 21,000 (p50 1,050, p95 1,905)" in text
    assert "50.0% of prompt tokens, by the word of engines on 10 requests" in text
    for said in ("no ceiling", "where prompts part", "Switch on trace capture", "/api/v1/endpoints/chat/capture"):
        assert said in text
    found = json.loads(run("analyze", "--endpoint", "chat", "--records", "--json"))
    assert (found["requests"], found["told"], found["reused"]) == (20, 10, pytest.approx(0.5))


def test_a_replay_of_records_shares_nothing_and_says_so(acorn: Made, chat: uuid.UUID) -> None:
    decide(acorn, chat)
    text = run("replay", "--endpoint", "chat", "--records")
    assert "20 of 20 answered" in text
    assert "hit 0.0%" in text
    assert "Replays share nothing" in text
    assert "Switch on trace capture" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("analyze",), "name one input"),
        (("analyze", "some.jsonl", "--endpoint", "chat"), "name one input"),
        (("export", "--out", "-"), "--endpoint"),
        (("analyze", "--endpoint", "none"), "--endpoint: this tenant has no endpoint 'none'"),
        (("analyze", "--endpoint", "chat", "--hours", "0"), "--hours"),
        (("analyze", "--endpoint", "chat", "--checkpoint", "c"), "--checkpoint is for files"),
        (("analyze", "--endpoint", "chat", "--records"), "no answered requests"),
    ],
)
def test_a_wrong_option_is_named(acorn: Made, chat: uuid.UUID, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments)


def test_a_file_that_is_there_is_not_written_over(acorn: Made, chat: uuid.UUID, tmp_path: Path) -> None:
    capture(acorn, chat)
    path = tmp_path / "own.jsonl"
    path.write_text("mine")
    with pytest.raises(CommandError, match="--out"):
        run("export", "--endpoint", "chat", "--out", str(path))
    assert path.read_text() == "mine"
