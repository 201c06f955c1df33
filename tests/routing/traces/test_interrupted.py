"""An analysis that is interrupted goes on as if nothing had happened; a trace is read from memory as from a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.traces import workloads
from routing.traces.analysis import Analysis
from routing.traces.formats import InMemory, TraceError, read
from routing.traces.request import TraceRequest

REQUESTS = list(workloads.rag(3, count=400, per_s=2.0))


def _added(analysis: Analysis, requests: list[TraceRequest]) -> Analysis:
    for one in requests:
        analysis.add(one)
    return analysis


@pytest.mark.parametrize("limit", [200, 100_000])
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(0, len(REQUESTS)), max_size=4))
def test_an_analysis_goes_on_from_its_state(limit: int, cuts: list[int]) -> None:
    """Cut anywhere, kept as bytes and restored, exact or sampled, the report is the same to the last digit."""
    whole = _added(Analysis(512, limit=limit), REQUESTS)
    assert (whole.report().sample == 1) == (limit == 100_000)
    analysis, begun = Analysis(512, limit=limit), 0
    for cut in [*sorted(cuts), len(REQUESTS)]:
        _added(analysis, REQUESTS[begun:cut])
        kept = msgspec.msgpack.encode(analysis.state())
        analysis, begun = Analysis(512, limit=limit), cut
        analysis.restore(msgspec.msgpack.decode(kept, strict=False))
    assert analysis.report() == whole.report()


def _line(number: int) -> bytes:
    return json.dumps({"timestamp": number * 1000, "input_length": 1024, "output_length": 5, "hash_ids": [0, number]}).encode() + b"\n"


def test_what_was_sent_is_read_as_its_file_would_be(tmp_path: Path) -> None:
    content = b"".join(map(_line, range(1, 5)))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(content))
    from_file = list(read(tmp_path / "t.jsonl.gz").requests)
    for name, sent in (("t.jsonl", content), ("t.jsonl.gz", gzip.compress(content))):
        assert list(read(InMemory(name, sent, 10_000)).requests) == from_file


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_where_it_passes_the_bound() -> None:
    content = b"".join(map(_line, range(1, 50)))
    packed = InMemory("t.jsonl.gz", gzip.compress(content), len(content) - 1)
    with pytest.raises(TraceError, match=r"longer than \d+ bytes when unpacked") as refused:
        list(read(packed).requests)
    assert refused.value.line == 49
    assert len(list(read(InMemory("t.jsonl.gz", gzip.compress(content), len(content))).requests)) == 49


def test_a_session_is_known_by_what_it_holds() -> None:
    """Whatever its name."""
    session = {"id": "s", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [7]}]}
    assert [one.session for one in read(InMemory("upload", json.dumps(session).encode(), 1000)).requests] == ["s"]
