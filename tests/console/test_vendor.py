"""Front-end code of others: pinned, with its licence, and served from here alone."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import console

STATIC = Path(console.__file__).parent / "static"


def test_htmx_is_the_file_that_its_note_names() -> None:
    note = (STATIC / "vendor/htmx/VERSION.md").read_text()
    digest = hashlib.sha256((STATIC / "vendor/htmx/htmx.min.js").read_bytes()).hexdigest()
    assert f"`{digest}`" in note
    assert "Zero-Clause BSD" in (STATIC / "vendor/htmx/LICENSE").read_text()
    assert re.search(r'version:"2\.0\.11"', (STATIC / "vendor/htmx/htmx.min.js").read_text())


def test_uplot_is_the_files_that_its_note_names() -> None:
    """Unchanged, with their licence, and free of what the Content-Security-Policy forbids."""
    folder = STATIC / "vendor/uplot"
    note = (folder / "VERSION.md").read_text()
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        text = (folder / name).read_bytes()
        assert f"`{hashlib.sha256(text).hexdigest()}`" in note
        assert not re.search(rb"\beval\(|new Function|innerHTML|url\(|@import", text)
    assert "The MIT License" in (folder / "LICENSE").read_text()
    assert "(v1.6.32)" in (folder / "uPlot.iife.min.js").read_text()


def test_our_own_files_fetch_nothing_from_elsewhere() -> None:
    for name in ("console/console.css", "console/console.js", "console/plots.js"):
        assert not re.search(r"https?://|@import|url\(", (STATIC / name).read_text())


def test_axe_is_the_file_that_its_note_names() -> None:
    """Unchanged, with its licence, and beside the tests: nothing of it is among what the console serves."""
    folder = Path(__file__).parents[1] / "vendor/axe"
    text = (folder / "axe.min.js").read_bytes()
    assert f"`{hashlib.sha256(text).hexdigest()}`" in (folder / "VERSION.md").read_text()
    assert "Mozilla Public License" in (folder / "LICENSE").read_text()
    assert b"axe v4.14.1" in text[:200]
    assert not list(STATIC.rglob("*axe*"))
