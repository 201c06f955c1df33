"""The bar and the checkpoint file of long work on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from routing.traces.formats import read
from routing.traces.progress import Bar, CheckpointFile, Unusable, Watched, about, bar_line


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_says_how_far_it_is_and_when_it_ends() -> None:
    assert bar_line(500, 2000, 0.25, 10.0) == "[######..................]  25%  500 of 2,000 requests, about 30 s left"
    assert bar_line(500, None, None, 10.0) == "500 requests, 10 s"
    assert bar_line(2000, 2000, 1.0, 10.0).endswith("2,000 of 2,000 requests")


def test_the_bar_is_for_terminals_alone() -> None:
    """A pipe gets nothing; a terminal gets one line, over and over, and none of it stays."""
    for sink, written in ((io.StringIO(), False), (_Terminal(), True)):
        bar = Bar(sink, clock=lambda: 0.0)
        bar.show(1, 2)
        bar.clear()
        assert bool(sink.getvalue()) is written
        assert "\n" not in sink.getvalue()
        assert not written or sink.getvalue().endswith("\r" + " " * 100 + "\r")


def test_a_file_knows_how_much_of_it_was_read(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}\n'
    (tmp_path / "t.jsonl").write_text(line * 20_000)
    watched = Watched(tmp_path / "t.jsonl")
    requests = read(watched).requests
    for _ in range(10_000):
        next(requests)
    assert 0.4 < watched.share() < 0.7


def test_a_checkpoint_file_is_for_its_owner_and_its_work_alone(tmp_path: Path) -> None:
    """What was kept and the key come back; another option or a changed trace is refused; it is gone when the work is."""
    trace, path = tmp_path / "t.jsonl", tmp_path / "c"
    trace.write_text("x")
    first = CheckpointFile(path, about(trace, {"limit": "5"}))
    first.keep(b"half")
    first.keep(b"more")
    assert path.stat().st_mode & 0o777 == 0o600
    again = CheckpointFile(path, about(trace, {"limit": "5"}))
    assert (again.before, again.key) == (b"more", first.key)
    with pytest.raises(Unusable, match="other work"):
        CheckpointFile(path, about(trace, {"limit": "6"}))
    trace.write_text("xy")
    with pytest.raises(Unusable, match="other work"):
        CheckpointFile(path, about(trace, {"limit": "5"}))
    again.done()
    assert not path.exists()
    path.write_bytes(b"\xc1")
    with pytest.raises(Unusable, match="no checkpoint"):
        CheckpointFile(path, about(trace, {"limit": "5"}))


def test_without_a_path_nothing_is_kept(tmp_path: Path) -> None:
    kept = CheckpointFile(None, {})
    kept.keep(b"half")
    kept.done()
    assert list(tmp_path.iterdir()) == []
    assert kept.key != CheckpointFile(None, {}).key
