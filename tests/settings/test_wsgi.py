"""The web refuses to start with what it must not hold, and without what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def _start(**changes: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("SALTROUTE_ROOT", "SALTROUTE_ROOT_KEY_FILE")}
    code = "import settings.wsgi; print('started')"
    return subprocess.run([sys.executable, "-c", code], env={**env, **changes}, capture_output=True, text=True, timeout=60, check=False)


def test_it_starts_without_a_root_key() -> None:
    assert _start().stdout.strip() == "started"


@pytest.mark.parametrize("name", ["SALTROUTE_ROOT", "SALTROUTE_ROOT_KEY_FILE"])
def test_it_refuses_a_root_key(name: str, tmp_path: Path) -> None:
    """By name, whether or not the file is there; the key is not read for it."""
    done = _start(**{name: f"file:{tmp_path / 'root.key'}" if name == "SALTROUTE_ROOT" else str(tmp_path / "root.key")})
    assert done.returncode != 0
    assert "the web holds no root key" in done.stderr


def test_it_refuses_to_start_without_its_secret_key() -> None:
    done = _start(SALTROUTE_SECRET_KEY_FILE="")
    assert "SALTROUTE_SECRET_KEY_FILE is not set" in done.stderr


def test_it_refuses_a_sign_in_key_of_another_size(tmp_path: Path) -> None:
    """The control: one of 32 bytes is taken, behind another too."""
    good, bad = tmp_path / "good.key", tmp_path / "bad.key"
    good.write_bytes(b"k" * 32)
    bad.write_bytes(b"k" * 31)
    assert _start(SALTROUTE_SIGN_IN_KEY_FILES=f"{good}, {good}").stdout.strip() == "started"
    done = _start(SALTROUTE_SIGN_IN_KEY_FILES=f"{good},{bad}")
    assert "a sign-in key has 32 bytes" in done.stderr
