"""Ids numbered anew, a trace written as lines, and blocks that one scope alone has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.traces import numbering
from routing.traces.export import mooncake_lines
from routing.traces.formats import read
from routing.traces.numbering import Numbers, numbered
from routing.traces.request import Trace, TraceRequest, in_own_scope

IDS = st.lists(st.integers(0, 2**63 - 1), max_size=40)


def trace(requests: list[TraceRequest]) -> Trace:
    return Trace("t", 512, True, iter(requests))


def request(*blocks: int, **fields: object) -> TraceRequest:
    usual: dict[str, object] = {"at_s": 0.0, "prompt_tokens": 512 * len(blocks) or 1, "output_tokens": 1, "blocks": blocks}
    return TraceRequest(**{**usual, **fields})  # type: ignore[arg-type]  # fields by name


@given(st.lists(IDS, max_size=8))
def test_numbers_are_dense_in_the_order_of_first_sight_and_equal_where_ids_are(batches: list[list[int]]) -> None:
    table, seen = Numbers(), dict[int, int]()
    for batch in batches:
        expected = [seen.setdefault(one, len(seen)) for one in batch]
        found = table.of(batch)
        assert [found[one] for one in batch] == expected
    assert len(table) == len(seen)
    table.close()


def test_many_ids_cost_bounded_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """More ids than one question holds are asked for in several."""
    monkeypatch.setattr(numbering, "_ASKED", 3)
    table = Numbers()
    assert table.of(range(10)) == {one: one for one in range(10)}
    assert table.of([9, 11, 0]) == {9: 9, 11: 10, 0: 0}


def test_a_numbered_trace_keeps_what_is_equal_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over batches too. Block 7 of one request is block 7 of the next; sessions and scopes by their first appearance, what is not known stays so."""
    monkeypatch.setattr(numbering, "BATCH", 2)
    given = [
        request(2**63 - 1, 7, session="ff", scope="a", kind="single"),
        request(7, 9, scope="b", after_s=1.5),
        request(9, session="1", scope="a"),
        request(),
    ]
    assert list(numbered(trace(given)).requests) == [
        request(0, 1, session="s1", scope="n1", kind="single"),
        request(1, 2, scope="n2", after_s=1.5),
        request(2, session="s2", scope="n1"),
        request(),
    ]


def test_a_reader_that_stops_early_leaves_no_table_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Numbers] = []

    def close(self: Numbers) -> None:
        closed.append(self)

    monkeypatch.setattr(Numbers, "close", close)
    requests = numbered(trace([request(1), request(2)])).requests
    assert isinstance(requests, Iterator)
    next(requests)
    assert closed == []
    requests.close()  # type: ignore[attr-defined]  # a generator
    assert len(closed) == 3


def test_lines_read_back_to_the_same_requests(tmp_path: Path) -> None:
    """Whole milliseconds, sessions, scopes, classes and think times; a request without blocks too."""
    given = [
        request(0, 1, session="s1", scope="n1", kind="single"),
        request(0, 1, 2, at_s=0.001, session="s1", scope="n1", after_s=0.0),
        request(at_s=86_400.123, prompt_tokens=40),
    ]
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"".join(mooncake_lines(trace(given))))
    again = read(path)
    assert (again.block_tokens, again.timed) == (512, True)
    assert list(again.requests) == given


@given(IDS, IDS)
def test_blocks_of_two_scopes_never_meet(one: list[int], other: list[int]) -> None:
    """Within a scope equal stays equal and different stays different; without a scope nothing changes."""
    first, second = (in_own_scope(request(*one, scope=scope)) for scope in ("eu", "us"))
    assert not set(first.blocks) & set(second.blocks)
    again = in_own_scope(request(*one, *other, scope="eu")).blocks
    assert again[: len(one)] == first.blocks
    assert len(set(again)) == len({*one, *other})
    assert in_own_scope(request(*one)) == request(*one)
    assert all(0 <= block < 2**63 for block in first.blocks)
