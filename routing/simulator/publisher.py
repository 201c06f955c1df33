"""KV events over ZMQ as vLLM sends them: a PUB socket, and a ROUTER socket that replays what is still buffered."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import zmq
import zmq.asyncio

from routing.simulator.config import Faults
from routing.simulator.events import KvEvent, encode_batch

_SEQUENCE = struct.Struct(">Q")
END_SEQUENCE = (2**64 - 1).to_bytes(8, "big")
_REPLAY_SLICE = 256  # messages sent between two turns of the event loop


class Publisher:
    """Numbers, sends and remembers batches of events. Bound by ``start``, so constructing it does no I/O.

    Live message: ``[topic, sequence (8 bytes, big-endian), payload]``. A slow subscriber loses messages silently once
    the high-water mark is reached, and can tell by the gap. Replay: a DEALER sends ``[empty, first sequence]`` and gets
    ``[empty, topic, sequence, payload]`` for each batch still buffered, then an end marker with sequence -1. A request
    of another shape gets no answer.

    ``rank`` is the data-parallel rank that every payload names; each rank has a publisher of its own.

    No authentication: whoever can connect reads token ids and salts, as with the real engine.
    """

    def __init__(self, topic: str, *, hwm_messages: int, buffer_steps: int, rank: int = 0, faults: Callable[[], Faults] = Faults) -> None:
        self._topic = topic.encode()
        self._rank = rank
        self._faults = faults
        self._hwm_messages = hwm_messages
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._next_sequence = 0
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._live: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._replaying: asyncio.Task[None] | None = None
        self.endpoint = ""
        self.replay_endpoint = ""

    def start(self, host: str, port: int, replay_port: int | None) -> None:
        """Bind. Port 0 takes a free one; ``endpoint`` and ``replay_endpoint`` tell which."""
        self._context = context = zmq.Context()
        # A plain socket: PUB never blocks, so publishing needs no turn of the event loop.
        self._live = live = context.socket(zmq.PUB)
        live.setsockopt(zmq.SNDHWM, self._hwm_messages)
        self.endpoint = _bind(live, host, port)
        if replay_port is not None:
            router = context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(router, host, replay_port)
            self._replay = zmq.asyncio.Socket.from_socket(router)
            self._replaying = asyncio.get_running_loop().create_task(self._serve_replays(self._replay))

    @property
    def ports(self) -> tuple[int | None, int | None]:
        return _port(self.endpoint), _port(self.replay_endpoint)

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send one batch. Nothing happens for an empty one."""
        if not events or self._live is None:
            return
        sequence = self._next_sequence
        self._next_sequence += 1
        faults = self._faults()
        payload = encode_batch(time.time(), events, self._rank, arrays=faults.kv_array_events)
        self._buffer.append((sequence, payload))
        if not faults.kv_drop_live:
            self._live.send_multipart((self._topic, _SEQUENCE.pack(sequence), payload), flags=zmq.NOBLOCK)

    async def stop(self) -> None:
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)
        for socket in (self._live, self._replay):
            if socket is not None:
                socket.close()
        if self._context is not None:
            self._context.term()
        self._live = self._replay = self._context = self._replaying = None

    async def _serve_replays(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != _SEQUENCE.size:
                continue
            client, first = frames[0], _SEQUENCE.unpack(frames[2])[0]
            faults = self._faults()
            oldest = 0 if faults.kv_keep_batches is None else self._next_sequence - faults.kv_keep_batches
            kept = [batch for batch in self._buffer if batch[0] >= max(first, oldest)]
            for position, (sequence, payload) in enumerate(kept):
                await socket.send_multipart((client, b"", self._topic, _SEQUENCE.pack(sequence), payload))
                if position % _REPLAY_SLICE == _REPLAY_SLICE - 1:
                    await asyncio.sleep(0)
            if not faults.kv_lose_end:
                await socket.send_multipart((client, b"", b"", END_SEQUENCE, b""))


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(f"tcp://{host}:{port}")
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def _port(endpoint: str) -> int | None:
    return urlsplit(endpoint).port if endpoint else None
