"""Ports of event sources, as declared or as an engine says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from routing.core.snapshot import KvEvents
from routing.dataplane.feeds.kv_sources import MAX_RANKS, Claim, Source, doubtful, read, sources

REPOSITORY = Path(__file__).parents[4]
RECORDED = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5601",
    "replay_endpoint": "tcp://*:5701",
    "buffer_steps": 10000,
    "hwm": 100000,
    "max_queue_size": 100000,
    "topic": "kv@tiny",
}


def page(*rows: Any, **named: Any) -> bytes:
    return json.dumps(named or {str(number): row for number, row in enumerate(rows)}).encode()


def test_the_recorded_answer() -> None:
    assert read(page(RECORDED)) == (Source(rank=0, port=5601, replay_port=5701, topic="kv@tiny"),)


def test_ranks_that_share_a_base_port_are_told_apart_by_their_number_and_others_are_taken_as_they_are() -> None:
    assert [(one.rank, one.port, one.replay_port) for one in read(page(RECORDED, RECORDED, RECORDED))] == [
        (0, 5601, 5701),
        (1, 5602, 5702),
        (2, 5603, 5703),
    ]
    own = {**RECORDED, "endpoint": "tcp://*:5800", "replay_endpoint": None}
    assert [(one.rank, one.port, one.replay_port) for one in read(page(RECORDED, own))] == [(0, 5601, 5701), (1, 5800, None)]


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "ipc:///tmp/x"},
        {"endpoint": "tcp://*:80"},
        {"endpoint": "tcp://*:65535"},
        {"endpoint": "tcp://*:99999"},
        {"endpoint": "tcp://a:5601@b:5602/x"},
        {"endpoint": None},
        {"endpoint": 5601},
        {"publisher": "null"},
        {"enable_kv_cache_events": False},
        {"topic": "x" * 300},
    ],
)
def test_what_cannot_be_used_is_left_out(change: dict[str, Any]) -> None:
    """And the good one beside it is kept."""
    assert [one.rank for one in read(page({**RECORDED, **change}, RECORDED))] == [1]


def test_only_the_port_is_taken() -> None:
    (one,) = read(page({**RECORDED, "endpoint": "tcp://10.1.2.3:5601", "replay_endpoint": "tcp://evil.example:5701"}))
    assert one == Source(rank=0, port=5601, replay_port=5701, topic="kv@tiny")


@pytest.mark.parametrize(
    "said", [b"", b"no json", b"[]", b"null", b'{"0": 1}', b'{"x": {}}', page(**{"-1": RECORDED}), page(**{"64": RECORDED}), b"[" * 5000]
)
def test_an_answer_of_another_shape_names_no_source(said: bytes) -> None:
    assert read(said) == ()


def test_a_page_of_megabytes_is_not_read() -> None:
    row = b'"0":{"endpoint":"tcp://*:5557","publisher":"zmq"}'
    assert len(read(b"{" + row + b"}")) == 1
    assert read(b"{" + row + b"".join(b',"x%d":{}' % number for number in range(10_000)) + b"}") == ()


def test_ranks_are_bounded() -> None:
    assert len(read(page(*[{**RECORDED, "endpoint": f"tcp://*:{2000 + number}"} for number in range(200)]))) == MAX_RANKS


def test_a_declaration_wins_and_the_engine_says_only_how_many_ranks_there_are() -> None:
    declared = KvEvents(endpoint="tcp://127.0.0.1:9101", replay="tcp://127.0.0.1:9201", topic="kv")
    expected = (Source(0, 9101, 9201, "kv"), Source(1, 9102, 9202, "kv"))
    assert sources(declared, read(page(RECORDED, RECORDED))) == expected
    assert sources(declared, None) == sources(declared, ()) == expected[:1]
    assert sources(KvEvents(endpoint="tcp://127.0.0.1:9101"), ()) == (Source(0, 9101, None, None),)


def test_no_answer_is_not_the_answer_that_there_are_none() -> None:
    assert sources(None, None) is None
    assert sources(None, ()) == ()


def test_the_ports_of_the_documentation_are_the_same_everywhere_and_leave_room_for_every_rank() -> None:
    """Each rank takes the port after the one before, of events and of replays alike: 5557 and 5558 would meet at rank 1."""
    documents = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    pair = re.compile(r'endpoint"?: "?tcp://[^:]+:(\d+)"?, "?replay(?:_endpoint)?"?: "?tcp://[^:]+:(\d+)')
    found = {path.name: [(int(first), int(second)) for first, second in pair.findall(path.read_text())] for path in documents}
    assert all(found[name] for name in ("README.md", "declarations.md", "operations.md"))
    pairs = {one for ports in found.values() for one in ports}
    assert {one for one in pairs if one[0] < 9000} == {(5557, 5657)}  # the others are the simulated fleet's
    for events, replays in pairs:
        taken = [source for rank in range(MAX_RANKS) for source in (events + rank, replays + rank)]
        assert len(set(taken)) == 2 * MAX_RANKS, (events, replays)


@pytest.mark.parametrize(("topic", "followed"), [("nope", False), ("kv@tiny", True), ("kv@", True), ("", True), ("kv@tiny2", False)])
def test_a_declared_topic_that_the_engine_does_not_publish_is_not_followed(topic: str, followed: bool) -> None:
    """A replay would fill the index all the same, and nothing that happens afterwards would ever be heard."""
    declared = KvEvents(endpoint="tcp://127.0.0.1:5601", replay="tcp://127.0.0.1:5701", topic=topic)
    assert bool(sources(declared, read(page(RECORDED)))) is followed
    assert sources(declared, read(page({**RECORDED, "topic": None})))
    assert sources(declared, read(page({**RECORDED, "endpoint": "tcp://*:5999"})))  # the engine's port is another outside
    assert sources(declared, None)


def test_of_one_owners_engines_none_counts_what_another_publishes() -> None:
    """What an engine says itself goes before what was declared."""
    mine = {"a": Claim("o", "h", 5601, said=True), "b": Claim("o", "h", 5601, said=False), "c": Claim("o", "h", 5602, said=False)}
    assert doubtful(mine) == {"b"}
    assert doubtful({**mine, "a": Claim("o", "h", 5601, said=False)}) == {"a", "b"}
    assert doubtful({**mine, "b": Claim("o", "h", 5601, said=True)}) == {"a", "b"}
    assert doubtful({**mine, "b": Claim("o", "elsewhere", 5601, said=False)}) == set()


def test_nobody_takes_another_owners_events_away_by_declaring_their_port() -> None:
    claims = {"a": Claim("o", "h", 5601, said=False), "theirs": Claim("p", "h", 5601, said=True)}
    assert doubtful(claims) == set()
