"""A tenant whose routers report to a real Valkey. Django is not ready while this file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.routing.services.reconciliation.place import Place


@pytest.fixture
def place(db: None, valkey_url: str, settings: Any) -> Place:
    """Tenant acorn with two replicas and an endpoint, published, and one router that has it all."""
    from tests.routing.services.reconciliation.place import build

    del settings
    return build(valkey_url)
