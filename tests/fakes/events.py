"""A scripted source of KV events on real ZMQ sockets: it says exactly what a test tells it to, and keeps what it was asked for.

vLLM's wire shape: ``[topic, number, payload]`` live; a DEALER's ``[empty, first]`` is answered by ``[empty, topic, number, payload]`` for each
batch kept, then an end marker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = (b"", b"\xff" * 8, b"")


def stored(hashes: Sequence[int], *, tokens: Sequence[int], salt: str | None = None, parent: int | None = None, **more: Any) -> dict[str, Any]:
    """A BlockStored event as a map; the salt is in block 0's entry, when there is no parent."""
    keys: list[Any] = [[salt] if salt is not None and parent is None and place == 0 else None for place in range(len(hashes))]
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": len(tokens) // len(hashes),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": keys,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **more,
    }


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


CLEARED: Mapping[str, Any] = {"type": "AllBlocksCleared"}


class FakeSource:
    """One rank's PUB and ROUTER. ``kept`` is what replays answer with, None loses the end marker or the answer."""

    def __init__(self, topic: bytes = b"kv") -> None:
        self.topic = topic
        self.kept: dict[int, bytes] = {}
        self.send_end = True
        self.answers = True
        self.replays_topic = True  # vLLM's answers name it, SGLang's do not
        self.asked: list[int] = []  # first numbers of replays
        self.answered = 0  # replays sent to their end
        self.next = 0
        self.port = self.replay_port = 0
        self._context: zmq.Context[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, replay: bool = True) -> None:
        """Bind: free ports, or those of before."""
        self._context = context = zmq.Context()
        self._pub = context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self.port = self._bind(self._pub, self.port)
        if replay:
            router = context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            # A full pipe makes it wait, where an engine would drop: how fast this machine empties pipes is nobody's subject.
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.replay_port = self._bind(router, self.replay_port)
            self._router = zmq.asyncio.Socket.from_socket(router)
            self._task = asyncio.create_task(self._replays(self._router))

    @staticmethod
    def _bind(socket: Any, port: int) -> int:
        socket.bind(f"tcp://127.0.0.1:{port}" if port else "tcp://127.0.0.1:*")
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").rsplit(":", 1)[1])

    async def subscribed(self, count: int = 1) -> list[bytes]:
        """Wait until ``count`` subscriptions came in; returns the topics."""
        found: list[bytes] = []
        async with asyncio.timeout(10):
            while len(found) < count:
                if self._pub.poll(0):
                    message = self._pub.recv()
                    if message[:1] == b"\x01":
                        found.append(message[1:])
                else:
                    await asyncio.sleep(0.001)
        return found

    def batch(self, *events: Any, rank: int | None = 0) -> bytes:
        return msgspec.msgpack.encode([1_700_000_000.0, list(events), *([] if rank is None else [rank])])

    def say(self, *events: Any, live: bool = True, keep: bool = True, number: int | None = None, rank: int | None = 0) -> int:
        """Publish a batch under the next number (or ``number``): to subscribers, to the replay buffer, or to both."""
        at = self.next if number is None else number
        self.next = at + 1
        payload = self.batch(*events, rank=rank)
        if keep:
            self.kept[at] = payload
        if live:
            self.send(self.topic, at.to_bytes(8, "big"), payload)
        return at

    def send(self, *frames: bytes) -> None:
        """Frames as they are."""
        self._pub.send_multipart(frames)

    async def _replays(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:
                continue
            first = int.from_bytes(frames[2], "big")
            self.asked.append(first)
            if not self.answers:
                continue
            with contextlib.suppress(zmq.ZMQError):  # whoever asked has gone
                await self._answer(router, frames[0], first)

    async def _answer(self, router: zmq.asyncio.Socket, peer: bytes, first: int) -> None:
        topic = (self.topic,) if self.replays_topic else ()
        for number in sorted(self.kept):
            if number >= first:
                await self._send(router, peer, b"", *topic, number.to_bytes(8, "big"), self.kept[number])
        if self.send_end:
            await self._send(router, peer, b"", *(END if topic else END[1:]))
        self.answered += 1

    @staticmethod
    async def _send(router: zmq.asyncio.Socket, *frames: bytes) -> None:
        """Send when the pipe has room; an asker that left is an error, which waiting for room would never notice."""
        plain: zmq.Socket[Any] = zmq.Socket.shadow(router)
        while True:
            try:
                plain.send_multipart(frames, flags=zmq.NOBLOCK)
            except zmq.Again:
                await asyncio.sleep(0.001)
            else:
                return

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self._router.close()  # the loop must not go on watching its descriptor
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def restart(self) -> None:
        """Another process on the same ports: nothing kept, numbers from 0."""
        await self.stop()
        self.kept, self.next = {}, 0
        await self.start()

    def said(self, *, rank: int = 0) -> dict[str, Any]:
        """Its entry of ``/kv_event_sources``."""
        return {
            str(rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{self.port}",
                "replay_endpoint": f"tcp://*:{self.replay_port}" if self.replay_port else None,
                "topic": self.topic.decode(),
            }
        }


@asynccontextmanager
async def running_source(topic: bytes = b"kv") -> AsyncIterator[FakeSource]:
    source = FakeSource(topic)
    await source.start()
    try:
        yield source
    finally:
        await source.stop()
