"""The limit of a replica on its way: declared, published, in force in a real router in front of a simulated engine."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from routing.models import Pool
from routing.services import replicas
from tenants.scoping import tenant_scope
from tests.routing.services.audits.conftest import world
from tests.routing.services.audits.rig import until
from tests.routing.services.rows import ACTOR

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
__all__ = ["world"]  # the fixture


def limited(world: World, limit: int | None) -> None:
    """Limit the world's one replica. Its pool is declared isolated: audits have tests of their own."""
    with tenant_scope(world.tenant.id):
        Pool.objects.filter(tenant_id=world.tenant.id).update(isolation="declared")
        replicas.update(tenant_id=world.tenant.id, actor=ACTOR, replica_id=world.replica_id, max_concurrency=limit)
    world.publish()


def reported(world: World) -> Any:
    return world.rig.report()["replicas"][world.rig.engine()]["max_concurrency"]


def test_a_declared_limit_is_in_force_and_whoever_is_over_it_waits(world: World) -> None:
    key = world.key("app")
    assert reported(world) is None
    limited(world, 1)
    assert reported(world) == 1
    body = {"model": "chat", "max_tokens": 3000, "stream": True, "messages": [{"role": "user", "content": "a long answer"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{world.rig.url}/v1/chat/completions", json.dumps(body).encode(), headers)
    plane = world.rig.router.plane
    with ThreadPoolExecutor(1) as pool:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.readline().startswith(b"data: ")
            second = pool.submit(world.rig.chat, key, "a short one")
            until(lambda: len(plane.waiting) == 1)
            assert plane.in_flight == 2
            assert plane.engine(world.rig.engine()).in_flight == 1
            assert not second.done()
        assert second.result(timeout=20)[0] == 200
    limited(world, None)
    assert reported(world) is None
