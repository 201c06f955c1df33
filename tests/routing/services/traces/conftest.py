"""Tenants for traces. Django is not ready while this file is read, so nothing of it is imported here."""

from __future__ import annotations

import pytest

from tests.routing.services.made import Made, make


@pytest.fixture
def acorn(db: None, valkey_url: str) -> Made:
    return make("acorn")


@pytest.fixture
def birch(db: None, valkey_url: str) -> Made:
    return make("birch")
