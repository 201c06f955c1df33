"""Fixtures for the launcher's tests: homes of their own, since each starts and kills servers of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from deploy.local.places import Home, short_temporary_home


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty home with a path that is short enough for sockets and open enough for PostgreSQL's account."""
    root = short_temporary_home("srl-")
    made = Home(root)
    made.make()
    yield made
    shutil.rmtree(root, ignore_errors=True)
