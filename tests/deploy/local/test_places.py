"""Directories and ports."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from deploy.local.places import FIRST_EPHEMERAL_PORT, Home, free_run, port_is_free, private_dir, reachable_by, readable_by, socket_dir
from deploy.local.process import Account, Child, LaunchError, rotate, trim, wait_until

STRANGER = Account("stranger", 54321, 54321)


def test_a_private_directory_replaces_no_link_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(LaunchError):
        private_dir(tmp_path / "link")


def test_a_socket_path_that_is_too_long_moves_to_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    wanted = tmp_path / ("x" * 90) / "pgsock"
    found = socket_dir(wanted, f"test{os.getpid()}")
    assert len(str(found)) <= 80
    assert found.stat().st_mode & 0o777 == 0o700
    assert socket_dir(wanted, f"test{os.getpid()}") == found
    found.rmdir()


def test_reach_needs_execute_permission_on_every_directory_above(home: Home) -> None:
    file = home.root / "open" / "file"
    file.parent.mkdir(mode=0o755)
    file.touch()
    file.chmod(0o755)
    assert reachable_by(file, STRANGER)
    assert readable_by(file, STRANGER)
    file.chmod(0o700)
    assert not readable_by(file, STRANGER)
    file.parent.chmod(0o700)
    assert not reachable_by(file, STRANGER)


def test_a_run_of_ports_steps_over_a_taken_one() -> None:
    first = free_run(FIRST_EPHEMERAL_PORT - 3000, 4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        assert not port_is_free(first + 1)
        assert free_run(first, 2) >= first + 2
    assert free_run(first, 2, avoid=frozenset({first})) >= first + 1


def test_no_run_is_left_near_the_end() -> None:
    with pytest.raises(LaunchError):
        free_run(FIRST_EPHEMERAL_PORT - 1, 2)


def test_a_log_past_its_bound_is_moved_aside_once(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("0123456789")
    rotate(log, bound_bytes=10)
    assert log.exists()
    rotate(log, bound_bytes=9)
    assert not log.exists()
    assert (tmp_path / "x.log.1").read_text() == "0123456789"


def test_a_log_that_grows_while_its_child_runs_is_kept_in_bounds(tmp_path: Path) -> None:
    """What was written is aside, what comes next begins the log anew, and the child never notices."""
    go_on = tmp_path / "go on"
    wait = f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)"
    program = f"import pathlib, time\nprint('x' * 4000, flush=True)\n{wait}\nprint('after', flush=True)"
    child = Child("writer", [sys.executable, "-c", program], {}, tmp_path / "x.log")
    child.start()
    try:
        wait_until("the first line", lambda: child.output().endswith("\n"), deadline_s=20)
        trim(child, bound_bytes=5000)
        assert child.log.stat().st_size == 4001
        trim(child, bound_bytes=4000)
        assert (child.log.stat().st_size, (tmp_path / "x.log.1").stat().st_size) == (0, 4001)
        go_on.touch()
        wait_until("the end", lambda: child.exit_code() is not None, deadline_s=20)
        assert child.output() == "after\n"
    finally:
        child.stop()
