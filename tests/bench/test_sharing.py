"""The benchmark of sharing levels, on a few made-up dialogues: what it measures is what it says."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import msgspec
import pytest

from tests.bench import sharing
from tests.bench.sharing import LEVELS, Turn

SYSTEM = "You help with flights . " * 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Six dialogues over one system prompt: the user asks, a tool is called, the user thanks."""
    path = tmp_path / "dialogues.jsonl.gz"
    with gzip.open(path, "wb") as out:
        for number in range(6):
            call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"question {number} " * 20},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": f"result {number} " * 20},
                {"role": "assistant", "content": f"answer {number} " * 20},
                {"role": "user", "content": "thanks"},
                {"role": "assistant", "content": "gladly"},
            ]
            out.write(msgspec.json.encode({"messages": messages}) + b"\n")
    return path


@pytest.fixture
def dialogues(file: Path) -> list[list[Turn]]:
    return sharing.read(file)


def test_each_assistant_turn_is_one_request_and_the_next_prompt_continues_it(dialogues: list[list[Turn]]) -> None:
    assert [[turn.after_tool for turn in turns] for turns in dialogues] == [[False, True, False]] * 6
    for turns in dialogues:
        for earlier, later in itertools.pairwise(turns):
            held = (*earlier.prompt, *earlier.answer)
            assert later.prompt[: len(held)] == held


def test_the_narrower_the_level_the_less_is_shared(dialogues: list[list[Turn]]) -> None:
    """In a cache that never evicts; and nothing at all where every request is alone."""
    shares = [sharing.run(dialogues, level=level, scopes=2, keys=2).cached_share for level in LEVELS]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 4
    assert shares[-1] == 0.0


def test_a_small_cache_holds_less_and_a_run_can_be_repeated(dialogues: list[list[Turn]]) -> None:
    longest = max(len(turn.prompt) + len(turn.answer) for turns in dialogues for turn in turns)
    ample, tight = (sharing.run(dialogues, level="tenant", capacity_tokens=capacity) for capacity in (None, longest + 64))
    assert tight.prompt_tokens == ample.prompt_tokens
    assert tight.cached_tokens < ample.cached_tokens
    assert sharing.run(dialogues, level="tenant", capacity_tokens=longest + 64) == tight


def test_it_prints_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sharing.main([str(file), "--scopes", "2", "--capacity", "4096"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[2:]] == list(LEVELS)
    assert "seed 1" in printed[0]


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SALTROUTE_DATA", raising=False)
    assert sharing.main([]) == 2
    monkeypatch.setenv("SALTROUTE_DATA", str(tmp_path))
    assert sharing.main([]) == 2
    said = capsys.readouterr().err
    assert "SALTROUTE_DATA" in said
    assert str(tmp_path / sharing.FILE) in said
