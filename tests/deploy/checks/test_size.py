"""The size check finds what is too long, and only that."""

from __future__ import annotations

from pathlib import Path

from deploy.checks.size import FILE_LINES, FUNCTION_LINES, offences

PATH = Path("app/module.py")


def _function(lines: int, head: str = "def work():") -> str:
    return head + "\n" + "    x = 1\n" * (lines - 1)


def test_a_function_at_the_limit_passes_and_one_line_more_does_not() -> None:
    assert list(offences(PATH, _function(FUNCTION_LINES))) == []
    (line,) = offences(PATH, _function(FUNCTION_LINES + 1))
    assert line == f"app/module.py:1: work has {FUNCTION_LINES + 1} lines, at most {FUNCTION_LINES}"


def test_an_async_method_counts_too() -> None:
    source = "class A:\n" + "    async def work(self):\n" + "        x = 1\n" * FUNCTION_LINES
    (line,) = offences(PATH, source)
    assert "app/module.py:2: work" in line


def test_a_file_at_the_limit_passes_and_one_line_more_does_not() -> None:
    assert list(offences(PATH, "x = 1\n" * FILE_LINES)) == []
    (line,) = offences(PATH, "x = 1\n" * (FILE_LINES + 1))
    assert line == f"app/module.py: {FILE_LINES + 1} lines, at most {FILE_LINES}"
