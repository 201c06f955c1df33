"""Events are found wherever reads end, and no byte is lost or changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import sse
from routing.core.sse import EventSplitter, data_of

ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
lines = st.sampled_from([b"data: {}", b"data:x", b": comment", b"event: e", "data: 京🙂".encode(), b"data", b"id: 1"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[list[bytes]]]:
    """A stream and its events as lists of lines."""
    events = draw(st.lists(st.lists(lines, min_size=1, max_size=3), max_size=6))
    text = b""
    for event in events:
        end = draw(ends)
        text += b"".join(line + end for line in event) + end
    return text, events


def _cut(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(text)) for cut in cuts})
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(streams(), st.lists(st.integers(0, 200), max_size=30))
def test_wherever_reads_end_the_same_events_come_out_and_no_byte_is_lost(stream: tuple[bytes, list[list[bytes]]], cuts: list[int]) -> None:
    text, events = stream
    splitter = EventSplitter()
    got = [event for piece in _cut(text, cuts) for event in splitter.feed(piece)]
    rest = splitter.rest()
    assert b"".join(got) + rest == text
    found = [data_of(event) for event in got]
    expected = [data_of(b"\n".join(event)) for event in events]
    assert [data for data in found if data is not None] == [data for data in expected if data is not None]


@given(streams())
def test_an_event_comes_out_with_its_last_byte(stream: tuple[bytes, list[list[bytes]]]) -> None:
    text, _ = stream
    splitter = EventSplitter()
    for place in range(len(text)):
        splitter.feed(text[place : place + 1])
    assert splitter.rest().strip(b"\r\n") == b""


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x\n\n", b" x"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"data\n\n", b""),
        (b": c\n\n", None),
        (b"event: e\n\n", None),
        (b"\n", None),
        (b"database: x\n\n", None),
    ],
)
def test_data_is_read_as_the_standard_says(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data


def test_an_event_without_end_is_bounded() -> None:
    splitter = EventSplitter()
    got = [event for _ in range(40) for event in splitter.feed(b"x" * 65_536)]
    assert sum(map(len, got)) + len(splitter.rest()) == 40 * 65_536
    assert splitter.oversized == 2
    assert max(map(len, got)) <= sse.MAX_EVENT_BYTES + 65_536
