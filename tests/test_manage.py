"""manage.py finds the product that runs here, and only where nothing else was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import manage


def test_commands_speak_to_the_local_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the launcher left is read when no database is named; a named database wins; no file is no environment."""
    monkeypatch.setenv("SALTROUTE_HOME", str(tmp_path))
    monkeypatch.delenv("DATABASE_URL")
    assert manage.local_environment() == {}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manage.env").write_text("DATABASE_URL=postgresql://app:{password}@/x?host=/s&a=b\nVALKEY_URL=redis://h\n")
    assert manage.local_environment() == {"DATABASE_URL": "postgresql://app:{password}@/x?host=/s&a=b", "VALKEY_URL": "redis://h"}
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/x")
    assert manage.local_environment() == {}
