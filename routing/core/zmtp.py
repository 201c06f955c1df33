"""ZMTP 3.0, the wire between two ZMQ sockets, as far as a SUB and a DEALER need it: greetings, frames, and where one message ends.

Why not the library: it reads ahead in a thread of its own and bounds messages, never bytes. Here whoever owns the connection sees every byte that
waits, may stop reading, and a frame that is too long is passed over while it comes in, without being held. Pure: bytes in, messages out.

Only the mechanism NULL is spoken, which is what engines use. Source: the published protocol, RFC 23/ZMTP; tried against libzmq.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
GREETING_BYTES: Final = 64
MAX_FRAMES = 8  # kept of one message; more make it no message of ours
MAX_MESSAGE_FRAMES = 256  # a message of more has no end: whoever sends it is left
MAX_COMMANDS = 64  # between two messages, in one go: as above
MAX_COMMAND_BYTES = 4096
MAX_PASSED_OVER_BYTES = 64 * 1024 * 1024  # a longer frame is no frame: whoever announces it is left
SMALL_CHUNK_BYTES = 1024
CHUNK_COST_BYTES = 64  # of keeping one piece as it came in, besides its bytes
_MORE, _LONG, _COMMAND = 1, 2, 4
_TAKEN: Final = bytes(0)

Kind = Literal[b"SUB", b"DEALER"]
Frame = bytes | None  # None: longer than the bound, passed over
Message = list[Frame]


class ZmtpError(ValueError):
    """What came is not ZMTP as it is spoken here. The text quotes nothing of it."""


def ready(kind: Kind) -> bytes:
    """The command by which a socket says what it is."""
    return _command(b"\x05READY" + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind)


def ping() -> bytes:
    """A question whether the other side is still there; whatever comes after it is an answer."""
    return _command(b"\x04PING\0\0")


def message(*frames: bytes) -> bytes:
    """One message as it is sent."""
    last = len(frames) - 1
    return b"".join(_header(_MORE if place < last else 0, len(frame)) + frame for place, frame in enumerate(frames))


def _command(body: bytes) -> bytes:
    return _header(_COMMAND, len(body)) + body


def _header(flags: int, size: int) -> bytes:
    return bytes((flags, size)) if size < 256 else bytes((flags | _LONG,)) + size.to_bytes(8, "big")


class Reader:
    """One connection's incoming side. ``waiting_bytes`` is what it holds. Not thread-safe.

    ``greeted`` and ``ready`` tell how far the other side has come; ``reply`` is what must be sent back, and taken out by whoever sends it: of several
    questions the last one's. No call reads more than a few hundred frames, however small they are.
    """

    def __init__(self, *, max_frame_bytes: int) -> None:
        self.greeted = self.ready = False
        self.reply = b""
        self.waiting_bytes = 0
        self._max_frame_bytes = max_frame_bytes
        self._chunks: deque[bytes] = deque()
        self._head = _TAKEN
        self._at = 0
        self._unread = 0  # bytes, in the head from ``_at`` on and in the chunks
        self._pass_over = 0  # bytes of the frame at the head that are not kept
        self._more = False  # the frame that is passed over is not its message's last
        self._frames: Message = []
        self._frames_bytes = 0
        self._frames_seen = 0  # of the message that is under way, kept or not
        self._commands = 0  # that this call has read

    def feed(self, data: bytes) -> None:
        """Bytes came in."""
        self._unread += len(data)
        self.waiting_bytes += len(data)
        if self._chunks and len(self._chunks[-1]) + len(data) <= SMALL_CHUNK_BYTES:
            self._chunks[-1] += data  # who sends byte by byte costs no object for each
        else:
            self._chunks.append(data)
            self.waiting_bytes += CHUNK_COST_BYTES

    def wants(self) -> int:
        """How many bytes must wait here until the frame at the head is whole; 1 where nothing is known of it."""
        if self._pass_over:
            return 1
        found = self._peek() if self.greeted else None
        return 1 if found is None else found[1] + found[2]

    def pass_over(self) -> None:
        """Do not keep the frame at the head: there is no room for it. Its message comes out with None in its place."""
        found = self._peek()
        if found is not None and not self._pass_over and not found[0] & _COMMAND:
            self._begin_passing(*found)

    def shake(self) -> None:
        """Read the other side's half of the handshake as far as it came: ``greeted``, then ``ready``.

        Raises:
            ZmtpError: this is no ZMTP, or the other side refuses us.
        """
        self._commands = 0
        if not self.greeted:
            if (greeting := self._take(GREETING_BYTES)) is None:
                return
            if greeting[0] != 0xFF or not greeting[9] & 1 or greeting[10] < 3 or greeting[12:32] != GREETING[12:32]:
                raise ZmtpError("no greeting of ZMTP 3 without security")
            self.greeted = True
        while not self.ready and (found := self._head_frame()) is not None:
            flags, header, size = found
            if not flags & _COMMAND:
                raise ZmtpError("a message before the handshake's end")
            if self._unread < header + size:
                return
            self._command(header, size)

    def next(self) -> Message | None:
        """The next whole message; None until more bytes came.

        Raises:
            ZmtpError: as :meth:`shake`.
        """
        self.shake()
        while self.ready:
            if self._pass_over and not self._passed():
                return None
            if self._over():
                return self._end()
            if (found := self._head_frame()) is None:
                return None
            flags, header, size = found
            if size > self._max_frame_bytes and not flags & _COMMAND:
                self._begin_passing(flags, header, size)
                continue
            if self._unread < header + size:
                return None
            if flags & _COMMAND:
                self._command(header, size)
                continue
            self._take(header)
            self._keep(self._take(size) or b"", more=bool(flags & _MORE))
        return None

    def _head_frame(self) -> tuple[int, int, int] | None:
        found = self._peek()
        if found is not None and (found[0] & ~7 or (found[0] & _COMMAND and (found[0] & _MORE or found[2] > MAX_COMMAND_BYTES))):
            raise ZmtpError("a frame of no known kind")
        return found

    # -- messages --------------------------------------------------------------------------------------------------------------------

    def _keep(self, frame: Frame, *, more: bool) -> None:
        self._frames_seen += 1
        if self._frames_seen > MAX_MESSAGE_FRAMES:
            raise ZmtpError("a message that has no end")
        if len(self._frames) <= MAX_FRAMES:
            self._frames.append(frame)
            self._frames_bytes += len(frame or b"")
            self.waiting_bytes += len(frame or b"")
        self._more = more

    def _over(self) -> bool:
        return bool(self._frames) and not self._more and not self._pass_over

    def _end(self) -> Message:
        whole, self._frames = self._frames, []
        self.waiting_bytes -= self._frames_bytes
        self._frames_bytes = self._frames_seen = 0
        return whole

    def _command(self, header: int, size: int) -> None:
        self._commands += 1
        if self._commands > MAX_COMMANDS:
            raise ZmtpError("commands that have no end")
        self._take(header)
        body = self._take(size) or b""
        name = body[1 : 1 + body[0]] if body else b""
        if name == b"READY":
            self.ready = True
        elif name == b"ERROR":
            raise ZmtpError("refused by the other side")
        elif name == b"PING":
            self.reply = _command(b"\x04PONG" + body[7:23])
        # Other commands are of later versions, which were not announced.

    # -- bytes -----------------------------------------------------------------------------------------------------------------------

    def _peek(self) -> tuple[int, int, int] | None:
        """Flags, header length and body length of the frame at the head."""
        if self._unread < 2 or not self._gather(2):
            return None
        flags = self._head[self._at]
        if not flags & _LONG:
            return flags, 2, self._head[self._at + 1]
        if self._unread < 9 or not self._gather(9):
            return None
        return flags, 9, int.from_bytes(self._head[self._at + 1 : self._at + 9], "big")

    def _begin_passing(self, flags: int, header: int, size: int) -> None:
        if size > MAX_PASSED_OVER_BYTES:
            raise ZmtpError("a frame that has no end")
        self._take(header)
        self._pass_over = size
        self._keep(None, more=bool(flags & _MORE))

    def _passed(self) -> bool:
        """Drop what came of the frame that is not kept; True once it is over."""
        while self._pass_over and self._unread:
            if self._at == len(self._head):
                self._pop()
            dropped = min(self._pass_over, len(self._head) - self._at)
            self._at += dropped
            self._unread -= dropped
            self._pass_over -= dropped
            self.waiting_bytes -= dropped
        return not self._pass_over

    def _pop(self) -> None:
        self._head, self._at = self._chunks.popleft(), 0
        self.waiting_bytes -= CHUNK_COST_BYTES

    def _gather(self, count: int) -> bool:
        """Make the next ``count`` bytes lie in one piece; there are so many."""
        if len(self._head) - self._at >= count:
            return True
        pieces, length = [self._head[self._at :]], len(self._head) - self._at
        while length < count:
            chunk = self._chunks.popleft()
            self.waiting_bytes -= CHUNK_COST_BYTES
            pieces.append(chunk)
            length += len(chunk)
        self._head, self._at = b"".join(pieces), 0
        return True

    def _take(self, count: int) -> bytes | None:
        if self._unread < count:
            return None
        self._gather(count)
        taken = self._head[self._at : self._at + count]
        self._at += count
        self._unread -= count
        self.waiting_bytes -= count
        if self._at == len(self._head):
            self._head, self._at = _TAKEN, 0
        return taken
