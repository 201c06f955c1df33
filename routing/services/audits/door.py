"""One probe through a router's internal door: an ordinary request with a probe token in place of a key."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from namespaces.audit.case import Probe, Seen
from namespaces.core import probe as tokens

PATHS = {"chat": "/internal/probe/v1/chat/completions", "completions": "/internal/probe/v1/completions"}
PROBE_S = 30.0  # a cold prompt behind a full queue
TOKEN_LIFE_S = 30.0
MAX_ANSWER_BYTES = 256 * 1024
NO_ANSWER = 0  # the status of a probe that nobody answered
DECISION = "x-saltroute-decision"


@dataclass(frozen=True, slots=True)
class Aim:
    """What every probe of a run has in common."""

    tenant_id: UUID
    endpoint_id: UUID
    endpoint_name: str
    replica_id: UUID
    run_id: UUID


class Door:
    """A connection to the internal port of one router; not thread-safe. ``now`` gives unix seconds, for tokens alone."""

    def __init__(self, url: str, publish_key: bytes, aim: Aim, *, now: Callable[[], float] = time.time, timeout_s: float = PROBE_S) -> None:
        self._parts = urlsplit(url)
        self._publish_key = publish_key
        self._aim = aim
        self._now = now
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self.decisions: dict[str, str] = {}  # by label: the id of the newest probe's record

    def send(self, probe: Probe, prompt: str) -> Seen:
        """Send one probe and read its answer to the end. Never raises for what the network does: that is ``NO_ANSWER``."""
        try:
            return self._send(probe, prompt)
        except (OSError, http.client.HTTPException, ValueError):
            self.close()
            return Seen(probe.label, NO_ANSWER)

    def close(self) -> None:
        """Let go of the connection; the next probe opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, probe: Probe, prompt: str) -> Seen:
        connection = self._connection or self._connect()
        began_s = time.monotonic()
        connection.request("POST", PATHS[probe.route], body(probe, prompt, self._aim.endpoint_name), self._headers(probe))
        answer = connection.getresponse()
        if (decision := answer.getheader(DECISION)) is not None:
            self.decisions[probe.label] = decision
        first = answer.readline(MAX_ANSWER_BYTES) if probe.stream else b""
        ttft_s = time.monotonic() - began_s
        rest = answer.read(MAX_ANSWER_BYTES)
        if not answer.isclosed() and answer.read(1):
            self.close()  # longer than any answer of one token
        cached_tokens, prompt_tokens = usage(first + rest, stream=probe.stream) if answer.status == 200 else (None, None)
        return Seen(probe.label, answer.status, cached_tokens=cached_tokens, prompt_tokens=prompt_tokens, ttft_s=ttft_s)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
        return self._connection

    def _headers(self, probe: Probe) -> dict[str, str]:
        claims = tokens.Claims(
            tenant=self._aim.tenant_id,
            endpoint=self._aim.endpoint_id,
            replica=self._aim.replica_id,
            scope=probe.scope,
            run=self._aim.run_id,
            exp=self._now() + TOKEN_LIFE_S,
            nonce=uuid4().hex,
            adapter=probe.adapter,
            salt_prefix=probe.salt_prefix,
            salt_suffix=probe.salt_suffix,
        )
        return {"Authorization": f"{tokens.SCHEME} {tokens.sign(claims, self._publish_key)}", "Content-Type": "application/json"}


def body(probe: Probe, prompt: str, model: str) -> bytes:
    """The body, as a client would write it; ``hostile`` members are put in as they are."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if probe.route == "chat" else {"prompt": prompt}
    text = json.dumps({"model": model, **asked, "max_tokens": 1, "temperature": 0, "stream": probe.stream})
    return (text if probe.hostile is None else f"{text[:-1]}, {probe.hostile}}}").encode()


def usage(answer: bytes, *, stream: bool) -> tuple[int | None, int | None]:
    """(cached tokens, prompt tokens) of an answer; None is "not said".

    Raises:
        ValueError: not an answer of an engine.
    """
    documents = [line[5:].strip() for line in answer.split(b"\n") if line.startswith(b"data:")] if stream else [answer]
    found: dict[str, Any] = {}
    for document in documents:
        if document == b"[DONE]":
            continue
        value = json.loads(document)
        if isinstance(value, dict) and isinstance(value.get("usage"), dict):
            found = value["usage"]
    details = found.get("prompt_tokens_details")
    return _count(details.get("cached_tokens") if isinstance(details, dict) else None), _count(found.get("prompt_tokens"))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
