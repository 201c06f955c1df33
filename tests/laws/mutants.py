"""Break one law at a time and see the tests notice: ``make mutants``.

    python -m tests.laws.mutants [--lanes 2] [--only TEXT] [--tree DIRECTORY]

Each mutant of ``tests/laws/register.py`` is applied alone to a temporary copy of the tree, and the tests that hold its law run there. It is *caught*
if one of them fails; an error in setting up, a tree that does not import and a run over the time limit catch nothing. First the same tests must pass
on the unchanged copy, or their failing would mean nothing. Prints a line for each mutant and exits with 1 if one survives, breaks the run or no
longer applies.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.laws.register import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", ".saltroute", ".hypothesis", "__pycache__", ".*_cache")
LIMIT_S = 150.0  # for one mutant; the slowest takes a tenth of it on an idle machine
BASELINE_LIMIT_S = 420.0
WHOLE_LIMIT_S = 1500.0  # for all of them: what is not reached by then is told, and is no success
GRACE_S = 20.0  # for pytest to stop its servers when it is interrupted
TAIL_CHARACTERS = 3000
# Tests of what is pure need no settings, no services and no Django: half the time of a short run.
PURE = ("tests/namespaces/core/", "tests/routing/core/", "tests/tenants/core/")
OPTIONS = ("-q", "--no-header", "--tb=line", "--show-capture=no", "-p", "tests.laws.profile", "--hypothesis-profile=mutants")
FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)

Verdict = Literal["caught", "survived", "broken", "stale"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant. ``by`` is the test that failed, or what went wrong."""

    mutant: Mutant
    verdict: Verdict
    by: str
    took_s: float

    def line(self) -> str:
        return f"{self.verdict:9} {self.mutant.name:48} {self.took_s:6.1f} s  {self.by}"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of pytest: its exit code (None if it was ended at the limit), the tests that failed, and the end of what it printed."""

    code: int | None
    failed: tuple[str, ...]
    tail: str


def copy_of(tree: Path, into: Path) -> Path:
    """A copy of the tree to work on, without what a run leaves behind."""
    return Path(shutil.copytree(tree, into, ignore=NOT_COPIED, symlinks=True))


def pytest_in(tree: Path, tests: Sequence[str], *, limit_s: float, workers: int = 0, stop_at_first: bool = True) -> Run:
    """Run some tests of the copy in a process of their own, with the same drawn examples each time."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
    if stop_at_first:
        command.append("-x")
    if workers:
        command.extend(("-n", str(workers)))
    elif all(test.startswith(PURE) for test in tests):
        command.extend(("--noconftest", "-p", "no:django", "-p", "no:xdist"))
    # What a surrounding pytest has set up for itself, its services and its Django, is not this run's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        printed, code = _end(process), None
    return Run(code=code, failed=tuple(FAILED.findall(printed)), tail=printed[-TAIL_CHARACTERS:])


def _end(process: subprocess.Popen[str]) -> str:
    """Interrupt a run, so that it stops its servers; kill it if it does not."""
    process.send_signal(signal.SIGINT)
    try:
        printed, _ = process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
    return printed


class Stale(Exception):
    """The text of a mutant does not occur exactly once in its file."""


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with the mutation in it.

    Raises:
        Stale: it no longer applies.
    """
    found = text.count(mutant.old)
    if found != 1 or mutant.old == mutant.new:
        raise Stale(f"its text occurs {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


@contextmanager
def applied(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The copy with the mutation in it, and as it was again afterwards.

    Raises:
        Stale: as :func:`mutated`.
    """
    file = tree / mutant.file
    original = file.read_text()
    file.write_text(mutated(original, mutant))
    compiled = Path(importlib.util.cache_from_source(str(file)))
    compiled.unlink(missing_ok=True)  # Python compares sizes and whole seconds; both may be equal here
    try:
        yield
    finally:
        file.write_text(original)
        compiled.unlink(missing_ok=True)


def judge(tree: Path, mutant: Mutant, *, limit_s: float = LIMIT_S) -> Outcome:
    """Apply one mutant and run its tests."""
    began_s = time.monotonic()

    def outcome(verdict: Verdict, by: str) -> Outcome:
        return Outcome(mutant=mutant, verdict=verdict, by=by, took_s=time.monotonic() - began_s)

    try:
        with applied(tree, mutant):
            run = pytest_in(tree, mutant.tests, limit_s=limit_s)
    except (Stale, FileNotFoundError) as error:
        return outcome("stale", str(error))
    if run.code is None:
        return outcome("broken", f"not decided within {limit_s:.0f} s")
    if run.code == 0:
        return outcome("survived", "")
    if run.code == 1 and run.failed:
        return outcome("caught", run.failed[0])
    return outcome("broken", f"pytest ended with {run.code} and no failed test: {run.tail.strip().splitlines()[-1:]}")


def judge_all(tree: Path, mutants: Sequence[Mutant], *, lanes: int, say: Callable[[str], None]) -> list[Outcome]:
    """Judge all mutants, ``lanes`` at a time, each lane in a copy of its own; in the order of the register. None is begun after the limit."""
    ends_s = time.monotonic() + WHOLE_LIMIT_S
    waiting: queue.SimpleQueue[tuple[int, Mutant]] = queue.SimpleQueue()
    for numbered in enumerate(mutants):
        waiting.put(numbered)
    outcomes: dict[int, Outcome] = {}
    stopped = threading.Event()

    def work(copy: Path) -> None:
        while not stopped.is_set() and time.monotonic() < ends_s:
            try:
                number, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            outcomes[number] = outcome = judge(copy, mutant)
            say(outcome.line())

    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        threads = [threading.Thread(target=work, args=(copy_of(tree, Path(place) / f"lane{lane}"),)) for lane in range(lanes)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    return [outcomes[number] for number in sorted(outcomes)]


def baseline(tree: Path, mutants: Sequence[Mutant], *, workers: int) -> Run:
    """The mutants' tests on an unchanged copy."""
    files = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        return pytest_in(copy_of(tree, Path(place) / "tree"), files, limit_s=BASELINE_LIMIT_S, workers=workers, stop_at_first=False)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--lanes", type=int, default=2, help="mutants at a time (default 2)")
    parser.add_argument("--only", default="", help="only mutants whose name holds this text")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to copy (default: this one)")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    began_s = time.monotonic()
    unchanged = baseline(options.tree, chosen, workers=options.lanes)
    if unchanged.code != 0:
        say(f"The tests fail without any mutant:\n{unchanged.tail}")
        return 1
    say(f"baseline  {len({test for mutant in chosen for test in mutant.tests})} test files pass unchanged, {time.monotonic() - began_s:.0f} s")
    outcomes = judge_all(options.tree, chosen, lanes=options.lanes, say=say)
    escaped = [outcome for outcome in outcomes if outcome.verdict != "caught"]
    say(f"\n{len(outcomes) - len(escaped)} of {len(chosen)} mutants caught in {time.monotonic() - began_s:.0f} s")
    for outcome in escaped:
        say(outcome.line())
    if len(outcomes) != len(chosen):
        say(f"{len(chosen) - len(outcomes)} not reached within {WHOLE_LIMIT_S:.0f} s")
    return 1 if escaped or len(outcomes) != len(chosen) or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
