"""A disk that takes nothing: the router serves on, says so, and writes again as soon as it can."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.fakes.rig import Rig
from tests.routing.dataplane.conftest import MakeRig

WORDS = "state file cannot be written"


def unsaved(rig: Rig) -> str:
    page = rig.router.plane.metrics.page().decode()
    return next(line for line in page.splitlines() if line.startswith("saltroute_state_unsaved "))


@pytest.mark.parametrize("what", ["the folder is a file", "the file is a folder", "the disk is full"])
async def test_what_cannot_be_saved_is_served_and_said(make_rig: MakeRig, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Once a minute in the log and at once in a metric; nothing half-written is left behind."""
    caplog.set_level(logging.INFO)
    state = tmp_path / "kept"
    if what == "the folder is a file":
        state.write_bytes(b"")
    elif what == "the file is a folder":
        (state / "state.bin").mkdir(parents=True)
    else:
        state.mkdir()
        (state / f"state.bin.{os.getpid()}.new").symlink_to("/dev/full")
    rig = await make_rig(state_dir=state)
    for _ in range(3):
        await rig.router.snapshots.save()
        if what == "the disk is full":
            (state / f"state.bin.{os.getpid()}.new").symlink_to("/dev/full")
    assert unsaved(rig) == "saltroute_state_unsaved 1.0"
    assert sum(WORDS in record.getMessage() for record in caplog.records) == 1
    assert (await rig.chat()).status == 200
    if what == "the folder is a file":
        state.unlink()
    elif what == "the file is a folder":
        assert [file.name for file in state.iterdir()] == ["state.bin"]
        (state / "state.bin").rmdir()
    else:
        (state / f"state.bin.{os.getpid()}.new").unlink()
    await rig.router.snapshots.save()
    assert unsaved(rig) == "saltroute_state_unsaved 0.0"
    assert [file.name for file in state.iterdir()] == ["state.bin"]
    assert "state file is written again" in caplog.text
