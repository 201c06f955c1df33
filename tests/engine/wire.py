"""A plain HTTP client for engine tests: what was sent is what the test wrote, and every answer is read to its end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer; ``headers`` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The JSON events of a server-sent stream that ended properly."""
        lines = [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n") if line.startswith(b"data: ")]
        if not lines or lines[-1] != b"[DONE]":
            raise AssertionError(f"the stream did not end with [DONE]: {self.body[-200:]!r}")
        return [json.loads(line) for line in lines[:-1]]

    def usage(self) -> dict[str, Any]:
        """The usage object of a whole answer, or of the last event of a stream."""
        streamed = self.headers["content-type"].startswith("text/event-stream")
        usage: dict[str, Any] = self.events()[-1]["usage"] if streamed else self.json()["usage"]
        return usage

    def cached_tokens(self) -> int:
        """Prompt tokens that the engine took from its cache, as it reported them."""
        details = self.usage()["prompt_tokens_details"]
        return int(details["cached_tokens"])


def _connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S), parts.path


def post(url: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> Answer:
    """Send a request and read its answer to the end."""
    with open_request(url, body, headers=headers) as connection:
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


@contextmanager
def open_request(url: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> Iterator[http.client.HTTPConnection]:
    """Send a request and leave at the end of the block, whatever has been answered by then."""
    connection, path = _connect(url)
    try:
        connection.request("POST", path, body=json.dumps(body).encode(), headers={"content-type": "application/json", **(headers or {})})
        yield connection
    finally:
        connection.close()
