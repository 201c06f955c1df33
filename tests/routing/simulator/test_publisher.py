"""KV events over real ZMQ sockets, against the recorded frames."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from routing.simulator.events import BlockRemoved
from routing.simulator.publisher import Publisher
from tests.routing.simulator.vectors import load
from tests.routing.simulator.wire import RECORDED, Wire, wired

END = [b"", b"", b"\xff" * 8, b""]


@pytest.fixture
def zmq_context() -> Iterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def replay(context: zmq.asyncio.Context, endpoint: str | None, first: int = 0) -> list[list[bytes]]:
    """Everything the replay socket answers, the end marker included."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.connect(str(endpoint))
    await dealer.send_multipart([b"", first.to_bytes(8, "big")])
    messages = [await dealer.recv_multipart()]
    while messages[-1] != END:
        messages.append(await dealer.recv_multipart())
    return messages


async def subscribed(context: zmq.asyncio.Context, wire: Wire, topic: str) -> zmq.asyncio.Socket:
    """A subscriber that certainly hears: it has heard something."""
    socket = context.socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(str(wire.running.kv_endpoint))
    for start in range(10_000, 100_000, 100):
        await wire.post("/v1/completions", {"prompt": list(range(start, start + 33)), "max_tokens": 1})
        if await socket.poll(20):
            break
    while await socket.poll(50):
        await socket.recv_multipart()
    return socket


async def test_live_message_has_the_recorded_bytes(zmq_context: zmq.asyncio.Context) -> None:
    """A recorded prompt under its salt: topic, sequence and payload as the real engine sent them, but for the time."""
    step = next(step for step in load("kv_scenario.json") if step["name"].startswith("03"))
    (recorded,) = step["messages"]
    async with wired() as wire:
        subscriber = await subscribed(zmq_context, wire, "kv@tiny")
        await wire.post("/v1/completions", {"prompt": step["prompt_token_ids"], "max_tokens": 1, "cache_salt": step["salt"]})
        topic, sequence, payload = await subscriber.recv_multipart()
    assert topic == recorded["topic"].encode()
    assert len(sequence) == len(bytes.fromhex(recorded["seq_hex"]))
    assert int.from_bytes(sequence, "big") > 0
    wanted = base64.b64decode(recorded["payload_b64"])
    assert payload[:2] + payload[10:] == wanted[:2] + wanted[10:]  # bytes 2 to 9 are the timestamp


async def test_session_id_is_reported(zmq_context: zmq.asyncio.Context) -> None:
    """From the body or the header, on stored blocks only."""
    async with wired() as wire:
        await wire.post("/v1/completions", {"prompt": list(range(2000, 2033)), "max_tokens": 1, "session_id": "one"})
        await wire.post("/v1/completions", {"prompt": list(range(3000, 3033)), "max_tokens": 1}, **{"X-Session-ID": "two"})
        messages = await replay(zmq_context, wire.running.replay_endpoint)
    events = [event for message in messages[:-1] for event in msgspec.msgpack.decode(message[3])[1]]
    assert [event["session_id"] for event in events] == ["one", "two"]


async def test_replay_has_the_recorded_frames(zmq_context: zmq.asyncio.Context) -> None:
    """From a sequence on, in order, and the end marker."""
    (recorded,) = load("replay.json")
    async with wired() as wire:
        for start in (2000, 3000, 4000):
            await wire.post("/v1/completions", {"prompt": list(range(start, start + 33)), "max_tokens": 1})
        everything = await replay(zmq_context, wire.running.replay_endpoint)
        tail = await replay(zmq_context, wire.running.replay_endpoint, first=2)
        beyond = await replay(zmq_context, wire.running.replay_endpoint, first=99)
    assert [frame.hex() for frame in everything[0][:3]] == recorded["first"]
    assert [frame.hex() for frame in everything[-1]] == recorded["end"]
    assert [int.from_bytes(message[2], "big") for message in everything[:-1]] == [0, 1, 2]
    assert tail == everything[2:]
    assert beyond == [END]


async def test_replay_is_bounded_by_the_buffer(zmq_context: zmq.asyncio.Context) -> None:
    """Older batches are gone without an error: the client must compare."""
    publisher = Publisher("kv", hwm_messages=1000, buffer_steps=5)
    publisher.start("127.0.0.1", 0, 0)
    for number in range(12):
        publisher.publish([BlockRemoved(block_hashes=(number,), medium="GPU")])
    publisher.publish([])  # an empty batch is no message
    messages = await replay(zmq_context, publisher.replay_endpoint)
    await publisher.stop()
    assert [int.from_bytes(message[2], "big") for message in messages[:-1]] == [7, 8, 9, 10, 11]


async def test_what_is_lost_live_can_be_replayed_and_a_cut_buffer_cannot(zmq_context: zmq.asyncio.Context) -> None:
    """Faults that a router must see: a gap in the numbers, a replay that begins late, one without its end."""
    async with wired(replace(RECORDED, data_parallel_rank=3)) as wire:
        subscriber = await subscribed(zmq_context, wire, "kv@tiny")
        await wire.mode(kv_drop_live=True)
        await wire.post("/v1/completions", {"prompt": list(range(2000, 2033)), "max_tokens": 1})
        await wire.mode(kv_drop_live=False, kv_array_events=True)
        await wire.post("/v1/completions", {"prompt": list(range(3000, 3033)), "max_tokens": 1, "cache_salt": "s"})
        _, sequence, payload = await subscriber.recv_multipart()
        number = int.from_bytes(sequence, "big")
        everything = await replay(zmq_context, wire.running.replay_endpoint)
        assert [int.from_bytes(message[2], "big") for message in everything[:-1]] == list(range(number + 1))
        (stored,), rank = msgspec.msgpack.decode(payload)[1:]
        assert (stored[0], stored[4:], rank) == ("BlockStored", [32, None, "GPU", None, [["s"]]], 3)
        await wire.mode(kv_keep_batches=1, kv_lose_end=True)
        dealer = zmq_context.socket(zmq.DEALER)
        dealer.connect(str(wire.running.replay_endpoint))
        await dealer.send_multipart([b"", b"\0" * 8])
        assert int.from_bytes((await dealer.recv_multipart())[2], "big") == number
        await wire.mode(kv_lose_end=False)
        await dealer.send_multipart([b"", b"\0" * 8])
        assert [int.from_bytes((await dealer.recv_multipart())[2], "big") for _ in range(2)] == [number, 2**64 - 1]  # no end before


@pytest.mark.parametrize("frames", [[b"\0" * 8], [b"x", b"\0" * 8], [b"", b"\0" * 8, b"more"], [b"", b"short"]])
async def test_malformed_replay_requests_get_no_answer(zmq_context: zmq.asyncio.Context, frames: list[bytes]) -> None:
    """The first answer is the next request's."""
    publisher = Publisher("kv", hwm_messages=1000, buffer_steps=5)
    publisher.start("127.0.0.1", 0, 0)
    publisher.publish([BlockRemoved(block_hashes=(1,), medium="GPU")])
    dealer = zmq_context.socket(zmq.DEALER)
    dealer.connect(publisher.replay_endpoint)
    await dealer.send_multipart(frames)
    await dealer.send_multipart([b"", (7).to_bytes(8, "big")])
    assert await dealer.recv_multipart() == END
    await publisher.stop()


async def test_reset_is_told_with_the_next_step(zmq_context: zmq.asyncio.Context) -> None:
    """Nothing at once; then AllBlocksCleared first in the batch."""
    async with wired() as wire:
        await wire.chat("Hi")
        before = await replay(zmq_context, wire.running.replay_endpoint)
        status, body = await wire.post("/reset_prefix_cache", None)
        after = await replay(zmq_context, wire.running.replay_endpoint)
        await wire.post("/v1/completions", {"prompt": list(range(2000, 2033)), "max_tokens": 1})
        messages = await replay(zmq_context, wire.running.replay_endpoint)
    assert (status, body, before) == (200, {"success": True}, after)
    events: list[dict[str, Any]] = msgspec.msgpack.decode(messages[-2][3])[1]
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]


async def test_restart_begins_at_zero_on_the_same_ports(zmq_context: zmq.asyncio.Context) -> None:
    """No event tells of it: sequence and process start time do. The same prompt has the same hashes again."""
    ask = {"prompt": list(range(2000, 2033)), "max_tokens": 1}
    async with wired() as wire:
        await wire.post("/v1/completions", ask)
        before = await replay(zmq_context, wire.running.replay_endpoint)
        started_s = wire.running.replica.started_unix_s
        ports = (wire.running.url, wire.running.kv_endpoint, wire.running.replay_endpoint)
        await wire.running.restart()
        assert ports == (wire.running.url, wire.running.kv_endpoint, wire.running.replay_endpoint)
        assert await replay(zmq_context, wire.running.replay_endpoint) == [END]
        _, body = await wire.post("/v1/completions", ask)
        after = await replay(zmq_context, wire.running.replay_endpoint)
        assert wire.running.replica.started_unix_s > started_s
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert before[0][2] == after[0][2] == b"\0" * 8
    assert msgspec.msgpack.decode(before[0][3])[1] == msgspec.msgpack.decode(after[0][3])[1]


async def test_sources_tell_the_ports() -> None:
    """What a router discovers; a replica without events has no source."""
    async with wired() as wire:
        (source,) = json.loads((await wire.get("/kv_event_sources"))[1]).values()
        ports = [str(endpoint).rsplit(":", 1)[1] for endpoint in (wire.running.kv_endpoint, wire.running.replay_endpoint)]
    assert [source["endpoint"].rsplit(":", 1)[1], source["replay_endpoint"].rsplit(":", 1)[1]] == ports
    async with wired(replace(RECORDED, kv_port=None, replay_port=None)) as wire:
        assert (await wire.get("/kv_event_sources"))[1] == "{}"
        assert (await wire.chat("Hi"))["usage"]["completion_tokens"] == 2


async def test_stopped_publisher_can_be_stopped_again() -> None:
    """And one that was never started."""
    publisher = Publisher("kv", hwm_messages=10, buffer_steps=5)
    await publisher.stop()
    publisher.start("127.0.0.1", 0, None)
    await asyncio.gather(publisher.stop(), publisher.stop())
    assert publisher.replay_endpoint == ""
