"""A file that a browser sends arrives before the page's transaction begins."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.console.rows import Town
from tests.fakes.body import Body, depth, watched_writes
from tests.routing.services.traces.made import mooncake

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
TOKEN = "c" * 32
_END = "boundary-of-the-tests"


def _form() -> bytes:
    parts = [
        f'--{_END}\r\nContent-Disposition: form-data; name="csrfmiddlewaretoken"\r\n\r\n{TOKEN}\r\n',
        f'--{_END}\r\nContent-Disposition: form-data; name="file"; filename="day.jsonl"\r\nContent-Type: application/octet-stream\r\n\r\n',
    ]
    return "".join(parts).encode() + mooncake() + f"\r\n--{_END}--\r\n".encode()


def test_no_transaction_is_open_while_a_file_arrives(town: Town) -> None:
    """As a browser sends it, with the token that forms carry. The control: the file is stored inside one."""
    client = Client(enforce_csrf_checks=True)
    client.cookies.update(town.owner.cookies)
    client.cookies["csrftoken"] = TOKEN
    content = _form()
    body, outside = Body(content), depth()
    with watched_writes() as writes:
        kind = f"multipart/form-data; boundary={_END}"
        sent: dict[str, Any] = {"wsgi.input": body}
        answer = client.generic("POST", "/t/acorn/traces", content, kind, **sent)
    assert answer.status_code == 302, answer.content
    assert set(body.depths) == {outside}
    assert max(writes.depths) > outside
