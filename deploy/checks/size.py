"""Size check: no source file over 450 lines, no function over 80, outside tests and migrations.

A file or function that wants to grow past this usually hides two ideas. ``python -m deploy.checks.size`` prints every offender
and exits 1 when there is one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 450
FUNCTION_LINES = 80
EXEMPT_PARTS = frozenset({"tests", "migrations"})


def tracked(root: Path) -> list[Path]:
    """Python files of the project: what git tracks or would track, so that a new file is checked before its first commit."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"], capture_output=True, check=True
    )
    return [root / name for name in sorted(listed.stdout.decode().split("\0")) if name and (root / name).exists()]


def offences(path: Path, source: str) -> Iterator[str]:
    """Yield one line for each limit that ``source`` breaks."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines, at most {FILE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"


def main(root: Path) -> int:
    """Check every file; returns the exit code."""
    found = [
        line
        for path in tracked(root)
        if not EXEMPT_PARTS & set(path.relative_to(root).parts)
        for line in offences(path.relative_to(root), path.read_text())
    ]
    print("\n".join(found) if found else "sizes: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent.parent))
