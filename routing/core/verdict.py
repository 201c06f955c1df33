"""What an engine's answer means, judged before the client is told a status.

Engines say "error" in many ways: a status, a JSON object under 200, the first event of a stream under 200, a finish reason ``abort`` from an
engine that is
shutting down. All become one of five verdicts:

    ok       relay it
    client   the request's own fault (4xx): passed on, never retried, opens no breaker
    busy     this replica takes no more now (429): another may; no breaker
    replica  the replica's or our own fault (5xx, an engine's 401, a redirect): another may; counts against the replica
    aborted  the engine gave up without a word: as ``replica``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Kind = Literal["ok", "client", "busy", "replica", "aborted"]
MAX_ERROR_BYTES = 64 * 1024
MAX_VALUES = 4_000_000  # of one answer; each costs up to a hundred bytes once it is read, and an answer may have 64 MiB
MAX_MESSAGE_CHARACTERS = 2000
# The path, the model's name and the credential are ours, so these say that we, or the replica, are set up wrongly.
_OURS = frozenset({401, 402, 403, 404, 405, 406, 407, 408, 411, 417, 421, 425, 426, 431})
_CLIENT_TYPES = ("invalid", "badrequest", "bad_request", "bad request", "validation", "unprocessable")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status`` is the engine's own, or the code inside its error object. ``error`` is that object, not yet safe to show."""

    kind: Kind
    status: int = 200
    error: dict[str, Any] | None = None


OK = Verdict(kind="ok")


def kind_of(status: int) -> Kind:
    """The verdict on a status alone."""
    if 200 <= status < 300:
        return "ok"
    if status == 429:
        return "busy"
    return "client" if 400 <= status < 500 and status not in _OURS else "replica"


def _error_in(payload: object) -> dict[str, Any] | None:
    """The error object in a payload, in any of the shapes that engines use; None if there is none."""
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str) and error:
        return {"message": error}
    return payload if payload.get("object") == "error" or payload.get("type") == "error" else None


def _status_in(error: dict[str, Any], default: int) -> int:
    code = error.get("code", error.get("status"))
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
        return code
    named = str(error.get("type", "")).lower()
    return 400 if any(word in named for word in _CLIENT_TYPES) else default


def _finished_by_abort(payload: object) -> bool:
    choices = payload.get("choices") if isinstance(payload, dict) else None
    return isinstance(choices, list) and any(isinstance(choice, dict) and choice.get("finish_reason") == "abort" for choice in choices)


def parse(data: bytes) -> object:
    """JSON, or None where it is none, or more than ``MAX_VALUES`` values: counted by their signs, before anything is built."""
    if len(data) > MAX_VALUES and data.count(b",") + data.count(b"{") + data.count(b"[") > MAX_VALUES:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def judge(status: int, payload: object) -> Verdict:
    """Judge an answer by status and parsed body (of a stream: the data of its first event)."""
    if not 200 <= status < 300:
        return Verdict(kind=kind_of(status), status=status, error=_error_in(payload))
    error = _error_in(payload)
    if error is not None:
        inner = _status_in(error, 500)
        return Verdict(kind=kind_of(inner), status=inner, error=error)
    if _finished_by_abort(payload):
        return Verdict(kind="aborted", status=503)
    return OK


def misses_model(verdict: Verdict, model: str) -> bool:
    """Whether the engine says that it has no model of the name that we sent. vLLM 0.32: 404 with ``param: model``; on /v1/messages the text alone."""
    error = verdict.error or {}
    inner = error.get("error")
    error = inner if isinstance(inner, dict) else error
    if verdict.status != 404 or not error:
        return False
    said = error.get("message")
    named = isinstance(said, str) and said.startswith(f"The model `{model}` does not exist")
    return error.get("param") == "model" or error.get("code") == "model_not_found" or named


def safe_message(error: dict[str, Any] | None, secrets: Sequence[str]) -> str | None:
    """The error's message if it may be shown: text, bounded, no markup, none of ``secrets`` (addresses and credentials) in it."""
    message = error.get("message") if error else None
    if not isinstance(message, str) or not message:
        return None
    lowered = message.lower()
    if "<html" in lowered or "<!doctype" in lowered or any(secret and secret.lower() in lowered for secret in secrets):
        return None
    return message[:MAX_MESSAGE_CHARACTERS]


def may_pass(body: bytes, verdict: Verdict, secrets: Sequence[str]) -> bool:
    """Whether an engine's own error body may reach the client as it is: OpenAI's shape, bounded, nothing of ours in it."""
    if verdict.error is None or len(body) > MAX_ERROR_BYTES:
        return False
    text = body.decode("utf-8", "replace").lower()
    shaped = isinstance(payload := parse(body), dict) and isinstance(payload.get("error"), dict)
    return shaped and safe_message(verdict.error, secrets) is not None and not any(secret and secret.lower() in text for secret in secrets)
