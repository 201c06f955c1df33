"""ZMTP as bytes: whatever pieces they come in, the same messages come out, and nothing that is too long is kept."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import zmtp
from routing.core.zmtp import Reader, ZmtpError

SHAKEN = zmtp.GREETING + zmtp.ready(b"DEALER")
MOST = 300


def read(data: bytes, cuts: list[int]) -> tuple[list[zmtp.Message], Reader, int]:
    """Feed ``data`` in pieces that end at ``cuts``; returns the messages, the reader, and the most bytes it held."""
    reader, found, most = Reader(max_frame_bytes=MOST), [], 0
    bounds = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    for start, end in itertools.pairwise(bounds):
        reader.feed(data[start:end])
        while (message := reader.next()) is not None:
            found.append(message)
        most = max(most, reader.waiting_bytes)
    return found, reader, most


FRAMES = st.lists(st.binary(max_size=40) | st.integers(MOST - 2, MOST + 3).map(bytes), min_size=1, max_size=4)


@given(messages=st.lists(FRAMES, max_size=5), cuts=st.lists(st.integers(0, 3000), max_size=30))
def test_messages_come_out_as_they_were_sent_whatever_pieces_they_come_in(messages: list[list[bytes]], cuts: list[int]) -> None:
    """A frame above the bound comes out as None, the frames and messages around it whole; nothing stays behind."""
    data = SHAKEN + b"".join(zmtp.message(*frames) for frames in messages)
    found, reader, _ = read(data, cuts)
    assert found == [[frame if len(frame) <= MOST else None for frame in frames] for frames in messages]
    assert reader.waiting_bytes == 0
    assert reader.ready


def test_a_long_frame_is_never_held() -> None:
    data = SHAKEN + zmtp.message(b"a", bytes(1_000_000), b"b") + zmtp.message(b"c")
    found, _, most = read(data, list(range(0, len(data), 5000)))
    assert found == [[b"a", None, b"b"], [b"c"]]
    assert most < 6000


def test_the_frame_at_the_head_can_be_let_go() -> None:
    """Half received, with room for no more; without anything at the head, or in a command, nothing happens."""
    reader = Reader(max_frame_bytes=10_000)
    reader.pass_over()
    reader.feed(SHAKEN + zmtp.message(b"kv", bytes(5000))[:2000])
    assert reader.next() is None
    assert reader.wants() == 9 + 5000
    reader.pass_over()
    assert reader.next() is None
    assert reader.waiting_bytes < 200
    reader.feed(bytes(5000 - (2000 - 4 - 9)) + zmtp.message(b"next"))
    assert reader.next() == [b"kv", None]
    assert reader.next() == [b"next"]


def test_bytes_sent_one_by_one_cost_no_object_each() -> None:
    reader = Reader(max_frame_bytes=10_000)
    for byte in SHAKEN + zmtp.message(bytes(9000))[:8000]:
        reader.feed(bytes((byte,)))
    assert reader.waiting_bytes < 9000


def test_frames_beyond_a_handful_are_no_message_of_ours_and_not_kept() -> None:
    found, reader, _ = read(SHAKEN + zmtp.message(*[b"x"] * zmtp.MAX_MESSAGE_FRAMES) + zmtp.message(b"y"), [])
    assert [len(message) for message in found] == [zmtp.MAX_FRAMES + 1, 1]
    assert reader.waiting_bytes == 0


def test_a_heartbeat_is_answered_with_its_context() -> None:
    """Of several that came at once the last one alone: who asks without end gets no answers without end."""
    asked = b"\x04\x0a\x04PING\x00\x0actx"
    _, reader, _ = read(SHAKEN + zmtp.ping() + asked, [])
    assert reader.reply == b"\x04\x08\x04PONGctx"
    _, reader, _ = read(SHAKEN + zmtp.ping() * (zmtp.MAX_COMMANDS - 1), [])
    assert reader.reply == b"\x04\x05\x04PONG"


@pytest.mark.parametrize(
    "endless",
    [b"\x04\x00" * 1000, zmtp.ping() * 1000, b"\x01\x00" * 1000, b"\x03" + (MOST + 1).to_bytes(8, "big") + bytes(MOST + 1)],
    ids=["commands", "pings", "frames", "long frames"],
)
def test_what_has_no_end_is_left_after_a_few_hundred_frames(endless: bytes) -> None:
    """A frame may have two bytes: a hundred thousand in one read would hold everybody's requests. Before the handshake's end too, for commands."""
    with pytest.raises(ZmtpError):
        read(SHAKEN + endless * 300, [])
    if endless[0] == 4:
        with pytest.raises(ZmtpError):
            read(zmtp.GREETING + endless, [])


def test_heartbeats_between_messages_may_come_for_ever() -> None:
    """The control of the test above: each look reads few of them."""
    reader = Reader(max_frame_bytes=MOST)
    reader.feed(SHAKEN)
    for _ in range(20 * zmtp.MAX_COMMANDS):
        reader.feed(zmtp.ping())
        assert reader.next() is None
    reader.feed((b"\x04\x05\x04PONG" + zmtp.message(b"a", b"b")) * 500)
    found = 0
    while reader.next() is not None:
        found += 1
    assert found == 500


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n" + bytes(64),
        zmtp.GREETING[:10] + b"\x01" + zmtp.GREETING[11:],
        zmtp.GREETING.replace(b"NULL\0", b"CURVE"),
        zmtp.GREETING + zmtp.message(b"early"),
        SHAKEN + b"\x08\x00",
        SHAKEN + b"\x05\x00",
        SHAKEN + b"\x06" + (2**40).to_bytes(8, "big"),
        SHAKEN + b"\x02" + (2**63).to_bytes(8, "big"),
        SHAKEN + b"\x04\x0a\x05ERROR\x03no!",
    ],
    ids=range(9),
)
def test_what_is_not_spoken_here_is_refused(data: bytes) -> None:
    """Another service, an old version, security, data before the handshake's end, unknown flags, commands and frames without end."""
    with pytest.raises(ZmtpError):
        read(data, [])


@given(data=st.binary(max_size=200), shaken=st.booleans())
def test_any_bytes_give_messages_or_one_error(data: bytes, shaken: bool) -> None:
    with suppress(ZmtpError):
        read((SHAKEN if shaken else b"") + data, [5, 70, 90])
