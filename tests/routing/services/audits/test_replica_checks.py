"""Testing a replica before it is added: from the order over a real router to what the tenant is told, and on to a replica that serves."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

if TYPE_CHECKING:
    from routing.models import ReplicaCheck
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]


def ordered(world: World, url: str, **more: Any) -> ReplicaCheck:
    from routing.services import replica_checks
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR

    with tenant_scope(world.tenant.id):
        pool_id = world.replica().pool_id
        return replica_checks.order(tenant_id=world.tenant.id, actor=ACTOR, pool_id=pool_id, name="new", url=url, **more)


def carried_out(world: World, url: str, **more: Any) -> ReplicaCheck:
    from routing.services import replica_checks
    from tenants.scoping import tenant_scope

    row = ordered(world, url, **more)
    replica_checks.run(world.tenant.id, row.id)
    with tenant_scope(world.tenant.id):
        return replica_checks.check(world.tenant.id, row.id)


def test_an_engine_is_tested_and_added_as_it_was_tested(world: World) -> None:
    """What the router found is told; the replica that is added has the check's id, so the sealed credential opens for it, and leaves the check."""
    from routing.models import Replica, ReplicaCheck
    from routing.services import replica_checks
    from tenants.core.errors import Conflict
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR

    row = carried_out(world, world.rig.engine(1), endpoint_id=world.endpoint_id, credential="of-the-engine")
    now = timezone.now()
    found = replica_checks.report(row, now)
    assert replica_checks.state(row, now) == "done"
    assert found is not None
    assert (found.answered, found.served_model, found.served, found.salts.verdict) == (True, "sim-8b", True, "honoured")
    assert found.parity.state == "unavailable"  # this endpoint names no tokenizer
    with tenant_scope(world.tenant.id):
        made = replica_checks.add(tenant_id=world.tenant.id, actor=ACTOR, check_id=row.id)
        assert (made.id, made.name, made.url, made.isolation_state) == (row.id, "new", world.rig.engine(1), "unverified")
        assert Replica.objects.get(id=row.id).credential is not None
        assert ReplicaCheck.objects.get(id=row.id).credential is None
        with pytest.raises(Conflict, match="added already"):
            replica_checks.add(tenant_id=world.tenant.id, actor=ACTOR, check_id=row.id)
    world.publish()
    seen = {one.entry.id: one for one in world.rig.router.plane.view.tenants[world.tenant.id].endpoints["chat"].replicas}
    assert seen[row.id].credential == "of-the-engine"


def test_a_strangers_engine_is_one_that_does_not_answer(world: World) -> None:
    """Registered by another tenant: not connected to, and the same report at the same distance from the beginning as a closed port's."""
    import socket

    from routing.services import replica_checks
    from tenants.scoping import tenant_scope
    from tests.routing.services.made import make
    from tests.routing.services.rows import a_pool, a_replica

    birch = make("birch")
    with tenant_scope(birch.id):
        a_replica(a_pool(birch.id), url=world.rig.engine(1))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    foreign, gone, inner = (carried_out(world, url) for url in (world.rig.engine(1), f"http://127.0.0.1:{port}", "http://10.1.2.3:9000"))
    assert foreign.report == gone.report == inner.report
    assert foreign.report == {**(foreign.report or {}), "answered": False}
    for row in (foreign, gone, inner):
        assert row.started_at is not None
        assert row.shown_at == row.started_at + timedelta(seconds=replica_checks.NO_ANSWER_S)
        assert replica_checks.state(row, row.shown_at - timedelta(seconds=1)) == "running"
        assert replica_checks.report(row, row.shown_at - timedelta(seconds=1)) is None
        told = replica_checks.report(row, row.shown_at)
        assert told is not None
        assert not told.answered
    assert not world.rig.fleet[1].replica.requests


def test_a_check_is_carried_out_once_and_one_that_is_lost_says_so(world: World) -> None:
    """A second delivery does nothing; without a worker, and with one that dies, the check is over after a while; a router that is away is named."""
    from django.conf import settings

    from routing.services import replica_checks
    from tenants.scoping import tenant_scope

    row = carried_out(world, world.rig.engine(1))
    began = row.started_at
    replica_checks.run(world.tenant.id, row.id)
    with tenant_scope(world.tenant.id):
        assert replica_checks.check(world.tenant.id, row.id).started_at == began
    waiting = ordered(world, world.rig.engine(1))
    later = waiting.created_at + timedelta(seconds=replica_checks.LOST_S + 1)
    assert replica_checks.state(waiting, waiting.created_at) == "queued"
    assert (replica_checks.state(waiting, later), replica_checks.error(waiting, later)) == ("failed", "No worker took it up.")
    settings.DOOR_URL = "http://127.0.0.1:9009"
    away = carried_out(world, world.rig.engine(1))
    assert (replica_checks.state(away, timezone.now()), replica_checks.error(away, timezone.now())) == ("failed", "No router could be asked.")


def test_tests_of_replicas_are_bounded_and_old_ones_are_not_added(world: World) -> None:
    """So many an hour; a test of more than an hour ago is no ground to add anything."""
    from routing.models import ReplicaCheck
    from routing.services import replica_checks
    from tenants.core.errors import Conflict, LimitReached
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR

    rows = [ordered(world, "http://127.0.0.1:9009") for _ in range(replica_checks.MAX_AN_HOUR)]
    with pytest.raises(LimitReached, match="MAX_AN_HOUR"):
        ordered(world, "http://127.0.0.1:9009")
    with tenant_scope(world.tenant.id):
        ReplicaCheck.objects.filter(id=rows[0].id).update(created_at=timezone.now() - timedelta(minutes=61))
        with pytest.raises(Conflict, match="test the replica again"):
            replica_checks.add(tenant_id=world.tenant.id, actor=ACTOR, check_id=rows[0].id)
    ordered(world, "http://127.0.0.1:9009")
