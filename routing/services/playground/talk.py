"""One chat request to a router, and its answer in pieces as they come.

Bounds: ``TALK_S`` for the whole, ``IDLE_S`` between two pieces, ``MAX_TEXT_BYTES`` of answer. Whoever stops iterating closes the connection, and the
router then ends the work at the engine. Until the first byte a ``wait`` comes every ``BEAT_S``, so that a reader who has left is noticed.
"""

from __future__ import annotations

import http.client
import json
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote, urlsplit

from routing.services.playground.asked import Asked

CONNECT_S = 5.0
IDLE_S = 30.0
TALK_S = 120.0
BEAT_S = 2.0
MAX_TEXT_BYTES = 256 * 1024
MAX_LINE_BYTES = 256 * 1024
DECISION = "x-saltroute-decision"

Event = dict[str, Any]


def talk(asked: Asked, *, slug: str, router_url: str, clock: Callable[[], float] = time.monotonic, talk_s: float = TALK_S) -> Iterator[Event]:
    """Events of one answer: ``wait``, ``head`` (decision), ``text``, and last ``end`` or ``refused`` (message; status and code if a router
    said them).

    The request goes by the tenant's own path, where a key of another tenant is an unknown key. Never raises for what router or network do.
    """
    began_s = clock()
    try:
        parts = urlsplit(router_url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with closing(kind(parts.hostname or "", parts.port, timeout=CONNECT_S)) as connection:
            path = f"{parts.path.rstrip('/')}/t/{quote(slug, safe='')}/v1/chat/completions"
            connection.request("POST", path, asked.body, asked.headers)
            yield from _until_answered(connection, clock, began_s + talk_s)
            connection.sock.settimeout(IDLE_S)
            answer = connection.getresponse()
            if answer.status != 200:
                yield _refused(answer)
                return
            yield {"type": "head", "decision": answer.getheader(DECISION)}
            yield from _pieces(answer, clock, began_s, talk_s)
    except TimeoutError:
        yield {"type": "refused", "message": f"The router said nothing for {IDLE_S:.0f} s, or not all within {talk_s:.0f} s (TALK_S)."}
    except (OSError, http.client.HTTPException, ValueError):
        yield {"type": "refused", "message": "The router does not answer, or broke off."}


def _until_answered(connection: http.client.HTTPConnection, clock: Callable[[], float], deadline_s: float) -> Iterator[Event]:
    """Nothing of the answer is read yet, so the socket itself tells when it comes."""
    while not select.select([connection.sock], [], [], BEAT_S)[0]:
        if clock() > deadline_s:
            raise TimeoutError
        yield {"type": "wait"}


def _refused(answer: http.client.HTTPResponse) -> Event:
    said: Event = {
        "type": "refused",
        "status": answer.status,
        "decision": answer.getheader(DECISION),
        "message": f"The router answered {answer.status}.",
    }
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(answer.read(MAX_LINE_BYTES))["error"]
        said |= {"message": str(error["message"])[:500], "code": str(error.get("code") or "")[:64]}
    return said


def _pieces(answer: http.client.HTTPResponse, clock: Callable[[], float], began_s: float, talk_s: float) -> Iterator[Event]:
    end: Event = {"type": "end", "decision": answer.getheader(DECISION), "ttft_s": None, "finish": None}
    size = 0
    while line := answer.readline(MAX_LINE_BYTES):
        if clock() > began_s + talk_s:
            raise TimeoutError
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        chunk = json.loads(data)
        if "error" in chunk:
            yield {"type": "refused", "message": str(chunk["error"].get("message"))[:500], "decision": end["decision"]}
            return
        end |= _usage(chunk)
        for choice in chunk.get("choices") or ():
            text = (choice.get("delta") or {}).get("content") or ""
            end["finish"] = choice.get("finish_reason") or end["finish"]
            if not text:
                continue
            if end["ttft_s"] is None:
                end["ttft_s"] = round(clock() - began_s, 4)
            size += len(text.encode("utf-8", "surrogatepass"))
            if size > MAX_TEXT_BYTES:
                yield {**end, "finish": "cut: MAX_TEXT_BYTES", "e2e_s": round(clock() - began_s, 4)}
                return
            yield {"type": "text", "text": text}
    yield {**end, "e2e_s": round(clock() - began_s, 4)}


def _usage(chunk: Event) -> Event:
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return {"prompt_tokens": usage.get("prompt_tokens"), "completion_tokens": usage.get("completion_tokens"), "cached_tokens": cached}
