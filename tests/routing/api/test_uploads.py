"""Large bodies arrive before the request's transaction begins: a slow client holds no transaction open."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenants.core.roles import Role
from tests.fakes.artifacts import SMALL
from tests.fakes.body import Body, depth, watched_writes
from tests.routing.services.traces.made import mooncake

if TYPE_CHECKING:
    from tests.tenants.houses import Api, House

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
BYTES, JSON = "application/octet-stream", "application/json"


def send(api: Api, path: str, content: bytes, kind: str) -> tuple[Any, Body]:
    """POST it, and what became of its body on the way."""
    body = Body(content)
    sent: dict[str, Any] = {"headers": {"Authorization": f"Bearer {api.token}"}, "wsgi.input": body}
    answer = api.client.generic("POST", f"/api/v1/{path}", content, kind, **sent)
    return answer, body


def as_json(content: bytes) -> bytes:
    return msgspec.json.encode({"kind": "tokenizer", "name": "t.json", "content_base64": base64.b64encode(content).decode()})


CASES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "trace": ("trace-files?name=day.jsonl", mooncake, BYTES),
    "artifact": ("artifacts?kind=chat_template&name=t.jinja", lambda: b"{{ messages }}", BYTES),
    "artifact as JSON": ("artifacts", lambda: as_json(SMALL), JSON),
    "any body": ("scopes", lambda: b'{"path": "support"}', JSON),
}


@pytest.mark.parametrize("name", CASES)
def test_no_transaction_is_open_while_a_body_arrives(acorn: House, name: str) -> None:
    """The control: what it is stored by is written inside one."""
    path, content, kind = CASES[name]
    outside = depth()
    with watched_writes() as writes:
        answer, body = send(acorn.api(), path, content(), kind)
    assert answer.status_code == 201, answer.content
    assert set(body.depths) == {outside}
    assert writes.depths
    assert min(writes.depths) > outside


def test_what_nobody_may_send_is_not_received(acorn: House) -> None:
    """A viewer's upload is refused before a byte of it is read, and so is a stranger's."""
    path, content, kind = CASES["trace"]
    api = acorn.api(Role.VIEWER)
    answer, body = send(api, path, content(), kind)
    assert (answer.status_code, body.depths) == (403, [])
    api.token = "srct-nobody"
    answer, body = send(api, path, content(), kind)
    assert (answer.status_code, body.depths) == (401, [])


def test_a_body_beyond_its_bound_is_refused_and_not_read_to_its_end(acorn: House) -> None:
    answer, body = send(acorn.api(), "scopes", b'{"path": "' + b"a" * (2 << 20) + b'"}', JSON)
    assert answer.status_code == 413
    assert body.tell() == (1 << 20) + 1
