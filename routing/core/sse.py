"""Server-sent events as bytes: find where one ends, without changing a byte of it.

An event ends with a blank line; a line ends with LF, CRLF or CR, in any mixture, and any of these may be split between two reads. Events are
handed on
whole: half an event is never relayed, so that an error of ours can follow on a clean boundary, and a multi-byte character is never cut.
Source: WHATWG HTML, "Server-sent events", parsing an event stream.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 1024 * 1024
_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Cuts a byte stream into whole events. Holds at most one unfinished event; one longer than ``MAX_EVENT_BYTES`` is handed on in pieces."""

    __slots__ = ("_after_cr", "_held", "_scanned", "oversized")

    def __init__(self) -> None:
        self._held = b""
        self._scanned = 0
        self._after_cr = False  # the last event ended with CR: a LF that follows belongs to it
        self.oversized = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that ``chunk`` completes, terminators included; their concatenation, with what is still held, is the input."""
        if not self._held and not self._after_cr and chunk.endswith(b"\n\n") and b"\r" not in chunk and chunk.find(b"\n\n") == len(chunk) - 2:
            return [chunk]  # one whole event in one read, as engines write them
        data = self._held + chunk
        events: list[bytes] = []
        start = 0
        if self._after_cr and data:
            self._after_cr = False
            if data[:1] == b"\n":
                events.append(b"\n")
                start = 1
        scan = max(start, self._scanned - 3)
        while match := _END.search(data, scan):
            events.append(data[start : match.end()])
            start = scan = match.end()
        self._after_cr = start == len(data) and data.endswith(b"\r") and bool(events)
        self._held = data[start:]
        self._scanned = len(self._held)
        if len(self._held) > MAX_EVENT_BYTES:
            events.append(self._held)
            self._held, self._scanned = b"", 0
            self.oversized += 1
        return events

    @property
    def held_bytes(self) -> int:
        """How much of an event waits for the rest of it."""
        return len(self._held)

    def rest(self) -> bytes:
        """What came after the last whole event; the splitter is empty afterwards."""
        held, self._held, self._scanned = self._held, b"", 0
        return held


def data_of(event: bytes) -> bytes | None:
    """The data of an event, its lines joined by LF; None if it has none (a comment, a heartbeat, a blank line)."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.endswith(b"\n\n") and b"\r" not in event:
        return event[6:-2]  # one line, as engines write them
    lines = []
    for line in _LINE.split(event):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


def event(data: bytes) -> bytes:
    """Write one event; ``data`` holds no line ends."""
    return b"data: " + data + b"\n\n"
