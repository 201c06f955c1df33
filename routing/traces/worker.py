"""A process of its own for what is long or foreign: reading a trace that somebody sent, and carrying work out. It holds no key and no connection.

Frames (``routing.prompts.frames``) come in on its standard input and go out on its standard output; it ends when nobody reads any more.

* ``["read", name, [max_bytes, max_requests, max_blocks]]``, then the file's bytes in pieces, then null: ``["chunk", bytes]`` ..., ``["read", facts]``
* ``["work", head, count, checkpoint or null]``, then chunks of requests, then null: now and then ``["progress", done, total]`` and
  ``["checkpoint", bytes]``, and at the end ``["done", values, html, plots]``
* or ``["refused", message, line, field]``: the file or the work is not as it must be, in words for whoever sent it.

    python -m routing.traces.worker MEMORY_BYTES PROCESSOR_S
"""

from __future__ import annotations

import os
import resource
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from routing.prompts import frames
from routing.traces.formats import InMemory, TraceError, read
from routing.traces.request import TraceRequest
from routing.traces.stored import nameless, pack, unpack

FILE_BYTES = 512 << 20  # of what it may write: a table of numbers that outgrew its memory, and matplotlib's list of fonts
GZIP_MAGIC = b"\x1f\x8b"


class Refused(Exception):
    """What was given cannot be used; the words are for whoever gave it."""

    def __init__(self, message: str, line: int = 0, field: str = "") -> None:
        super().__init__(message)
        self.message, self.line, self.field = message, line, field


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    while (piece := frames.read(source)) is not None:
        yield piece


def _tell(sink: BinaryIO, *message: Any) -> None:
    sink.write(frames.pack(message))
    sink.flush()


# ---- reading -----------------------------------------------------------------------------------------------------------


def _read(source: BinaryIO, sink: BinaryIO, name: str, bounds: tuple[int, int, int]) -> None:
    max_bytes, max_requests, max_blocks = bounds
    content = b"".join(_pieces(source))
    name = name.removesuffix(".gz") + (".gz" if content.startswith(GZIP_MAGIC) else "")
    counted = _Counted(max_requests, max_blocks)
    try:
        trace = read(InMemory(name, content, max_bytes), key=secrets.token_bytes(32))
        for chunk in pack(nameless(counted.of(trace.requests))):
            _tell(sink, "chunk", chunk)
    except TraceError as error:
        raise Refused(error.message, error.line, error.field) from None
    except (RecursionError, MemoryError):
        raise Refused("is nested or packed too deeply to be read", field="(file)") from None
    if not counted.requests:
        raise Refused("holds no request", field="(file)")
    facts = {"block_tokens": trace.block_tokens, "timed": trace.timed, "span_s": counted.span_s}
    _tell(sink, "read", facts | {"requests": counted.requests, "prompt_tokens": counted.prompt_tokens})


class _Counted:
    """Counts what goes by, and stops what is too much."""

    def __init__(self, max_requests: int, max_blocks: int) -> None:
        self.max_requests, self.max_blocks = max_requests, max_blocks
        self.requests = self.blocks = self.prompt_tokens = 0
        self.span_s = 0.0

    def of(self, requests: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
        began_s: float | None = None
        for one in requests:
            began_s = one.at_s if began_s is None else began_s
            self.requests += 1
            self.blocks += len(one.blocks)
            self.prompt_tokens += one.prompt_tokens
            self.span_s = one.at_s - began_s
            if self.requests > self.max_requests:
                raise Refused(f"holds more than {self.max_requests} requests", field="(file)")
            if self.blocks > self.max_blocks:
                raise Refused(f"names more than {self.max_blocks} blocks", field="(file)")
            yield one


# ---- working -----------------------------------------------------------------------------------------------------------


def _work(source: BinaryIO, sink: BinaryIO, head: Any, count: int, before: bytes | None) -> None:
    from routing.traces.work import Head, TooLarge, Watcher, perform

    chunks = list(_pieces(source))
    requests = (one for chunk in chunks for one in unpack(chunk))
    watcher = Watcher(
        progress=lambda done, total: _tell(sink, "progress", done, total), checkpoint=lambda content: _tell(sink, "checkpoint", content)
    )
    try:
        done = perform(msgspec.convert(head, Head, strict=False), requests, count=count, watcher=watcher, before=before)
    except (ValueError, TooLarge) as error:
        raise Refused(str(error)) from None
    except MemoryError:
        raise Refused("the work needs more memory than it may take") from None
    _tell(sink, "done", done.values, done.html, done.plots)


def main(memory_bytes: int, processor_s: int) -> None:
    """Do what the first frame asks, within limits."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    os.nice(10)  # requests go first
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, processor_s),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    task, *arguments = frames.read(source)
    try:
        try:
            tasks: dict[str, Callable[..., None]] = {"read": _read, "work": _work}
            tasks[task](source, sink, *arguments)
        except Refused as refused:
            _tell(sink, "refused", refused.message, refused.line, refused.field)
    except BrokenPipeError:  # whoever asked is gone
        with suppress(OSError):
            os.close(1)
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
