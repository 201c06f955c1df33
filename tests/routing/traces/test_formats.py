"""Trace files: what they become, and what is said of one that does not keep to its format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from routing.traces.formats import TraceError, read
from routing.traces.request import Trace, TraceRequest, coarsen


def _write(path: Path, *lines: object) -> Path:
    content = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def _mooncake(**changes: Any) -> dict[str, Any]:
    return {"timestamp": 1000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 5, 9]} | changes


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_mooncake_line_is_a_request_whose_time_counts_from_the_first(tmp_path: Path, name: str) -> None:
    trace = read(
        _write(
            tmp_path / name, _mooncake(), b"\n", _mooncake(timestamp=3500, output_length=0, session="s", scope="eu", after=250, **{"class": "chat"})
        )
    )
    assert (trace.block_tokens, trace.timed) == (512, True)
    assert list(trace.requests) == [
        TraceRequest(0.0, 1100, 7, (0, 5, 9)),
        TraceRequest(2.5, 1100, 1, (0, 5, 9), session="s", scope="eu", kind="chat", after_s=0.25),
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"input_length": 0}, "input_length"),
        ({"input_length": True}, "input_length"),
        ({"input_length": 512}, "hash_ids"),
        ({"hash_ids": [0, -1, 2]}, "hash_ids[1]"),
        ({"hash_ids": None}, "hash_ids"),
        ({"timestamp": "now"}, "timestamp"),
        ({"timestamp": 1}, "timestamp"),
        ({"output_length": -1}, "output_length"),
        ({"session": ["a"]}, "session"),
        ({"after": -1}, "after"),
        ({"block_tokens": 16}, "block_tokens"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    trace = read(_write(tmp_path / "a.jsonl", _mooncake(), _mooncake(**changes)))
    with pytest.raises(TraceError) as raised:
        list(trace.requests)
    assert (raised.value.line, raised.value.field) == (2, field)
    assert "a.jsonl, line 2" in str(raised.value)


@pytest.mark.parametrize(("lines", "field"), [((), "(line)"), ((b"{",), "(line)"), (([1],), "(line)"), (({"prompts": 1},), "(line)")])
def test_a_file_of_no_known_format_is_refused(tmp_path: Path, lines: tuple[object, ...], field: str) -> None:
    with pytest.raises(TraceError) as raised:
        read(_write(tmp_path / "a.jsonl", *lines))
    assert raised.value.field == field


def test_half_a_gzip_file_is_said_to_be_that(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl.gz", *[_mooncake(hash_ids=[number, number * 7]) for number in range(2000)])
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(TraceError, match="not whole gzip data"):
        list(read(path).requests)


def _session(name: str, start_s: float, **changes: Any) -> dict[str, Any]:
    requests = [
        {"t": start_s, "in": 130, "out": 3, "hash_ids": [1, 2], "api_time": 2.0, "think_time": 0.0},
        {"t": start_s + 10, "in": 200, "out": 4, "hash_ids": [1, 2, 3], "api_time": 1.0},
    ]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests} | changes


def test_sessions_of_a_folder_are_merged_by_time_and_share_nothing_that_is_local(tmp_path: Path) -> None:
    _write(tmp_path / "b.json.gz", _session("b", 5.0))
    _write(tmp_path / "a.json", _session("a", 0.0))
    trace = read(tmp_path)
    requests = list(trace.requests)
    assert trace.block_tokens == 64
    assert [(one.session, one.at_s, one.after_s) for one in requests] == [("a", 0.0, None), ("b", 5.0, None), ("a", 10.0, 8.0), ("b", 15.0, 8.0)]
    assert requests[0].blocks == requests[2].blocks[:2]
    assert not set(requests[0].blocks) & set(requests[1].blocks)


def test_sessions_with_global_ids_share(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", _session("a", 0.0, hash_id_scope="global"))
    _write(tmp_path / "b.json", _session("b", 1.0, hash_id_scope="global"))
    first, second, *_ = read(tmp_path).requests
    assert first.blocks == second.blocks


def test_a_wrong_request_in_a_session_is_named(tmp_path: Path) -> None:
    broken = _session("a", 0.0)
    broken["requests"][1]["in"] = "many"
    with pytest.raises(TraceError) as raised:
        read(_write(tmp_path / "a.json", broken))
    assert (raised.value.line, raised.value.field) == (2, "in")


def test_every_assistant_turn_of_a_dialogue_is_a_request_and_later_turns_extend_earlier_ones(tmp_path: Path) -> None:
    said = [{"role": role, "content": role * 200} for role in ("system", "user", "assistant", "user", "assistant")]
    trace = read(_write(tmp_path / "a.jsonl", {"messages": said}), key=b"k")
    first, second = trace.requests
    assert not trace.timed
    whole = first.prompt_tokens // 64
    assert whole > 1
    assert second.blocks[:whole] == first.blocks[:whole]
    assert second.after_s is not None
    assert first.session == second.session


def test_ids_of_text_depend_on_the_key(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", {"prompt": "word " * 200})
    (one,) = read(path, key=b"one").requests
    (other,) = read(path, key=b"other").requests
    (again,) = read(path, key=b"one").requests
    assert one.blocks == again.blocks
    assert not set(one.blocks) & set(other.blocks)


@pytest.mark.parametrize(("line", "field"), [({"messages": []}, "messages"), ({"messages": ["hi"]}, "messages[0]"), ({"prompt": 7}, "prompt")])
def test_text_that_is_none_is_named(tmp_path: Path, line: object, field: str) -> None:
    with pytest.raises(TraceError) as raised:
        list(read(_write(tmp_path / "a.jsonl", line)).requests)
    assert raised.value.field == field


def test_larger_blocks_share_what_whole_groups_share() -> None:
    requests = [TraceRequest(0.0, 640, 1, (1, 2, 3, 4, 5)), TraceRequest(1.0, 520, 1, (1, 2, 3, 4))]
    first, second = coarsen(Trace("t", 128, True, iter(requests)), 256).requests
    assert first.blocks == (2, 4, 5)
    assert second.blocks == (2, 4)
    with pytest.raises(ValueError, match="cannot be put together"):
        coarsen(Trace("t", 128, True, iter(requests)), 200)
