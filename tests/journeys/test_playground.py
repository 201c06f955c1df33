"""The playground against the real thing: gunicorn's threads, a router, engines; and what twenty open streams do to the console."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from tests.product import Product

pytestmark = pytest.mark.journey
STREAMS = 20
OF_A_TENANT = 2  # of the three places that a process has by default


@pytest.fixture
def console(product: Product) -> Iterator[httpx.Client]:
    """The demo's person, signed in; with the token that a form sends."""
    client = httpx.Client(base_url=product.control_url, timeout=60, follow_redirects=True)
    token = _token(client.get("/login").text)
    form = {"email": product.email, "password": product.password, "csrfmiddlewaretoken": token}
    client.post("/login", data=form, headers={"Referer": product.control_url}).raise_for_status()
    client.headers["X-CSRFToken"] = _token(client.get("/t/acme/playground").text)
    client.headers["Referer"] = product.control_url
    yield client
    client.close()


def _token(page: str) -> str:
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found
    return found[1]


def _fields(key: str, tokens: int) -> dict[str, str]:
    messages = [{"role": "user", "content": "Tell me about the salt trade of Timbuktu. " * 30}]
    return {"key": key, "endpoint": "llama-private", "messages": json.dumps(messages), "max_tokens": str(tokens)}


def test_a_key_is_issued_used_and_explained_and_streams_leave_the_console_its_threads(product: Product, console: httpx.Client) -> None:
    """A key of a quarter of an hour opens the endpoint, the same prompt is cached at the second time, and the answer names its decision. Then twenty
    requests at once: two get streams, the others are told so at once, and while the streams are open the console goes on answering. At their end all
    places are free again."""
    key = console.post("/t/acme/playground/key").raise_for_status().json()["key"]
    ends = [_all(console.post("/t/acme/playground/send", data=_fields(key, 8)))[-1] for _ in range(2)]
    assert [one["type"] for one in ends] == ["end", "end"]
    assert ends[1]["cached_tokens"] > 100
    assert re.fullmatch(r"[0-9a-f-]{36}", ends[1]["decision"])

    def ask(_: int) -> int:
        with console.stream("POST", "/t/acme/playground/send", data=_fields(key, 1500)) as answer:
            if answer.status_code == 200:
                next(answer.iter_lines())
                assert console.get("/t/acme/applied").status_code == 200  # while this stream is open
            return answer.status_code

    with ThreadPoolExecutor(STREAMS) as pool:
        found = Counter(pool.map(ask, range(STREAMS)))
    assert set(found) == {200, 429}
    assert found[200] >= OF_A_TENANT
    ends = [_all(console.post("/t/acme/playground/send", data=_fields(key, 4)))[-1] for _ in range(OF_A_TENANT + 1)]
    assert [one["type"] for one in ends] == ["end"] * (OF_A_TENANT + 1)


def _all(answer: httpx.Response) -> list[dict[str, Any]]:
    answer.raise_for_status()
    return [json.loads(line) for line in answer.text.splitlines()]
