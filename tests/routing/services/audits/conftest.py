"""A tenant with an audited pool in front of a real router and simulated engines. Django is not ready while this file is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.services import Services

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World


@pytest.fixture
def world(db: None, valkey_url: str, services: Services, settings: Any, tmp_path: Path) -> Iterator[World]:
    """Tenant acorn, its pool gpu with one replica, its endpoint chat; a second engine runs and is in no pool."""
    from namespaces import roots
    from namespaces.core import keyring
    from routing.dataplane.config import Secrets
    from routing.services import publishing
    from tests.routing.services.audits.rig import running
    from tests.routing.services.audits.world import World, build

    publishing._client.cache_clear()
    publishing._bursts.rest_until_s = publishing._bursts.spent_s = 0.0
    settings.EVIDENCE_KEY = bytes(range(32))
    settings.EVIDENCE_PUBLIC_KEY = keyring.publish_public_key(settings.EVIDENCE_KEY)
    secrets = Secrets(
        root=roots.load(settings.ROOT).current,
        publish_public_key=keyring.publish_public_key(settings.PUBLISH_KEY),
        records_key=settings.RECORDS_KEY,
    )
    with running(tmp_path, services.valkey_url("router"), secrets, replicas=2) as rig:
        settings.DOOR_URL = rig.door
        tenant, endpoint, replica = build(rig)
        made = World(rig=rig, tenant=tenant, endpoint_id=endpoint, replica_id=replica)
        made.publish()
        yield made
