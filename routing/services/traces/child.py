"""The process that reads traces and carries work out, from the side of whoever started it: with a bound on its time, ended when it is left."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cache
from types import TracebackType
from typing import Any, Self

from django.conf import settings

from routing.prompts import frames

PIECE_BYTES = 1 << 20
MAX_FRAME_BYTES = 96 << 20
WAIT_S = 0.5  # for one look at what it says


class ChildEnded(Exception):
    """It ended, was killed by one of its limits, or said what it may not say."""


class Child:
    """One process for one task. It gets no environment but what numpy and matplotlib need: no key, no address, no password."""

    def __init__(self, *, memory_bytes: int, processor_s: int) -> None:
        argv = [sys.executable, "-m", "routing.traces.worker", str(memory_bytes), str(processor_s)]
        env = {"MPLCONFIGDIR": _font_cache(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(  # noqa: S603 - our own module, with two numbers
            argv,
            cwd=settings.BASE_DIR,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback could quote what somebody sent
            start_new_session=True,
        )
        self._said = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Whatever it was doing, it is over."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()

    def ask(self, task: list[Any], pieces: Iterable[bytes]) -> None:
        """Hand over the task and all that belongs to it. It says nothing before it has read that.

        Raises:
            ChildEnded: it is gone.
        """
        sink = self._process.stdin
        if sink is None:
            raise ChildEnded
        try:
            sink.write(frames.pack(task))
            for piece in pieces:
                sink.write(frames.pack(piece))
            sink.write(frames.pack(None))
            sink.flush()
        except OSError:
            raise ChildEnded from None

    def answers(self, *, within_s: float) -> Iterator[list[Any] | None]:
        """What it says, message by message, and None at least every ``WAIT_S`` while it is silent. Ends with the process' last message.

        Raises:
            ChildEnded: it ended without one, or took longer than ``within_s``.
        """
        pipe, until_s = self._process.stdout, time.monotonic() + within_s
        if pipe is None:
            raise ChildEnded
        while True:
            message = self._message()
            if message is not None:
                yield message
                if message[0] in ("read", "done", "refused"):
                    return
                continue
            if time.monotonic() > until_s:
                raise ChildEnded("took too long")
            if select.select([pipe], [], [], WAIT_S)[0]:
                part = os.read(pipe.fileno(), PIECE_BYTES)
                if not part:
                    raise ChildEnded
                self._said += part
            else:
                yield None

    def _message(self) -> list[Any] | None:
        """The next whole message of what it has said."""
        size = int.from_bytes(self._said[: frames.HEAD_BYTES], "big")
        if size > MAX_FRAME_BYTES:
            raise ChildEnded("said too much at once")
        end = frames.HEAD_BYTES + size
        if len(self._said) < max(end, frames.HEAD_BYTES):
            return None
        try:
            message = frames.unpack(bytes(self._said[frames.HEAD_BYTES : end]))
        except frames.FrameError:
            raise ChildEnded("said what nobody understands") from None
        del self._said[:end]
        if not isinstance(message, list) or not message:
            raise ChildEnded("said what nobody understands")
        return message


def in_pieces(content: bytes) -> Iterator[bytes]:
    """A content as pieces that fit into frames."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


@cache
def _font_cache() -> str:
    """Where matplotlib keeps its list of fonts, so that it is made once in the life of this process. Removed at its end."""
    held = tempfile.TemporaryDirectory(prefix="saltroute-fonts-")
    _kept.append(held)
    return held.name


_kept: list[tempfile.TemporaryDirectory[str]] = []
