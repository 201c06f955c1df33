"""Fixtures of the tests below: imports wait until Django is set up, which a conftest may come before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tenants.houses import Api, House


@pytest.fixture
def acorn(db: None) -> House:
    """A tenant."""
    from tests.tenants.houses import house

    return house("acorn")


@pytest.fixture
def birch(db: None) -> House:
    """Another tenant, a stranger to the first."""
    from tests.tenants.houses import house

    return house("birch")


@pytest.fixture
def platform(db: None) -> Api:
    """A platform operator's token."""
    from tests.tenants.houses import platform_api

    return platform_api()
