"""Reconciliation against a real router in front of simulated engines: its reports are understood, and what goes wrong there is found."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.utils import timezone

from routing.models import Endpoint, Replica
from routing.services.reconciliation import reports, running
from tenants import changes
from tenants.models import Tenant
from tenants.scoping import tenant_scope
from tests.routing.services.audits.conftest import world
from tests.routing.services.audits.rig import until
from tests.routing.services.rows import ACTOR

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
__all__ = ["world"]  # the fixture


def kinds(world: World, seconds: float = 200.0) -> dict[str, str]:
    """What is open after two runs so far apart, in words by kind."""
    assert running.run(world.tenant.id, trigger="beat") is not None
    real = timezone.now
    with mock.patch.object(timezone, "now", side_effect=lambda: real() + timedelta(seconds=seconds)):
        ended = running.run(world.tenant.id, trigger="beat")
    assert ended is not None
    return {one.kind: one.explanation for one in ended.findings}


def heard(world: World) -> Any:
    """The router's word in Valkey, once it has seen its engine."""

    def complete() -> bool:
        said = reports.read(1.0).routers
        engine = said[0].engines.get(world.rig.engine()) if said else None
        return engine is not None and bool(engine.build and engine.models and engine.capacity_tokens)

    until(complete)
    (router,) = reports.read(1.0).routers
    return router


def test_a_routers_own_report_is_understood_and_contradicts_nothing(world: World) -> None:
    router = heard(world)
    engine = router.engines[world.rig.engine()]
    assert (router.router_id, router.state) == ("router-of-the-tests", "ready")
    assert "sim-8b" in engine.models
    assert engine.block_tokens == 16
    assert engine.capacity_tokens
    assert [rank.state for rank in engine.ranks] == ["history"]
    assert time.time() - router.at_s < 60
    assert router.versions[world.tenant.id] > 0
    with tenant_scope(world.tenant.id):
        Replica.objects.filter(tenant_id=world.tenant.id).update(build=engine.build)
    assert kinds(world) == {}


def test_what_contradicts_is_found(world: World) -> None:
    """Another model than the endpoint's, and events where nobody publishes any."""
    engine = heard(world).engines[world.rig.engine()]
    with tenant_scope(world.tenant.id):
        rows = Replica.objects.filter(tenant_id=world.tenant.id)
        rows.update(build=engine.build, kv_events={"endpoint": "tcp://127.0.0.1:1", "replay": None, "topic": ""})
        Endpoint.objects.filter(tenant_id=world.tenant.id).update(served_model="sim-70b")
        changes.record(tenant_id=world.tenant.id, actor=ACTOR, action="test.change")
        version = Tenant.objects.values_list("config_version", flat=True).get(id=world.tenant.id)
    world.publish()
    until(lambda: heard(world).versions[world.tenant.id] == version)
    found = kinds(world)
    assert set(found) == {"model_not_served", "residency_degraded"}
    assert "router-of-the-tests: history" in found["residency_degraded"]
    assert "sim-70b, which gpu/a does not serve" in found["model_not_served"]


def test_a_build_that_the_watch_missed_is_noted(world: World) -> None:
    """As if the sweep of reports had not run for a while."""
    engine = heard(world).engines[world.rig.engine()]
    with tenant_scope(world.tenant.id):
        Replica.objects.filter(tenant_id=world.tenant.id).update(build="0" * 32, isolation_state="isolated", isolation_verified_at=timezone.now())
    assert "build_unnoticed" in kinds(world)
    row = world.replica()
    assert (row.build, row.isolation_state) == (engine.build, "unverified")
