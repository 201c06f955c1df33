"""The ZMQ sockets behind one source of KV events, and the pump that reads all of them without holding up requests.

A source is a PUB socket and, beside it, a ROUTER that replays what is still buffered. ZMQ would resolve names and reconnect by itself, in a thread
that no guard sees: so it gets one literal address, never reconnects, and a monitor tells when a connection ended.

Policy on high-water marks. Live: ``LIVE_HWM`` messages, few, since ZMQ bounds no bytes and each may have ``MAX_MESSAGE_BYTES``; beyond them they wait
at the publisher, up to its own mark (vLLM: 100,000). What it drops then shows as a gap in the numbers, and a replay repairs it. Replay: none, since
with one a slow reader loses messages and the end marker without a sign; what bounds a replay is its deadline and a count of messages and bytes, after
which the socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

LIVE_HWM = 64
MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # a report of a prompt of a million tokens has 5; a peer that sends more is cut off
HEARTBEAT_S = 5.0
HEARTBEAT_TIMEOUT_S = 15.0
MAX_SOCKETS = 16_384
SLICE_S = 0.002  # of the event loop, at a time
REST_S = 0.001  # between two full slices while requests are in flight
END = b"\xff" * 8
MAX_NUMBER = 2**63  # no publisher comes so far, and the number after it must still fit into a question
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

Kind = Literal["live", "replay", "end", "malformed", "topic"]
Message = tuple[Kind, int, bytes]  # what it is, its number, its payload


def make_context() -> zmq.Context[zmq.Socket[bytes]]:
    """The router's one ZMQ context. Nothing is sent that could linger."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


def _number(frame: bytes) -> int:
    return int.from_bytes(frame, "big")


class EventSockets:
    """SUB, its monitor and, during a replay, a DEALER. ``wake`` is called when something may be readable. Close it on every way out.

    All receiving is non-blocking; None is "nothing there now".
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        port: int,
        replay_port: int | None,
        topic: str | None,
        connect_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._replay_at = None if replay_port is None else f"tcp://{address}:{replay_port}"
        self._topic = None if topic is None else topic.encode()
        self._connect_s = connect_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, bool] = {}
        self.established = asyncio.Event()
        self.lost = False
        self._dealer: zmq.Socket[bytes] | None = None
        self._live = self._socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, LIVE_HWM)
        self._live.setsockopt(zmq.SUBSCRIBE, self._topic or b"")
        self._monitor = self._live.get_monitor_socket(_EVENTS)
        self._live.connect(f"tcp://{address}:{port}")
        for one in (self._live, self._monitor):
            self._watch(one)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        clock_ms = max(1, int(self._connect_s * 1000))
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.RECONNECT_IVL, -1),
            (zmq.CONNECT_TIMEOUT, clock_ms),
            (zmq.HANDSHAKE_IVL, clock_ms),
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (zmq.HEARTBEAT_IVL, int(HEARTBEAT_S * 1000)),
            (zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_TIMEOUT_S * 1000)),
        ):
            made.setsockopt(option, value)
        return made

    # -- readiness: ZMQ's descriptor signals edges, so a socket is read until it is empty before it is watched again -----------------

    def _watch(self, one: zmq.Socket[bytes]) -> None:
        descriptor = int(one.FD)
        if not self._watched.get(descriptor):
            self._watched[descriptor] = True
            self._loop.add_reader(descriptor, self._readable, descriptor)

    def _readable(self, descriptor: int) -> None:
        self._unwatch(descriptor)
        self._wake()

    def _unwatch(self, descriptor: int) -> None:
        if self._watched.get(descriptor):
            self._watched[descriptor] = False
            self._loop.remove_reader(descriptor)

    def rest(self) -> bool:
        """Watch again. False if something came meanwhile: read on."""
        sockets = [self._live, self._monitor, *([] if self._dealer is None else [self._dealer])]
        for one in sockets:
            self._watch(one)
        return not any(int(one.getsockopt(zmq.EVENTS)) & zmq.POLLIN for one in sockets)

    # -- receiving -----------------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read the monitor: sets ``established`` and ``lost``."""
        while (frames := _receive(self._monitor)) is not None:
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.established.set()
            else:
                self.lost = True
                self.established.set()  # whoever waits for it looks at ``lost`` first

    def live(self) -> Message | None:
        """The next live batch."""
        frames = _receive(self._live)
        if frames is None:
            return None
        if len(frames) != 3 or len(frames[1]) != 8:
            return "malformed", 0, b""
        if self._topic is not None and frames[0] != self._topic:
            return "topic", 0, b""  # the filter is by prefix only
        number = _number(frames[1])
        return ("live", number, frames[2]) if number < MAX_NUMBER else ("malformed", 0, b"")

    def replay(self) -> Message | None:
        """The next batch of a replay under way, or its end."""
        frames = None if self._dealer is None else _receive(self._dealer)
        if frames is None:
            return None
        if len(frames) == 3:  # SGLang's answers name no topic
            frames = [frames[0], b"", *frames[1:]]
        if len(frames) != 4 or frames[0] != b"" or len(frames[2]) != 8:
            return "malformed", 0, b""
        if frames[2] == END:
            return "end", 0, b""
        number = _number(frames[2])
        return ("replay", number, frames[3]) if number < MAX_NUMBER else ("malformed", 0, b"")

    # -- asking --------------------------------------------------------------------------------------------------------------------

    @property
    def can_replay(self) -> bool:
        return self._replay_at is not None

    @property
    def replaying(self) -> bool:
        return self._dealer is not None

    def ask(self, first: int) -> None:
        """Ask for everything from ``first`` on. A fresh socket each time: what an earlier replay still sends can never be taken for this one's."""
        self.end_replay()
        if self._replay_at is None:
            return
        self._dealer = dealer = self._socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(self._replay_at)
        with contextlib.suppress(zmq.Again):  # then the deadline says so
            dealer.send_multipart((b"", first.to_bytes(8, "big")), flags=zmq.NOBLOCK)
        self._wake()

    def end_replay(self) -> None:
        dealer, self._dealer = self._dealer, None
        if dealer is not None:
            self._unwatch(int(dealer.FD))
            dealer.close()

    def close(self) -> None:
        """Safe to repeat."""
        self.end_replay()
        self.lost = True
        for one in (self._live, self._monitor):
            if not one.closed:
                self._unwatch(int(one.FD))
        if not self._live.closed:
            self._live.disable_monitor()
            self._live.close()


def _receive(one: zmq.Socket[bytes]) -> list[bytes] | None:
    try:
        return one.recv_multipart(flags=zmq.NOBLOCK)
    except zmq.Again:
        return None


class Readable(Protocol):
    """What the pump turns."""

    def step(self) -> bool:
        """Take one message; True if there may be more."""


class Pump:
    """Turns every source that has something, one message each in turn, for at most ``SLICE_S`` of a turn of the event loop.

    So a flood from one engine delays neither requests nor the events of others: what is not read stays in ZMQ's bounded queue.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._ready: deque[Readable] = deque()
        self._waiting: set[Readable] = set()
        self._wake = asyncio.Event()
        self.slices = 0
        self.full_slices = 0
        self.busy_s = 0.0

    def wake(self, source: Readable) -> None:
        """Something of ``source`` may be readable."""
        if source not in self._waiting:
            self._waiting.add(source)
            self._ready.append(source)
            self._wake.set()

    def drop(self, source: Readable) -> None:
        """``source`` is closed."""
        if source in self._waiting:
            self._waiting.discard(source)
            self._ready.remove(source)

    async def run(self) -> None:
        """Turn, for ever."""
        while True:
            await self._wake.wait()
            before_s = self.busy_s
            if self.turn():
                # Half of the loop at most is ours while requests are in flight, even where one message took longer than a slice.
                await asyncio.sleep(max(REST_S, self.busy_s - before_s - SLICE_S) if self._busy() else 0)
            else:
                self._wake.clear()

    def turn(self) -> bool:
        """One slice; True if something is left."""
        began_s = now_s = time.perf_counter()
        ends_s = began_s + SLICE_S
        while self._ready and now_s < ends_s:
            source = self._ready.popleft()
            if source.step():
                self._ready.append(source)
            else:
                self._waiting.discard(source)
            now_s = time.perf_counter()
        self.slices += 1
        self.full_slices += bool(self._ready)
        self.busy_s += now_s - began_s
        return bool(self._ready)
