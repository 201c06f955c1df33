"""manage.py finds the product that runs here, and only where nothing else was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from django.db import OperationalError

import manage


def test_commands_speak_to_the_local_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The file that the launcher left is read when no database is named; a named database wins; no file is no environment, and a home
    that was named in vain is said."""
    monkeypatch.setenv("SALTROUTE_HOME", str(tmp_path))
    monkeypatch.delenv("DATABASE_URL")
    assert manage.local_environment() == {}
    assert str(tmp_path / "run" / "manage.env") in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manage.env").write_text("DATABASE_URL=postgresql://app:{password}@/x?host=/s&a=b\nVALKEY_URL=redis://h\n")
    assert manage.local_environment() == {"DATABASE_URL": "postgresql://app:{password}@/x?host=/s&a=b", "VALKEY_URL": "redis://h"}
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/x")
    assert manage.local_environment() == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [("apply", "-f", "x.yaml"), ("export",), ("migrate",)])
def test_without_a_database_commands_say_so_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    """No traceback, no password, the exit code 1, and what to do."""
    (tmp_path / "x.yaml").write_text("tenants: [{slug: acme}]\n")
    done = subprocess.run(
        [sys.executable, str(Path(manage.__file__)), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={"DATABASE_URL": f"postgresql://app:a-password@/away?host={tmp_path}", "PATH": "/usr/bin:/bin", "SALTROUTE_SECRET_KEY": "x" * 50},
    )
    asked = "is the product running, with this SALTROUTE_HOME? `make up` starts it"
    assert done.stderr.splitlines() == [f"cannot reach the database away at {tmp_path}: {asked}"]
    assert done.returncode == 1
    assert done.stdout == ""


def test_what_a_database_that_answers_refuses_is_not_taken_for_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that was not had in time, say, has a code of its own and keeps its traceback."""
    refused = OperationalError("canceling statement due to lock timeout")
    refused.__cause__ = psycopg.errors.LockNotAvailable()

    def execute(_: list[str]) -> None:
        raise refused

    monkeypatch.setattr("django.core.management.execute_from_command_line", execute)
    with pytest.raises(OperationalError):
        manage.main()
