"""Long work on a terminal: a bar that says how far it is and when it ends, and a file with which it goes on after an interruption."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal, TextIO

import msgspec

BAR_CHARACTERS = 24
LINE_CHARACTERS = 100
VERSION = 1


class Watched:
    """A file of which is known how much has been read."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self._size = max(1, path.stat().st_size)
        self._file: IO[bytes] | None = None

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        self._file = self.path.open(mode)
        return self._file

    def share(self) -> float:
        """From 0 to 1, by bytes of the file as it lies there. It reads ahead a little."""
        return 0.0 if self._file is None or self._file.closed else min(1.0, self._file.tell() / self._size)


class Bar:
    """One line that is written over again and again; nothing where ``sink`` is no terminal."""

    def __init__(self, sink: TextIO, *, share: Callable[[], float] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._share, self._clock = sink, share, clock
        self._shown = sink.isatty()
        self._began_s = clock()

    def show(self, done: int, total: int | None) -> None:
        """``total`` None: not known; then how much of the file has been read stands for it."""
        if self._shown:
            share = done / total if total else self._share() if self._share else None
            text = bar_line(done, total, share, self._clock() - self._began_s)
            self._sink.write("\r" + text.ljust(LINE_CHARACTERS))
            self._sink.flush()

    def clear(self) -> None:
        if self._shown:
            self._sink.write("\r" + " " * LINE_CHARACTERS + "\r")
            self._sink.flush()


def bar_line(done: int, total: int | None, share: float | None, took_s: float) -> str:
    """How far it is, in one line."""
    counted = f"{done:,} of {total:,} requests" if total else f"{done:,} requests"
    if share is None:
        return f"{counted}, {took_s:.0f} s"
    full = round(share * BAR_CHARACTERS)
    left = f", about {took_s * (1 - share) / share:.0f} s left" if share > 0.01 and share < 1 else ""
    return f"[{'#' * full}{'.' * (BAR_CHARACTERS - full)}] {share:4.0%}  {counted}{left}"


class Unusable(Exception):
    """A checkpoint that is of something else, or damaged."""


class CheckpointFile:
    """What interrupted work goes on from: the key of its text's digests, and its last checkpoint. Readable to its owner alone, gone when the work is.

    ``about`` names the input (path, size, time of change): a checkpoint of another input is refused, not silently begun anew.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.key = secrets.token_bytes(32)
        self.before: bytes | None = None
        if path is None or not path.exists():
            return
        try:
            held = msgspec.msgpack.decode(path.read_bytes(), type=dict[str, Any])
            self.key, before = held["key"], held["checkpoint"]
            known = held["version"] == VERSION and held["about"] == about
        except (msgspec.MsgspecError, KeyError) as error:
            raise Unusable(f"{path} is no checkpoint") from error
        if not known:
            raise Unusable(f"{path} belongs to other work, or the trace has changed since; delete it to begin anew")
        self.before = before

    def keep(self, checkpoint: bytes) -> None:
        """Replace the file by a newer one, whole or not at all."""
        if self.path is None:
            return
        held = {"version": VERSION, "about": self.about, "key": self.key, "checkpoint": checkpoint}
        part = self.path.with_name(self.path.name + ".part")
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.msgpack.encode(held))
        part.replace(self.path)

    def done(self) -> None:
        """The work is over."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def about(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What names an input and what is done with it."""
    found = path.stat()
    return {"path": str(path.resolve()), "bytes": found.st_size, "changed_ns": found.st_mtime_ns, "options": options}
