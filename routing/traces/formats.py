"""Trace files, read as a stream of requests: plain or gzip.

* *mooncake*: ``{"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}`` a line; blocks of 512 tokens. Our own export adds
  ``session``, ``scope``, ``class``, ``block_tokens`` and ``after`` (ms since the end of the session's previous answer).
* *session*: a JSON file each, ``{"id", "block_size", "hash_id_scope", "requests": [{"t", "in", "out", "hash_ids", "api_time", "think_time"}]}``.
* *text*: ``{"messages": [...]}`` a line (every assistant turn is a request) or ``{"prompt": "..."}``; ``timestamp`` (s), ``session`` and
  ``scope`` may be there; blocks of 64 tokens.

Text keeps no tokens: they are counted as four bytes each, and a block's id is a digest under the reader's key, so that two reports cannot be joined.
A folder of session files is held in memory (times interleave); every other format is one line at a time.
Sources: the formats as published with Mooncake (FAST'25) and kv-cache-tester; OpenAI's chat messages.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import msgspec

from routing.core.prefix import chat_bytes, prompt_bytes
from routing.traces.request import Trace, TraceRequest

Format = Literal["mooncake", "session", "text"]
MOONCAKE_BLOCK_TOKENS = 512
TEXT_BLOCK_TOKENS = 64
BYTES_PER_TOKEN = 4
MAX_LINE_BYTES = 64 << 20
MAX_BLOCKS = 1 << 20  # of one request
MAX_TOKENS = 1 << 26  # of one request
TEXT_GAP_S = 1.0  # between the beginnings of two dialogues that carry no time
TURN_GAP_S = 15.0  # between an answer and the next turn, where no time is recorded


class Source(Protocol):
    """Where a trace's bytes come from: a path, or something that opens like one. Its name tells gzip (``.gz``) and session files (``.json``)."""

    @property
    def name(self) -> str: ...

    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


@dataclass(frozen=True, slots=True)
class InMemory:
    """A file that was sent and lies nowhere. ``max_bytes``: how long it may be when it is unpacked."""

    name: str
    content: bytes
    max_bytes: int

    def open(self, mode: Literal["rb"]) -> IO[bytes]:  # noqa: ARG002 - as a path's
        return io.BytesIO(self.content)


class TraceError(ValueError):
    """A file that cannot be read. ``line`` counts from 1 (in a session file: its requests), ``field`` is a dotted path in it."""

    def __init__(self, name: str, line: int, field: str, message: str) -> None:
        super().__init__(f"{name}, line {line}, {field}: {message}")
        self.name, self.line, self.field, self.message = name, line, field, message


class _Fields:
    """One object's fields, checked as they are taken."""

    def __init__(self, name: str, line: int, content: object) -> None:
        self.name, self.line = name, line
        if not isinstance(content, dict):
            raise self.error("(line)", "must be an object")
        self.content: dict[str, Any] = content

    def error(self, field: str, message: str) -> TraceError:
        return TraceError(self.name, self.line, field, message)

    def number(self, field: str, default: float | None = None) -> float:
        value = self.content.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise self.error(field, "must be a number, at least 0")
        return float(value)

    def count(self, field: str, *, low: int = 1, default: int | None = None) -> int:
        value = self.content.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_TOKENS:
            raise self.error(field, f"must be a whole number from {low} to {MAX_TOKENS}")
        return value

    def text(self, field: str) -> str:
        value = self.content.get(field, "")
        if not isinstance(value, str | int) or isinstance(value, bool) or len(str(value)) > 256:
            raise self.error(field, "must be a short text")
        return str(value)

    def ids(self, field: str, prompt_tokens: int, block_tokens: int) -> tuple[int, ...]:
        value = self.content.get(field)
        if not isinstance(value, list) or len(value) > MAX_BLOCKS:
            raise self.error(field, f"must be a list of at most {MAX_BLOCKS} block ids")
        for position, one in enumerate(value):
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 1 << 63:
                raise self.error(f"{field}[{position}]", "must be a whole number from 0")
        if len(value) > -(-prompt_tokens // block_tokens):
            raise self.error(field, f"{len(value)} blocks of {block_tokens} tokens are more than the prompt's {prompt_tokens} tokens")
        return tuple(value)


def read(path: Source, *, key: bytes = b"") -> Trace:
    """Open a trace: a file of any known format, or a folder of session files. ``key`` names the digests of text.

    Raises:
        FileNotFoundError: nothing is there.
        TraceError: the format is not known, or (while reading) a line does not keep to it.
    """
    if isinstance(path, Path) and path.is_dir():
        files = sorted(one for one in path.iterdir() if one.name.endswith((".json", ".json.gz")))
        if not files:
            raise TraceError(path.name, 1, "(folder)", "holds no session files (*.json, *.json.gz)")
        return _sessions(path.name, files)
    if path.name.removesuffix(".gz").endswith(".json"):
        return _sessions(path.name, [path])
    first = next(_lines(path), None)
    if first is None:
        raise TraceError(path.name, 1, "(line)", "the file is empty")
    fields = _Fields(path.name, *_decoded(path.name, *first))
    if "hash_ids" in fields.content:
        block_tokens = fields.count("block_tokens", default=MOONCAKE_BLOCK_TOKENS)
        return Trace(path.name, block_tokens, True, _mooncake(path, block_tokens))
    if "requests" in fields.content:
        return _sessions(path.name, [path])
    if "messages" in fields.content or "prompt" in fields.content:
        return Trace(path.name, TEXT_BLOCK_TOKENS, "timestamp" in fields.content, _text(path, key))
    raise fields.error("(line)", "has none of hash_ids, requests, messages, prompt: not a format that is known")


@contextmanager
def _open(path: Source) -> Iterator[IO[bytes]]:
    with path.open("rb") as raw:
        yield gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw  # type: ignore[misc]  # what it lacks of IO nobody asks for


def _lines(path: Source) -> Iterator[tuple[int, bytes]]:
    number, read_bytes, max_bytes = 0, 0, getattr(path, "max_bytes", None)
    try:
        with _open(path) as lines:
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise TraceError(path.name, number, "(line)", f"is longer than {MAX_LINE_BYTES} bytes")
                read_bytes += len(line)
                if max_bytes is not None and read_bytes > max_bytes:
                    raise TraceError(path.name, number, "(file)", f"is longer than {max_bytes} bytes when unpacked")
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(path.name, number + 1, "(file)", "is not whole gzip data") from error


def _decoded(name: str, number: int, line: bytes) -> tuple[int, object]:
    try:
        return number, msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(name, number, "(line)", f"is not JSON: {error}") from error


def _mooncake(path: Source, block_tokens: int) -> Iterator[TraceRequest]:
    began_s, before_s = None, 0.0
    for number, line in _lines(path):
        fields = _Fields(path.name, *_decoded(path.name, number, line))
        at_s = fields.number("timestamp") / 1000
        if began_s is None:
            began_s = at_s
        if at_s < before_s:
            raise fields.error("timestamp", "is before that of the line above; sort the file by it")
        before_s = at_s
        if fields.count("block_tokens", default=block_tokens) != block_tokens:
            raise fields.error("block_tokens", f"is not the first line's {block_tokens}")
        prompt_tokens = fields.count("input_length")
        yield TraceRequest(
            at_s=at_s - began_s,
            prompt_tokens=prompt_tokens,
            output_tokens=max(1, fields.count("output_length", low=0)),
            blocks=fields.ids("hash_ids", prompt_tokens, block_tokens),
            session=fields.text("session"),
            scope=fields.text("scope"),
            kind=fields.text("class"),
            after_s=fields.number("after") / 1000 if "after" in fields.content else None,
        )


def _sessions(name: str, files: Iterable[Source]) -> Trace:
    """Session files merged by time: each is loaded whole (one session), its ids moved into a range of its own where they are local to it."""
    streams, block_tokens = [], 0
    for place, path in enumerate(files):
        with _open(path) as file:
            try:
                content = file.read(MAX_LINE_BYTES + 1)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise TraceError(path.name, 1, "(file)", "is not whole gzip data") from error
        if len(content) > MAX_LINE_BYTES:
            raise TraceError(path.name, 1, "(file)", f"is larger than {MAX_LINE_BYTES} bytes")
        fields = _Fields(path.name, *_decoded(path.name, 1, content))
        size = fields.count("block_size")
        if block_tokens not in (0, size):
            raise fields.error("block_size", f"is not the {block_tokens} of the files before")
        block_tokens = size
        streams.append(_session(path.name, fields, place, size))
    return Trace(name, block_tokens, True, heapq.merge(*streams, key=lambda one: one.at_s))


def _session(name: str, head: _Fields, place: int, block_tokens: int) -> list[TraceRequest]:
    requests = head.content.get("requests")
    if not isinstance(requests, list):
        raise head.error("requests", "must be a list")
    base = (place + 1) << 40 if head.content.get("hash_id_scope", "local") == "local" else 0
    found: list[TraceRequest] = []
    ended_s = 0.0
    for number, content in enumerate(requests, start=1):
        fields = _Fields(name, number, content)
        at_s, prompt_tokens = fields.number("t"), fields.count("in")
        ids = fields.ids("hash_ids", prompt_tokens, block_tokens)
        think_s = fields.number("think_time", default=max(0.0, at_s - ended_s))
        ended_s = at_s + fields.number("api_time", default=0.0)
        found.append(
            TraceRequest(
                at_s=at_s if not found else max(at_s, found[-1].at_s),
                prompt_tokens=prompt_tokens,
                output_tokens=max(1, fields.count("out", low=0, default=0)),
                blocks=tuple(base + one for one in ids) if base else ids,
                session=str(head.content.get("id") or name),
                kind="agent",
                after_s=think_s if found else None,
            )
        )
    return found


def _text(path: Source, key: bytes) -> Iterator[TraceRequest]:
    before_s = 0.0
    for place, (number, line) in enumerate(_lines(path)):
        fields = _Fields(path.name, *_decoded(path.name, number, line))
        at_s = fields.number("timestamp", default=place * TEXT_GAP_S)
        if at_s < before_s:
            raise fields.error("timestamp", "is before that of the line above; sort the file by it")
        before_s = at_s
        session, scope = fields.text("session") or f"line {number}", fields.text("scope")
        for turn, (prompt, answer) in enumerate(_turns(fields)):
            prompt_tokens = max(1, len(prompt) // BYTES_PER_TOKEN)
            yield TraceRequest(
                at_s=at_s,
                prompt_tokens=prompt_tokens,
                output_tokens=max(1, len(answer) // BYTES_PER_TOKEN),
                blocks=_chain(key, prompt, prompt_tokens),
                session=session,
                scope=scope,
                after_s=TURN_GAP_S if turn else None,
            )


def _turns(fields: _Fields) -> Iterator[tuple[bytes, bytes]]:
    """(prompt, answer) of each request in a line: every assistant message answers what stands before it."""
    messages = fields.content.get("messages")
    if messages is None:
        prompt = fields.content.get("prompt")
        if not isinstance(prompt, str | list):
            raise fields.error("prompt", "must be a text or a list")
        yield prompt_bytes(prompt), b""
        return
    if not isinstance(messages, list) or not messages:
        raise fields.error("messages", "must be a list with at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise fields.error(f"messages[{place}]", "must be an object")
    tools = fields.content.get("tools")
    answered = [place for place, message in enumerate(messages) if place and message.get("role") == "assistant"]
    for place in answered or [len(messages)]:
        yield chat_bytes(messages[:place], tools), chat_bytes(messages[place : place + 1])


def _chain(key: bytes, prompt: bytes, prompt_tokens: int) -> tuple[int, ...]:
    """Ids (63 bit) of all blocks of a prompt, each a keyed digest of everything up to its end; the last may be partial."""
    running = hashlib.blake2b(key=key[:64], digest_size=8)
    size = TEXT_BLOCK_TOKENS * BYTES_PER_TOKEN
    ids = []
    for start in range(0, prompt_tokens * BYTES_PER_TOKEN, size):
        running.update(prompt[start : start + size])
        ids.append(int.from_bytes(running.digest(), "little") >> 1)
    return tuple(ids)
