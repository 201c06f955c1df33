"""The connections behind one source of KV events: a SUB's, and during a replay a DEALER's.

A source is a PUB socket and, beside it, a ROUTER that replays what is still buffered. Both are spoken to over plain connections of the event loop
(:mod:`routing.core.zmtp`), each made once, to one literal address that was checked; whoever connects again asks the guard again.

Policy on what waits here. Live: reading stops while ``LIVE_UNREAD_BYTES`` lie unread, and the rest waits at the publisher, up to its own mark (vLLM:
100,000 messages). What it drops then shows as a gap in the numbers, and a replay repairs it. Replay: its sender drops what we do not read at once,
without a sign, so it is read as fast as it comes; where that is more than may wait (``admit``), the connection is closed, what came before that is
still read, and then it is called cut. A message above ``MAX_MESSAGE_BYTES`` is passed over while it comes in: its number is known, its content lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, cast

from routing.core import zmtp

LIVE_UNREAD_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 2 * 1024 * 1024  # a report of a prompt of 400,000 tokens
HEARTBEAT_S = 5.0
HEARTBEAT_TIMEOUT_S = 15.0
END = b"\xff" * 8
MAX_UNSENT_BYTES = 16 * 1024  # of answers to heartbeats: whoever asks and does not read is left
MAX_NUMBER = 2**63  # no publisher comes so far, and the number after it must still fit into a question

Kind = Literal["live", "replay", "end", "malformed", "topic", "too_large", "cut"]
Message = tuple[Kind, int, bytes]  # what it is, its number, its payload
Admit = Callable[[int], bool]  # whether this source may hold so many bytes more


class _Link(asyncio.Protocol):
    """One connection. ``hello`` is sent when both sides have said what they are; ``lost``: it is over, or was never made."""

    def __init__(self, kind: zmtp.Kind, hello: bytes, *, wake: Callable[[], None]) -> None:
        self.reader = zmtp.Reader(max_frame_bytes=MAX_MESSAGE_BYTES)
        self.lost = self.cut = False
        self.established = asyncio.Event()  # or lost: look at that first
        self._kind: zmtp.Kind = kind
        self._hello = hello
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._heard_s = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None

    async def connect(self, address: str, port: int, connect_s: float) -> None:
        """Connect; what fails is said by ``lost``."""
        try:
            async with asyncio.timeout(connect_s):
                await self._loop.create_connection(lambda: self, address.strip("[]"), port)
        except OSError:
            self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # the loop's own class may be another
        if self.lost:
            self._transport.abort()
            return
        self._write(zmtp.GREETING)
        self._beat = self._loop.call_later(HEARTBEAT_S, self._ask_beat)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if not self.lost:
            self.reader.feed(data)
            if self.established.is_set():
                self.received()
            else:
                self._shake()
            self._wake()

    def received(self) -> None:
        """Bytes came in."""

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._end()

    def next(self) -> zmtp.Message | None:
        """The next message. A breach of the protocol ends the connection."""
        try:
            found = self.reader.next()
        except zmtp.ZmtpError:
            self.close()
            return None
        if self.reader.reply:
            reply, self.reader.reply = self.reader.reply, b""
            self._write(reply)
        return found

    def _shake(self) -> None:
        greeted = self.reader.greeted
        try:
            self.reader.shake()
        except zmtp.ZmtpError:
            self.close()
            return
        if self.reader.greeted and not greeted:
            self._write(zmtp.ready(self._kind))
        if self.reader.ready:
            self._write(self._hello)
            self.established.set()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self.close()

    def _ask_beat(self) -> None:
        silent_s = self._loop.time() - self._heard_s
        if silent_s > HEARTBEAT_TIMEOUT_S and not (self._transport is not None and not self._transport.is_reading()):
            self.close()
            return
        if silent_s >= HEARTBEAT_S:
            self._write(zmtp.ping())
        self._beat = self._loop.call_later(HEARTBEAT_S, self._ask_beat)

    def _end(self) -> None:
        self.lost = True
        if self._beat is not None:
            self._beat.cancel()
        self.established.set()
        self._wake()

    def close(self) -> None:
        """Safe to repeat."""
        self.stop()
        self._end()

    def stop(self) -> None:
        """Receive nothing more."""
        if self._transport is not None:
            self._transport.abort()


class _Live(_Link):
    """Reads no further while enough lies unread. A message for which there is no room is passed over."""

    def __init__(self, hello: bytes, *, wake: Callable[[], None], admit: Admit) -> None:
        super().__init__(b"SUB", hello, wake=wake)
        self._admit = admit
        self._most_bytes = LIVE_UNREAD_BYTES

    def received(self) -> None:
        if self.reader.waiting_bytes >= self._most_bytes and self._transport is not None:
            self._transport.pause_reading()

    def next(self) -> zmtp.Message | None:
        found = super().next()
        if found is None and not self.lost and self._transport is not None:
            wants = self.reader.wants()
            if wants > LIVE_UNREAD_BYTES and not self._admit(wants):
                self.reader.pass_over()
                wants = 1
            self._most_bytes = max(LIVE_UNREAD_BYTES, wants)
            self._transport.resume_reading()
        return found


class _Replay(_Link):
    """Reads whatever comes until it is more than may wait."""

    def __init__(self, hello: bytes, *, wake: Callable[[], None], admit: Admit) -> None:
        super().__init__(b"DEALER", hello, wake=wake)
        self._admit = admit

    def received(self) -> None:
        if not self.cut and not self._admit(0):
            self.cut = True
            self.stop()


class EventSockets:
    """Both connections. ``wake`` is called when something may be readable, ``admit`` asked whether more may wait. Close it on every way out.

    All receiving is non-blocking; None is "nothing there now", and ``wake`` will be called again.
    """

    def __init__(
        self, address: str, *, port: int, replay_port: int | None, topic: str | None, connect_s: float, wake: Callable[[], None], admit: Admit
    ) -> None:
        self._address = address
        self._replay_port = replay_port
        self._topic = None if topic is None else topic.encode()
        self._connect_s = connect_s
        self._wake = wake
        self._admit = admit
        self._tasks: set[asyncio.Task[None]] = set()
        self._live = _Live(zmtp.message(b"\x01" + (self._topic or b"")), wake=wake, admit=admit)
        self._replay: _Replay | None = None
        self._connect(self._live, port)

    def _connect(self, link: _Link, port: int) -> None:
        task = asyncio.create_task(link.connect(self._address, port, self._connect_s), name="kv connect")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def established(self) -> asyncio.Event:
        """Set when the subscription is sent, and when there is no connection any more: whoever waits for it looks at ``lost`` first."""
        return self._live.established

    @property
    def lost(self) -> bool:
        return self._live.lost

    @property
    def waiting_bytes(self) -> int:
        """What was received and not read yet."""
        return self._live.reader.waiting_bytes + (0 if self._replay is None else self._replay.reader.waiting_bytes)

    # -- receiving -----------------------------------------------------------------------------------------------------------------

    def live(self) -> Message | None:
        """The next live batch."""
        frames = self._live.next()
        if frames is None:
            return None
        if len(frames) != 3 or frames[1] is None or len(frames[1]) != 8:
            return "malformed", 0, b""
        if self._topic is not None and frames[0] != self._topic:
            return "topic", 0, b""  # the filter is by prefix only
        return _numbered("live", frames[1], frames[2])

    def replay(self) -> Message | None:
        """The next batch of a replay under way, or its end."""
        link = self._replay
        frames = None if link is None else link.next()
        if link is None or frames is None:
            return ("cut", 0, b"") if link is not None and link.cut else None
        if len(frames) == 3:  # SGLang's answers name no topic
            frames = [frames[0], b"", *frames[1:]]
        if len(frames) != 4 or frames[0] != b"" or frames[2] is None or len(frames[2]) != 8:
            return "malformed", 0, b""
        if frames[2] == END:
            return "end", 0, b""
        return _numbered("replay", frames[2], frames[3])

    # -- asking --------------------------------------------------------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    def ask(self, first: int) -> None:
        """Ask for everything from ``first`` on. A fresh connection each time: what an earlier replay still sends is never taken for this one's."""
        self.end_replay()
        if self._replay_port is not None:
            self._replay = _Replay(zmtp.message(b"", first.to_bytes(8, "big")), wake=self._wake, admit=self._admit)
            self._connect(self._replay, self._replay_port)

    def end_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()

    def close(self) -> None:
        """Safe to repeat."""
        self.end_replay()
        self._live.close()
        for task in list(self._tasks):
            task.cancel()


def _numbered(kind: Literal["live", "replay"], number: bytes, payload: bytes | None) -> Message:
    at = int.from_bytes(number, "big")
    if at >= MAX_NUMBER:
        return "malformed", 0, b""
    return ("too_large", at, b"") if payload is None else (kind, at, payload)
