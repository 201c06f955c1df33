"""The supervisor, as a process, with real stores and small programs: order, deaths, signals, leftovers, taken ports."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from deploy.local.options import REPOSITORY
from deploy.local.places import FIRST_EPHEMERAL_PORT, Home, free_run
from deploy.local.process import POLL_S, clear_leftovers, started_at
from deploy.local.restarts import MOST_DEATHS

PATIENCE_S = 60
_NUMBERS = itertools.count()


class Run:
    """One supervisor process and what it printed. Whatever a failed test leaves running is stopped by the fixture below."""

    started: ClassVar[list[Run]] = []

    def __init__(self, home: Home, module: str = "tests.deploy.local.rig", **extra: str) -> None:
        first = free_run(20000 + os.getpid() % 10000, 3)
        ports = {name: str(first + n) for n, name in enumerate(("ROUTER_PORT", "ROUTER_INTERNAL_PORT", "CONTROL_PORT"))}
        kept = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "VALKEY_URL", "MAKELEVEL")}
        self.env = {**kept, **ports, "SALTROUTE_HOME": str(home.root), "FLEET": "0", **extra}
        self.output = home.root.parent / f"{home.root.name}.out{next(_NUMBERS)}"
        with self.output.open("ab") as stream:
            argv = [sys.executable, "-m", module, *(["up"] if module == "deploy.local" else [])]
            self.process = subprocess.Popen(argv, cwd=REPOSITORY, env=self.env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        self.started.append(self)

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Poll the output until ``pattern`` is in it; a supervisor that ends first is shown with all it said."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            found = re.search(pattern, self.text())
            if found:
                return found
            assert not ended, self.text()
            time.sleep(POLL_S)
        raise AssertionError(f"no {pattern} in:\n{self.text()}")

    def pids(self) -> list[int]:
        return [int(pid) for pid in self.wait_for(r"PIDS ([\d ]+)").group(1).split()]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def tidy(home: Home) -> Iterator[None]:
    yield
    while Run.started:
        run = Run.started.pop()
        if run.process.poll() is None:
            run.end(signal.SIGTERM)
    clear_leftovers(home.run / "children.json")
    for path in home.root.parent.glob(f"{home.root.name}.out*"):
        path.unlink()


pytestmark = pytest.mark.usefixtures("tidy")


def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(started_at(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    assert [pid for pid in pids if started_at(pid)] == []


def _sessions(pids: list[int]) -> set[int]:
    """Pids of living processes in the sessions that the children led."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) in pids and fields[0] not in "ZX":
            found.add(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_with_exit_code_0_and_leaves_nobody(home: Home, number: int) -> None:
    run = Run(home)
    pids = run.pids()
    assert len(_sessions(pids)) > len(pids)  # among them the grandchild of the program that ignores SIGTERM
    assert run.end(number) == 0
    assert _sessions(pids) == set()
    assert not (home.run / "children.json").exists()
    assert "first ends" in (home.logs / "first.log").read_text()


def test_a_second_start_appends_to_the_logs(home: Home) -> None:
    for _ in range(2):
        run = Run(home)
        run.wait_for("Up after")
        assert run.end(signal.SIGTERM) == 0
    assert (home.logs / "first.log").read_text().count("first ready") == 2


def test_a_child_that_dies_at_the_start_is_named_with_code_and_last_lines_and_everything_stops(home: Home) -> None:
    run = Run(home, RIG_CRASH="1")
    assert run.process.wait(PATIENCE_S) == 1
    text = run.text()
    assert re.search(r"saltroute: last exited with code 1; the end of .*/logs/last\.log", text)
    shown = text.partition("last.log:\n")[2].splitlines()[:20]
    assert [line.strip() for line in shown] == [f"line {n}" for n in range(11, 30)] + ["the disk is on fire"]
    assert not (home.run / "children.json").exists()


def test_a_child_that_keeps_dying_stops_everything(home: Home) -> None:
    run = Run(home)
    pids = run.pids()
    run.wait_for("Up after")
    for death in range(MOST_DEATHS + 1):
        os.kill(json.loads((home.run / "children.json").read_text())["last"][0], signal.SIGKILL)
        if death < MOST_DEATHS:
            run.wait_for(rf"(?s)(started last again.*){{{death + 1}}}")
    assert run.process.wait(PATIENCE_S) == 1
    assert "saltroute: last keeps dying\nlast was killed by SIGKILL" in run.text()
    assert _sessions(pids) == set()


def test_a_child_killed_later_is_named_with_its_signal_and_comes_back_while_the_others_go_on(home: Home) -> None:
    run = Run(home)
    pids = run.pids()
    run.wait_for("Up after")
    os.kill(pids[-1], signal.SIGKILL)
    run.wait_for("started last again")
    text = run.text()
    assert "last was killed by SIGKILL" in text
    assert text.count("again in") == 1
    assert all(started_at(pid) for pid in pids[:-1])
    assert json.loads((home.run / "children.json").read_text())["last"][0] not in pids
    assert run.end(signal.SIGTERM) == 0
    assert _sessions(pids) == set()


def test_the_databases_come_back_with_their_data(home: Home) -> None:
    run = Run(home)
    run.wait_for("Up after")
    for store in ("postgres", "valkey"):
        os.kill(json.loads((home.run / "children.json").read_text())[store][0], signal.SIGKILL)
        run.wait_for(f"started {store} again")
    deadline = time.monotonic() + PATIENCE_S
    while not (answered := _recovered(home)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    assert answered
    assert run.end(signal.SIGTERM) == 0


def _recovered(home: Home) -> bool:
    """Whether PostgreSQL has answered after it was killed."""
    _, crashed, since = (home.logs / "postgres.log").read_text().rpartition("not properly shut down")
    return bool(crashed) and "ready to accept connections" in since


def test_killing_the_supervisor_takes_its_children_along_and_the_next_start_works(home: Home) -> None:
    run = Run(home)
    pids = run.pids()
    stubborn = json.loads((home.run / "children.json").read_text())["stubborn"][0]
    run.end(signal.SIGKILL)
    _until_gone([pid for pid in pids if pid != stubborn])
    again = Run(home)
    again.wait_for("Up after")
    _until_gone(pids)
    assert "stopped stubborn, left over from an earlier run" in again.text()  # it ignores the signal that the others died of
    assert again.end(signal.SIGTERM) == 0


def test_two_supervisors_on_one_home_do_not_fight(home: Home) -> None:
    run = Run(home)
    pids = run.pids()
    second = Run(home)
    assert second.process.wait(PATIENCE_S) == 1
    assert f"is in use by another supervisor (pid {run.process.pid})" in second.text()
    assert [pid for pid in pids if started_at(pid)] == pids
    assert run.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("variable", ["ROUTER_PORT", "ROUTER_INTERNAL_PORT", "CONTROL_PORT"])
def test_a_taken_port_is_one_line_that_names_the_variable(home: Home, variable: str) -> None:
    with socket.socket() as taken:
        port = free_run(FIRST_EPHEMERAL_PORT - 2000, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        new = Home(home.root / "new")
        run = Run(new, module="deploy.local", **{variable: str(port)})
        assert run.process.wait(PATIENCE_S) == 1
    assert not new.root.exists()  # a start that was refused leaves nothing
    (line,) = run.text().splitlines()
    assert f"port {port} " in line
    assert f"set {variable} to another port" in line


@pytest.mark.parametrize(("name", "value"), [("ROUTER_PORT", "eighty"), ("CONTROL_PORT", "0"), ("FLEET", "-1"), ("FLEET", "1000")])
def test_a_malformed_setting_is_one_line_that_names_it(home: Home, name: str, value: str) -> None:
    run = Run(home, module="deploy.local", **{name: value})
    assert run.process.wait(PATIENCE_S) == 1
    assert run.text().startswith(f"saltroute: {name} must be")
    assert len(run.text().splitlines()) == 1


def test_a_failing_service_is_named_and_stops_the_start(home: Home) -> None:
    run = Run(home, DATABASE_URL="postgresql://admin:hunter2@127.0.0.1:1/saltroute")
    assert run.process.wait(PATIENCE_S) == 1
    assert "saltroute: DATABASE_URL: cannot reach PostgreSQL" in run.text()
    assert "hunter2" not in run.text()
