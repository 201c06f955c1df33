"""``manage.py trace``: analysis and replay of files, as text and JSON; what is wrong with a file is said in one line."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    lines = [{"timestamp": number * 1000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1 + number % 4]} for number in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _run(*arguments: str) -> str:
    out = StringIO()
    call_command("trace", *arguments, stdout=out)
    return out.getvalue()


def test_an_analysis_as_text_and_as_json(trace: Path) -> None:
    assert "reusable with an endless cache: 93.8% of prompt tokens (exact)" in _run("analyze", str(trace))
    values = json.loads(_run("analyze", str(trace), "--json"))
    assert values["requests"] == 40
    assert values["ceiling"] == pytest.approx((39 + 36) / 80)
    assert values["advice"]["kind"]


def test_a_replay_of_two_policies(trace: Path) -> None:
    out = _run("replay", str(trace), "--policy", "ettft", "--policy", '{"policy": "ettft", "pressure": 0}', "--speeds", "1,0.5")
    assert out.count("40 of 40 answered") == 2
    values = json.loads(_run("replay", str(trace), "--policy", "round_robin", "--json"))
    assert [run["policy"] for run in values["runs"]] == ["round_robin"]
    assert values["runs"][0]["answered"] == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "best"), "--policy: policy: unknown policy"),
        (("--policy", "{"), "--policy: not JSON"),
        (("--speeds", "1,x"), "^--speeds: use numbers"),
        (("--speeds", "1,0"), "^--speeds: each"),
        (("--cache-tokens", "0"), "^--cache-tokens"),
        (("--speedup", "0"), "--speedup"),
        (("--slo-ttft-s", "0"), "--slo-ttft-s"),
    ],
)
def test_a_wrong_option_is_named(trace: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        _run("replay", str(trace), *arguments)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        _run("analyze", str(tmp_path / "none.jsonl"))
    path = tmp_path / "broken.jsonl"
    path.write_text('{"hash_ids": [0], "timestamp": 0, "input_length": 5}\n')
    with pytest.raises(CommandError, match=r"broken.jsonl, line 1, output_length"):
        _run("analyze", str(path))


def test_a_page_is_written_beside_what_is_printed(trace: Path, tmp_path: Path) -> None:
    for number, arguments in enumerate((("analyze",), ("replay", "--policy", "ettft", "--policy", "round_robin"))):
        page = tmp_path / f"{number}.html"
        values = json.loads(_run(*arguments[:1], str(trace), *arguments[1:], "--json", "--html", str(page)))
        text = page.read_text()
        assert text.startswith("<!doctype html>")
        assert "<svg" in text
        assert "<script" not in text
        assert values["kind"] == arguments[0]
    with pytest.raises(CommandError, match="No such file"):
        _run("analyze", str(trace), "--html", str(tmp_path / "none" / "x.html"))


def test_interrupted_work_goes_on_where_it_was(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the first policy: the second run replays the other one alone, and says the same as an uninterrupted one."""
    from routing.traces import runs

    kept, asked, replayed = tmp_path / "kept", [], runs.replayed
    arguments = ("replay", str(trace), "--policy", "ettft", "--policy", "round_robin", "--json")
    whole = _run(*arguments)

    def interrupted(*given: Any, **more: Any) -> Any:
        asked.append(given[2].policy)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return replayed(*given, **more)

    monkeypatch.setattr(runs, "replayed", interrupted)
    with pytest.raises(CommandError, match=r"interrupted\. The same command goes on") as ended:
        _run(*arguments, "--checkpoint", str(kept))
    assert ended.value.returncode == 130
    with pytest.raises(CommandError, match="belongs to other work"):
        _run(*arguments, "--seed", "2", "--checkpoint", str(kept))
    assert _run(*arguments, "--checkpoint", str(kept)) == whole
    assert asked == ["ettft", "round_robin", "round_robin"]
    assert not kept.exists()


def test_without_an_objective_none_is_said_to_be_met(trace: Path) -> None:
    assert "within" not in _run("replay", str(trace))
    assert "within 2 s 100.0%" in _run("replay", str(trace), "--slo-ttft-s", "2")
