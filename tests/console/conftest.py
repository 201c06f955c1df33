"""What console tests share: cheap password hashing, two tenants, and people signed in to them.

pytest may load this file before Django is ready (when it is asked for this directory alone), so models are imported inside the fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pytest_django import Settings

if TYPE_CHECKING:
    from tests.console.rows import Town


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Settings) -> None:
    """Hashing costs a second as the product does it; what is tested here does not depend on the cost."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def town(as_app: None) -> Town:
    """Two tenants, their people and an operator, each with a signed-in browser."""
    from tests.console import rows

    return rows.town()
