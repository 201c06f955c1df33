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

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Kind = Literal["ok", "client", "busy", "replica", "aborted"]
MAX_ERROR_BYTES = 64 * 1024
MAX_MEMBER_BYTES = 1024 * 1024  # of what is built of an answer, which may have 64 MiB: a prefill engine's list of 65,536 blocks has 720 KB
MAX_MEMBER_SIGNS = 1024  # brackets and braces in it
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


_NOTHING = msgspec.Raw(b"null")
TEXT_STEP_BYTES = 64 * 1024


class _Error(msgspec.Struct):
    """What is read of an error, as JSON. Whatever else there is is skipped, not built: an answer of 6 MB may be two million lists."""

    message: msgspec.Raw = _NOTHING
    type: msgspec.Raw = _NOTHING
    param: msgspec.Raw = _NOTHING
    code: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING

    def words(self) -> dict[str, Any]:
        """Its texts and numbers."""
        named = (("message", self.message), ("type", self.type), ("param", self.param), ("code", self.code), ("status", self.status))
        return {name: value for name, raw in named if not isinstance(value := _built(raw), dict | list | None)}


class _Answer(_Error):
    """What is read of an answer, or of the data of an event. Some engines write an error as the whole of it."""

    object: msgspec.Raw = _NOTHING
    choices: msgspec.Raw = _NOTHING
    usage: msgspec.Raw = _NOTHING
    kv_transfer_params: msgspec.Raw = _NOTHING


_error = msgspec.json.Decoder(_Error)
_answer = msgspec.json.Decoder(_Answer)


class Said(msgspec.Struct, frozen=True):
    """What an answer says, or the data of an event. ``aborted``: a choice of it was given up."""

    aborted: bool
    answer: _Answer

    @property
    def usage(self) -> object:
        """Its usage, whatever that is; None where it says nothing of it."""
        return _built(self.answer.usage)

    @property
    def transfer(self) -> object:
        """What a prefill engine hands over, whatever that is; None for nothing."""
        return _built(self.answer.kv_transfer_params)

    @property
    def has_choices(self) -> bool:
        """Whether it has any but an empty list of them."""
        start = bytes(memoryview(self.answer.choices)[:64])
        return start.translate(None, b" \t\r\n") not in (b"null", b"[]")

    @property
    def shaped(self) -> bool:
        """Whether it is an error in OpenAI's shape."""
        return bytes(memoryview(self.answer.error)[:1]) == b"{"

    @property
    def error(self) -> dict[str, Any] | None:
        """The error in it, in any of the shapes that engines use; None if there is none."""
        if self.shaped:
            return _read_error(self.answer.error)
        start = bytes(memoryview(self.answer.error)[:2])
        if start[:1] == b'"' and start != b'""':
            return {"message": _built(self.answer.error)}
        is_error = "error" in (_built(self.answer.object), _built(self.answer.type))
        return self.answer.words() if is_error else None


def parse(data: bytes) -> Said | None:
    """What an answer says, or the data of an event; None where it is no JSON object."""
    if not _is_text(data):
        return None
    try:
        answer = _answer.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    # In a text its quotes would be escaped.
    aborted = b'"abort"' in data and (b'"finish_reason":"abort"' in data or b'"finish_reason": "abort"' in data)
    return Said(aborted, answer)


def _is_text(data: bytes) -> bool:
    """Whether it is UTF-8, which is not looked at in what is skipped. In steps, since a text of megabytes takes up to four times its bytes."""
    if data.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), TEXT_STEP_BYTES):
            decoder.decode(data[start : start + TEXT_STEP_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _read_error(raw: msgspec.Raw) -> dict[str, Any]:
    """An error object: its words, and those of one inside."""
    try:
        read = _error.decode(raw)
        inner = {"error": _error.decode(read.error).words()} if bytes(memoryview(read.error)[:1]) == b"{" else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return read.words() | inner


def _built(raw: msgspec.Raw) -> Any:
    """A member's value; None where it is more than is ever looked at, or a number that none is."""
    size = len(memoryview(raw))
    if size > MAX_MEMBER_BYTES:
        return None
    data = bytes(raw)
    if size > MAX_MEMBER_SIGNS and data.count(b"[") + data.count(b"{") > MAX_MEMBER_SIGNS:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _status_in(error: dict[str, Any], default: int) -> int:
    code = error.get("code", error.get("status"))
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdigit():
        code = int(code)
    if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
        return code
    named = str(error.get("type", "")).lower()
    return 400 if any(word in named for word in _CLIENT_TYPES) else default


def judge(status: int, said: Said | None) -> Verdict:
    """Judge an answer by its status and what it says (of a stream: the data of its first event)."""
    error = None if said is None else said.error
    if not 200 <= status < 300:
        return Verdict(kind=kind_of(status), status=status, error=error)
    if error is not None:
        inner = _status_in(error, 500)
        return Verdict(kind=kind_of(inner), status=inner, error=error)
    if said is not None and said.aborted:
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
    shaped = (said := parse(body)) is not None and said.shaped
    return shaped and safe_message(verdict.error, secrets) is not None and not any(secret and secret.lower() in text for secret in secrets)
