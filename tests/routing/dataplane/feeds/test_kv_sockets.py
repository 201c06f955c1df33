"""The sockets of one source and the pump that reads them, against a real publisher."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import zmq

from routing.core import zmtp
from routing.dataplane.feeds import kv_sockets
from routing.dataplane.feeds.kv_pump import Pump
from routing.dataplane.feeds.kv_sockets import EventSockets, Message
from tests.fakes.events import FakeSource
from tests.fakes.rig import until


class Reader:
    """Keeps whatever the pump turns up."""

    def __init__(self, pump: Pump, **where: Any) -> None:
        self.got: list[Message] = []
        self.paused = False
        self.most_bytes = 1 << 40
        self.refused = 0
        self._pump = pump
        self.sockets = EventSockets("127.0.0.1", connect_s=2.0, wake=lambda: pump.wake(self), admit=self.admit, **where)

    def admit(self, more_bytes: int) -> bool:
        fits = self.sockets.waiting_bytes + more_bytes <= self.most_bytes
        self.refused += not fits
        return fits

    def step(self) -> bool:
        if self.paused:
            return False
        message = self.sockets.replay() or self.sockets.live()
        if message is not None:
            self.got.append(message)
            if message[0] in ("end", "cut"):
                self.sockets.end_replay()
            return True
        return False

    def numbers(self, kind: str) -> list[int]:
        return [number for what, number, _ in self.got if what == kind]


Opens = Callable[..., Reader]


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    pump = Pump(busy=lambda: False)
    turning = asyncio.create_task(pump.run())
    made: list[Reader] = []

    def one(port: int, replay_port: int | None = None, topic: str | None = "kv") -> Reader:
        reader = Reader(pump, port=port, replay_port=replay_port, topic=topic)
        made.append(reader)
        return reader

    yield one
    for reader in made:
        reader.sockets.close()
        reader.sockets.close()
        pump.drop(reader)
    turning.cancel()


async def test_live_batches_come_in_order_with_their_numbers(source: FakeSource, opens: Opens) -> None:
    reader = opens(source.port)
    assert await source.subscribed() == [b"kv"]
    for _ in range(500):
        source.say("x")
    await until(lambda: len(reader.got) == 500)
    assert reader.numbers("live") == list(range(500))
    assert reader.got[0][2] == source.kept[0]
    assert reader.sockets.established.is_set()
    assert not reader.sockets.lost


async def test_only_the_very_topic_counts_and_a_message_of_another_shape_is_named(source: FakeSource, opens: Opens) -> None:
    reader = opens(source.port)
    await source.subscribed()
    eight = b"\0" * 8
    for frames in ((b"other", eight, b"p"), (b"kv2", eight, b"p"), (b"kv", b"1", b"p"), (b"kv", eight), (b"kv", eight, b"p", b"")):
        source.send(*frames)
    source.send(b"kv", eight, b"good")
    await until(lambda: len(reader.got) == 5)
    assert [one[0] for one in reader.got] == ["topic", "malformed", "malformed", "malformed", "live"]
    assert reader.got[-1] == ("live", 0, b"good")


@pytest.mark.parametrize("names_topic", [True, False])
async def test_a_replay_is_read_with_and_without_a_topic(source: FakeSource, opens: Opens, names_topic: bool) -> None:
    source.replays_topic = names_topic
    for _ in range(3):
        source.say("x", live=False)
    reader = opens(source.port, source.replay_port)
    await source.subscribed()
    reader.sockets.ask(1)
    await until(lambda: not reader.sockets.replaying)
    assert reader.numbers("replay") == [1, 2]
    assert [one[0] for one in reader.got] == ["replay", "replay", "end"]


async def test_a_replay_of_more_than_any_high_water_mark_is_whole_however_slow_the_reader(source: FakeSource, opens: Opens) -> None:
    for _ in range(6000):
        source.say("x" * 4000, live=False)
    reader = opens(source.port, source.replay_port)
    await source.subscribed()
    reader.paused = True
    reader.sockets.ask(1000)
    await until(lambda: source.answered == 1)  # all of it is sent, nothing of it read
    assert reader.got == []
    reader.paused = False
    reader._pump.wake(reader)
    await until(lambda: not reader.sockets.replaying)
    assert reader.numbers("replay") == list(range(1000, 6000))
    assert reader.got[-1][0] == "end"
    assert source.asked == [1000]


async def test_what_waits_for_a_slow_reader_waits_at_the_publisher(opens: Opens) -> None:
    """A reader that does not read holds one message's worth of bytes, however much is sent; nothing of it is lost."""
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        for option, value in ((zmq.SNDHWM, 1), (zmq.XPUB_NODROP, 1), (zmq.SNDTIMEO, 1000), (zmq.LINGER, 0)):
            publisher.setsockopt(option, value)
        reader = opens(publisher.bind_to_random_port("tcp://127.0.0.1"), topic=None)
        await until(reader.sockets.established.is_set)
        reader.paused = True
        sent, payload = 0, bytes(512 * 1024)

        def flood() -> int:
            sent = 0
            with contextlib.suppress(zmq.Again):
                while sent < 500:
                    publisher.send_multipart((b"kv", sent.to_bytes(8, "big"), payload))
                    sent += 1
            return sent

        sent = await asyncio.to_thread(flood)  # the loop goes on and would read
        assert 0 < sent < 500
        assert reader.sockets.waiting_bytes < kv_sockets.MAX_MESSAGE_BYTES
        reader.paused = False
        reader._pump.wake(reader)
        await until(lambda: reader.numbers("live") == list(range(sent)))
        assert reader.sockets.waiting_bytes == 0


async def test_a_message_that_is_too_long_is_passed_over_and_the_connection_lives(source: FakeSource, opens: Opens) -> None:
    """Its number is known, so it will be missing; what comes after it is read, live and in a replay."""
    for payload in (b"a", bytes(kv_sockets.MAX_MESSAGE_BYTES + 1), bytes(kv_sockets.MAX_MESSAGE_BYTES), b"b"):
        source.kept[len(source.kept)] = payload
    reader = opens(source.port, source.replay_port)
    await source.subscribed()
    for number, payload in source.kept.items():
        source.send(b"kv", number.to_bytes(8, "big"), payload)
    await until(lambda: len(reader.got) == 4)
    assert [(kind, number, len(payload)) for kind, number, payload in reader.got] == [
        ("live", 0, 1), ("too_large", 1, 0), ("live", 2, kv_sockets.MAX_MESSAGE_BYTES), ("live", 3, 1),
    ]  # fmt: skip
    reader.sockets.ask(0)
    await until(lambda: not reader.sockets.replaying)
    assert [one[:2] for one in reader.got[4:]] == [("replay", 0), ("too_large", 1), ("replay", 2), ("replay", 3), ("end", 0)]
    assert not reader.sockets.lost


async def test_a_replay_that_is_more_than_may_wait_is_cut_and_what_came_before_is_read(source: FakeSource, opens: Opens) -> None:
    """The bound is of bytes, not of messages, and holds while nobody reads."""
    for _ in range(3000):
        source.say("x" * 4000, live=False)
    reader = opens(source.port, source.replay_port)
    await source.subscribed()
    reader.paused, reader.most_bytes = True, 1_000_000
    reader.sockets.ask(0)
    await until(lambda: reader.refused > 0)
    for _ in range(50):
        await asyncio.sleep(0)  # the source would go on
    held_bytes = reader.sockets.waiting_bytes
    assert 1_000_000 < held_bytes < 1_600_000  # what came in one go with the last
    reader.paused = False
    reader._pump.wake(reader)
    await until(lambda: not reader.sockets.replaying)
    numbers = reader.numbers("replay")
    assert numbers == list(range(len(numbers)))
    assert 200 < len(numbers) < 400
    assert reader.got[-1][0] == "cut"
    assert reader.sockets.waiting_bytes == 0


async def test_a_peer_that_falls_silent_is_left_and_one_that_answers_is_kept(
    source: FakeSource, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real publisher with nothing to say answers heartbeats; what took the handshake and says nothing any more is gone."""
    monkeypatch.setattr(kv_sockets, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(kv_sockets, "HEARTBEAT_TIMEOUT_S", 1.5)

    async def shake_and_fall_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(zmtp.GREETING + zmtp.ready(b"SUB"))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(shake_and_fall_silent, "127.0.0.1", 0)
    kept, silent = opens(source.port), opens(server.sockets[0].getsockname()[1])
    for reader in (kept, silent):
        await until(reader.sockets.established.is_set)
    since_s = kept.sockets._live._heard_s
    await until(lambda: silent.sockets.lost)
    await until(lambda: kept.sockets._live._heard_s > since_s)
    assert not kept.sockets.lost
    server.close()
    await server.wait_closed()


async def test_who_asks_and_never_reads_the_answers_is_left(opens: Opens) -> None:
    """Answers to heartbeats would otherwise lie here without a bound. Each question is one that may be asked."""
    taken = 0

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        writer.write(zmtp.GREETING + zmtp.ready(b"SUB"))
        context = b"\x04\x17\x04PING\0\0" + bytes(16)
        with contextlib.suppress(ConnectionError):
            while not link.sockets.lost:
                writer.write(context)
                taken += 1
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(ask, "127.0.0.1", 0, limit=1024)
    for listening in server.sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link = opens(server.sockets[0].getsockname()[1])
    await until(link.sockets.established.is_set)
    transport = link.sockets._live._transport
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await until(lambda: link.sockets.lost, within_s=60)
    assert taken > 100
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n" * 8, bytes(64), zmtp.GREETING + zmtp.message(b"too", b"early"), zmtp.GREETING])
async def test_a_port_that_speaks_otherwise_or_not_at_all_is_no_source(opens: Opens, said: bytes) -> None:
    """Whatever another service answers ends the connection; one that falls silent in the handshake never counts as established."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader = opens(server.sockets[0].getsockname()[1])
    if said == zmtp.GREETING:
        await until(lambda: reader.sockets._live.reader.greeted)
        assert not reader.sockets.established.is_set()
    else:
        await until(lambda: reader.sockets.lost)
    assert reader.got == []
    reader.sockets.close()
    server.close()
    await server.wait_closed()


async def test_what_an_abandoned_replay_still_sends_is_not_taken_for_the_next_ones(source: FakeSource, opens: Opens) -> None:
    source.send_end = False
    source.say("x", live=False)
    reader = opens(source.port, source.replay_port)
    await source.subscribed()
    reader.sockets.ask(0)
    await until(lambda: reader.numbers("replay") == [0])
    source.send_end = True
    source.say("y", live=False)
    reader.sockets.ask(1)
    await until(lambda: not reader.sockets.replaying)
    assert reader.numbers("replay") == [0, 1]


@pytest.mark.parametrize("how", ["gone", "nobody"])
async def test_an_ended_or_refused_connection_is_said_and_never_made_again(source: FakeSource, opens: Opens, how: str) -> None:
    if how == "gone":
        reader = opens(source.port)
        await source.subscribed()
        await until(reader.sockets.established.is_set)
        assert not reader.sockets.lost
        await source.restart()
    else:
        port = source.port
        await source.stop()
        reader = opens(port)
        await until(reader.sockets.established.is_set)
        await source.start()
    await until(lambda: reader.sockets.lost)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await source.subscribed()


async def test_the_pump_turns_sources_in_turn_and_gives_the_loop_back(opens: Opens, source: FakeSource) -> None:
    """However much one source has, another gets its message in the same slice, and the loop gets its turn after each slice."""
    del opens, source

    class Endless:
        taken = 0

        def step(self) -> bool:
            self.taken += 1
            return True

    class Once(Endless):
        def step(self) -> bool:
            self.taken += 1
            return False

    pump = Pump(busy=lambda: True)
    flood, quiet = Endless(), Once()
    pump.wake(flood)
    pump.wake(quiet)
    assert pump.turn() is True
    assert quiet.taken == 1
    assert flood.taken > 1
    turning = asyncio.create_task(pump.run())
    for _ in range(20):
        await asyncio.sleep(0)  # the loop goes on while the flood does
    before = pump.slices
    await until(lambda: pump.slices > before + 3)
    pump.drop(flood)
    await until(lambda: pump.turn() is False)
    assert quiet.taken == 1
    turning.cancel()
