"""The script that makes the virtual environment: its refusals. (The installation itself is what every run of CI does.)"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy.local.options import REPOSITORY

SCRIPT = REPOSITORY / "deploy" / "local" / "install.sh"


def _program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _install(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = ["/bin/sh", str(SCRIPT), *arguments]
    path = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, cwd=directory, env={**path, **env}, capture_output=True, text=True, check=False, timeout=60)


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = _program(tmp_path / "python3.9", 'case "$1" in -V) echo Python 3.9.2;; *) exit 1;; esac')
    done = _install(tmp_path, "run", PYTHON=str(old))
    assert done.returncode != 0
    assert "is Python 3.9.2, but Saltroute needs Python 3.11, 3.12 or 3.13" in done.stderr


def test_no_fitting_python_at_all_says_what_was_found(tmp_path: Path) -> None:
    _program(tmp_path / "python3", 'case "$1" in -V) echo Python 3.8.1;; *) exit 1;; esac')
    done = _install(tmp_path, "run", PATH=str(tmp_path))
    assert done.returncode != 0
    assert "found: Python 3.8.1" in done.stderr
    assert "PYTHON=" in done.stderr


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    done = _install(tmp_path, "run", PYTHON="no-such-python")
    assert done.returncode != 0
    assert "PYTHON=no-such-python: no such program" in done.stderr


def test_a_missing_venv_module_names_the_package(tmp_path: Path) -> None:
    bare = _program(tmp_path / "python3.11", 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')
    done = _install(tmp_path, "run", PYTHON=str(bare))
    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("arguments", [(), ("everything",)])
def test_the_usage_is_shown(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = _install(tmp_path, *arguments)
    assert done.returncode != 0
    assert "usage" in done.stderr
