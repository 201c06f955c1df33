"""Trace captures over the API: who may, what a file holds, and that it says the same as the capture."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from routing.models import Endpoint
from routing.services import captures
from routing.traces.analysis import analyse
from routing.traces.formats import read
from tenants.core.roles import Role
from tests.routing.services.captured import keep, packed, record
from tests.routing.services.rows import an_endpoint
from tests.tenants.houses import House

pytestmark = pytest.mark.django_db
NOW = timezone.now()
ON = {"days": 3, "share": 0.25}


@pytest.fixture
def chat(acorn: House) -> Endpoint:
    with acorn.scope():
        return an_endpoint(acorn.id, "chat")


def body(answer: Any) -> bytes:
    """A streamed answer, whole."""
    return b"".join(answer.streaming_content)


def fill(house: House, capture_id: str, count: int = 60) -> None:
    """Requests in conversations of three turns over a common beginning, in two scopes."""
    made = []
    for number in range(count):
        conversation, turn = divmod(number, 3)
        own = [1000 * (conversation + 1) + place for place in range(2 + turn)]
        made.append(
            record(
                house.id,
                uuid.UUID(capture_id),
                NOW - timedelta(hours=1) + timedelta(seconds=7.125 * number),
                serial=number + 1,
                prompt_tokens=512 * (3 + turn) - 100,
                blocks=packed(1, *own),
                session=conversation + 1,
                named=conversation % 2 == 0,
                turn=turn,
                scope=1 + conversation % 2,
                kind="conversation" if turn else "single",
                duration_ms=1500,
            )
        )
    keep(*made)


def test_on_off_and_delete(acorn: House, chat: Endpoint) -> None:
    """The state follows, the audit log too, and each change is a version that routers will have applied."""
    api = acorn.api(Role.ADMIN)
    assert api.get("endpoints/chat/capture").json()["state"] == "off"
    on = api.post("endpoints/chat/capture", ON).json()
    assert (on["state"], on["captures"][0]["share"], on["captures"][0]["end_reason"]) == ("running", 0.25, "")
    assert on["config_version"] > 0
    fill(acorn, on["captures"][0]["id"], 3)
    assert api.get(f"endpoints/{chat.id}/capture").json()["captures"][0]["requests"] == 3
    assert api.post("endpoints/chat/capture", ON).status_code == 409
    off = api.post("endpoints/chat/capture/stop").json()
    assert (off["state"], off["captures"][0]["end_reason"]) == ("ended", "switched off")
    gone = api.delete("endpoints/chat/capture").json()
    assert (gone["state"], gone["captures"], gone["used_bytes"]) == ("off", [], 0)
    assert [len(acorn.log(f"capture.{action}")) for action in ("begin", "end", "delete")] == [1, 1, 1]
    assert acorn.log("capture.begin")[0].after["share"] == 0.25  # type: ignore[index]  # there is one


def test_who_may(acorn: House, chat: Endpoint) -> None:
    """Switching is for those who configure, the file for operators, the state for everybody in the tenant."""
    for role in (Role.VIEWER, Role.OPERATOR):
        api = acorn.api(role)
        assert api.get("endpoints/chat/capture").status_code == 200
        for answer in (api.post("endpoints/chat/capture", ON), api.post("endpoints/chat/capture/stop"), api.delete("endpoints/chat/capture")):
            assert answer.status_code == 403
    on = acorn.api(Role.ADMIN).post("endpoints/chat/capture", ON).json()
    fill(acorn, on["captures"][0]["id"], 3)
    assert acorn.api(Role.VIEWER).get("endpoints/chat/capture/export").status_code == 403
    assert acorn.api(Role.OPERATOR).get("endpoints/chat/capture/export").status_code == 200


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"days": 0, "share": 0.5}, "days"),
        ({"days": 15, "share": 0.5}, "days"),
        ({"days": 1, "share": 0}, "share"),
        ({"days": 1, "share": 1.5}, "share"),
        ({"days": 1}, "share"),
        ({"days": 1, "share": 0.5, "forever": True}, "forever"),
    ],
)
def test_a_wrong_wish_names_its_field(acorn: House, chat: Endpoint, wanted: dict[str, Any], field: str) -> None:
    answer = acorn.api().post("endpoints/chat/capture", wanted)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_another_tenant_s_capture_is_not_there(acorn: House, birch: House, chat: Endpoint) -> None:
    on = acorn.api().post("endpoints/chat/capture", ON).json()
    fill(acorn, on["captures"][0]["id"], 3)
    absent = birch.api().get(f"endpoints/{uuid.uuid4()}/capture")
    for path in (f"endpoints/{chat.id}/capture", f"endpoints/{chat.id}/capture/export"):
        answer = birch.api().get(path)
        assert (answer.status_code, answer.content) == (404, absent.content)
        assert acorn.api().get(path).status_code == 200
    for answer in (birch.api().delete(f"endpoints/{chat.id}/capture"), birch.api().post(f"endpoints/{chat.id}/capture", ON)):
        assert answer.status_code == 404
    assert acorn.api().get("endpoints/chat/capture").json()["captures"][0]["requests"] == 3


def test_nothing_captured_says_how_to_begin(acorn: House, chat: Endpoint) -> None:
    answer = acorn.api().get("endpoints/chat/capture/export")
    assert answer.status_code == 409
    assert "Switch on trace capture" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("query", "field"), [("since=yesterday", "since"), ("since=2999-01-01T00:00:00Z", "until")])
def test_a_wrong_time_names_its_field(acorn: House, chat: Endpoint, query: str, field: str) -> None:
    answer = acorn.api().get(f"endpoints/chat/capture/export?{query}")
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_file_says_the_same_as_the_capture(acorn: House, chat: Endpoint, tmp_path: Path) -> None:
    """Read back it is the same requests, think times included, so an analysis gives the same figures to the last digit."""
    on = acorn.api().post("endpoints/chat/capture", ON).json()
    fill(acorn, on["captures"][0]["id"])
    answer = acorn.api().get("endpoints/chat/capture/export")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert "attachment" in answer.headers["Content-Disposition"]
    path = tmp_path / "own.jsonl"
    path.write_bytes(body(answer))
    there = captures.read_trace(tenant=acorn.id, endpoint_id=chat.id, since=NOW - timedelta(days=1), until=timezone.now())
    requests, again = list(there.requests), read(path)
    assert again.block_tokens == there.block_tokens == 512
    assert list(again.requests) == requests
    assert sum(one.after_s is not None for one in requests) == 20  # of the named sessions, each turn but the first
    found = analyse(iter(requests), 512)
    assert found == analyse(read(path).requests, 512)
    assert 0 < (found.ceiling_in_session or 0) < (found.ceiling_in_scope or 0) < found.ceiling < 1


def test_a_file_holds_numbers_from_zero_on_and_nothing_of_the_rows(acorn: House, chat: Endpoint) -> None:
    """No id, no name, no date: neither of rows, nor of sessions, scopes, tenant or endpoint."""
    on = acorn.api().post("endpoints/chat/capture", ON).json()
    fill(acorn, on["captures"][0]["id"])
    text = body(acorn.api().get("endpoints/chat/capture/export"))
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    numbers = [number for line in lines for number in line["hash_ids"]]
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    assert list(dict.fromkeys(numbers)) == sorted(set(numbers))  # in the order in which they are first seen
    assert {frozenset(line) - {"after"} for line in lines} == {
        frozenset({"timestamp", "input_length", "output_length", "hash_ids", "block_tokens", "session", "scope", "class"})
    }
    assert lines[0]["timestamp"] == 0
    for secret in (str(chat.id), 'chat"', "acorn", on["captures"][0]["id"], str(NOW.year)):
        assert secret.encode() not in text


def test_what_is_kept_of_an_endpoint_that_is_gone_can_be_read_and_deleted(acorn: House, chat: Endpoint) -> None:
    on = acorn.api().post("endpoints/chat/capture", ON).json()
    fill(acorn, on["captures"][0]["id"], 3)
    assert acorn.api().delete("endpoints/chat").status_code in (200, 204)
    assert len(body(acorn.api().get(f"endpoints/{chat.id}/capture/export")).splitlines()) == 3
    assert acorn.api().delete(f"endpoints/{chat.id}/capture").json()["captures"] == []
    assert acorn.api().get(f"endpoints/{chat.id}/capture").status_code == 404
