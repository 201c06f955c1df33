"""Rotation of the root: everything moves, nothing changes its salt, a worker may die anywhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import redis
from django.db import connection, transaction

from namespaces.core.keyring import KeyringError, Roots
from namespaces.models import KeyOperation, TenantKeyVersion
from namespaces.services import operations, rotation, sealed
from namespaces.services.sealed import Moved
from routing.models import Replica
from tenants.core.errors import Invalid, NotFound, Unavailable
from tenants.models import Tenant
from tenants.scoping import ScopeError, tenant_scope
from tests.namespaces.services.world import ACTOR, BOTH, CREDENTIAL, NEW, OLD, THIRD, World, make_world, name, namespace, router_view, spellings


@pytest.fixture
def world(db: None, valkey_url: str, settings: Any) -> World:
    """An installation under the old root, no router running."""
    return make_world(settings)


class Killed(BaseException):
    """What kill -9 looks like from inside: nothing catches it, the transaction is lost."""


class Probe:
    """A kind of sealed values that has none, and counts or kills: it stands where a real kind stands."""

    name = "probe"

    def __init__(self, *, kill_at: int | None = None, left: Iterable[int] = ()) -> None:
        self.calls = 0
        self.kill_at = kill_at
        self.remaining = iter(left)

    def tick(self) -> bool:
        """One more step; dies at the chosen one."""
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed
        return True

    def reseal(self, tenant_id: UUID, roots: Roots) -> Moved:
        self.tick()
        return Moved()

    def left(self, tenant_id: UUID, roots: Roots) -> int:
        self.tick()
        return next(self.remaining, 0)


def _perform(row: KeyOperation, probe: Probe) -> bool:
    return operations.perform(tenant_id=row.tenant_id, operation_id=row.id, roots=BOTH, go_on=probe.tick)


def test_everything_moves_and_no_salt_changes(world: World) -> None:
    """Keys and credentials open under the new root alone; the router's names are the same; every tenant is published again, tombstones too."""
    acorn = world.tenants["acorn"]
    before = namespace(router_view(acorn, sealed_to=OLD, roots=(OLD,)))
    versions = _versions(world)
    done = world.perform(world.request())
    assert (done.state, done.root_id, done.passes) == ("done", name(NEW), 1)
    assert done.counts == {"keys": 4, "sealed": 2, "unreadable": 0, "left": 0}
    assert (done.tenants_done, done.tenants_total) == (5, 5)
    assert world.keys(Roots((NEW,))) == world.secrets
    assert world.credentials(Roots((NEW,))) == [CREDENTIAL] * 2
    view = router_view(acorn, sealed_to=NEW, roots=(NEW,))
    assert namespace(view) == before
    assert view.endpoints["chat"].replicas[0].credential == CREDENTIAL
    assert all(after > versions[tenant_id] for tenant_id, after in _versions(world).items())
    assert world.actions("tenant_key.rewrap") == [1] * 5
    assert world.actions("key_operation.done") == [1, 0, 0, 0, 0]
    with pytest.raises(KeyringError):
        world.keys(Roots((OLD,)))


def test_meanwhile_routers_with_both_roots_serve_what_either_sealed(world: World) -> None:
    """A document of before or after, keys wrapped under either: the same names."""
    acorn = world.tenants["acorn"]
    expected = namespace(router_view(acorn, sealed_to=OLD, roots=(OLD,)))
    early = [namespace(router_view(acorn, sealed_to=root, roots=roots)) for root in (OLD, NEW) for roots in ((NEW, OLD), (OLD, NEW))]
    world.perform(world.request())
    late = [namespace(router_view(acorn, sealed_to=root, roots=roots)) for root in (OLD, NEW) for roots in ((NEW, OLD), (OLD, NEW))]
    assert early + late == [expected] * 8


def test_a_second_run_and_a_second_request_change_nothing(world: World) -> None:
    """While one is open it is the answer; when it is over, performing it again does nothing."""
    row = world.request()
    assert world.request().id == row.id
    world.perform(row)
    written = world.actions("tenant_key.rewrap")
    world.perform(row)
    assert world.actions("tenant_key.rewrap") == written
    again = world.perform(world.request())
    assert again.id != row.id
    assert again.counts["keys"] == again.counts["sealed"] == 0


def test_killed_at_any_step_it_goes_on_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between and inside the transactions of every tenant and phase: each tenant moves once; what the dead worker left opens with both roots."""
    killed = 0
    for step in range(1, 100):
        point = transaction.savepoint()
        row, probe = world.request(), Probe(kill_at=step)
        monkeypatch.setitem(sealed._kinds, "probe", probe)
        try:
            _perform(row, probe)
            finished = True
        except Killed:
            finished, killed = False, killed + 1
            assert world.keys(BOTH) == world.secrets
            assert world.credentials(BOTH) == [CREDENTIAL] * 2
            assert _perform(row, probe)
        with tenant_scope(world.platform):
            done = operations.find(world.platform, str(row.id))
        assert (done.state, done.counts, done.passes) == ("done", {"keys": 4, "sealed": 2, "unreadable": 0, "left": 0}, 1), step
        assert world.actions("tenant_key.rewrap") == [1] * 5
        assert world.keys(Roots((NEW,))) == world.secrets
        transaction.savepoint_rollback(point)
        if finished:
            break
    assert killed == 20  # five tenants, two phases, before and inside each transaction


def test_a_budget_that_runs_out_leaves_the_rest_to_the_next_run(world: World) -> None:
    """One tenant for each run: the position is in the row."""
    row, places = world.request(), []
    for _ in range(30):
        over = operations.perform(tenant_id=world.platform, operation_id=row.id, roots=BOTH, go_on=partial(next, iter([True]), False))
        with tenant_scope(world.platform):
            row = operations.find(world.platform, str(row.id))
        places.append((row.phase, row.tenants_done))
        if over:
            break
    assert row.state == "done"
    assert places == [*(("rewrap", number) for number in range(1, 5)), *(("verify", number) for number in range(6))]


def test_what_appears_under_the_old_root_meanwhile_means_another_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by verifying; a process that never stops sealing to it ends the operation as failed, in words."""
    monkeypatch.setitem(sealed._kinds, "probe", Probe(left=[0, 1]))
    done = world.perform(world.request())
    assert (done.state, done.passes) == ("done", 2)
    assert world.actions("tenant_key.rewrap") == [2] * 5
    monkeypatch.setitem(sealed._kinds, "probe", Probe(left=[1] * 1000))
    failed = world.perform(world.request())
    assert (failed.state, failed.passes) == ("failed", rotation.MAX_PASSES)
    assert "still seals" in failed.problem


def test_values_that_no_root_opens_are_counted_and_left(world: World) -> None:
    """They were lost before; the rest moves."""
    acorn = world.tenants["acorn"]
    with tenant_scope(acorn):
        TenantKeyVersion.objects.create(tenant_id=acorn, version=7, wrapped=b"damage" * 10)
        Replica.objects.filter(tenant_id=acorn).update(credential=b"damage" * 10)
    done = world.perform(world.request())
    assert (done.state, done.counts) == ("done", {"keys": 4, "sealed": 1, "unreadable": 2, "left": 0})
    with tenant_scope(acorn):
        assert bytes(TenantKeyVersion.objects.get(version=7).wrapped) == b"damage" * 10


def test_a_worker_with_other_roots_waits_and_says_so(world: World) -> None:
    """Not restarted yet: nothing is moved, and the same operation goes on once it is."""
    row = world.request()
    waiting = world.perform(row, Roots((OLD,)))
    assert waiting.state == "requested"
    assert name(NEW) in waiting.problem
    assert name(OLD) in waiting.problem
    assert world.keys(Roots((OLD,))) == world.secrets
    assert world.perform(row).state == "done"


def test_it_waits_for_routers_that_do_not_accept_the_new_root(world: World, valkey_url: str) -> None:
    """By their own reports; an old router that names no roots counts as not accepting."""
    with redis.Redis.from_url(valkey_url) as valkey:
        valkey.set("saltroute:router:r1", json.dumps({"roots": [name(NEW), name(OLD)]}))
        valkey.set("saltroute:router:r2", json.dumps({"roots": [name(OLD)]}))
        valkey.set("saltroute:router:r3", json.dumps({}))
        row = world.request()
        waiting = world.perform(row)
        assert (waiting.state, "r2, r3" in waiting.problem) == ("requested", True)
        assert world.keys(Roots((OLD,))) == world.secrets
        for router in ("r2", "r3"):
            valkey.set(f"saltroute:router:{router}", json.dumps({"roots": [name(NEW)]}))
    assert world.perform(row).state == "done"


def test_it_waits_while_nobody_knows_the_routers(world: World, settings: Any) -> None:
    settings.VALKEY_URL = "redis://127.0.0.1:1/0"
    waiting = world.perform(world.request())
    assert (waiting.state, "Valkey" in waiting.problem) == ("requested", True)


def test_a_worker_restarted_with_other_roots_in_the_middle_stops(world: World) -> None:
    """Nothing is moved to a third root."""
    row = world.request()
    calls = iter([True, True])
    operations.perform(tenant_id=world.platform, operation_id=row.id, roots=BOTH, go_on=lambda: next(calls, False))
    operations.perform(tenant_id=world.platform, operation_id=row.id, roots=Roots((THIRD, NEW, OLD)), go_on=lambda: True)
    assert world.keys(BOTH) == world.secrets
    assert world.perform(row).state == "done"


def test_asking_ladder(world: World, settings: Any) -> None:
    """Only the platform, with a reason, where the public half is known, in its scope."""
    acorn = world.tenants["acorn"]
    with tenant_scope(acorn), pytest.raises(Invalid):
        operations.request_root_rotation(tenant_id=acorn, actor=ACTOR, reason="mine")
    with tenant_scope(acorn), pytest.raises(ScopeError):
        operations.request_root_rotation(tenant_id=world.platform, actor=ACTOR, reason="not here")
    with tenant_scope(world.platform):
        for reason in ("", "  ", "x" * 501):
            with pytest.raises(Invalid):
                operations.request_root_rotation(tenant_id=world.platform, actor=ACTOR, reason=reason)
        settings.SEAL_PUBLIC_KEY = None
        with pytest.raises(Unavailable):
            operations.request_root_rotation(tenant_id=world.platform, actor=ACTOR, reason="why")
    with pytest.raises(NotFound):
        operations.perform(tenant_id=world.platform, operation_id=UUID(int=1), roots=BOTH, go_on=lambda: True)


def test_another_tenant_sees_nothing_of_it(world: World) -> None:
    row = world.request()
    with tenant_scope(world.tenants["birch"]):
        assert KeyOperation.objects.count() == 0
        with pytest.raises(NotFound):
            operations.find(world.tenants["birch"], str(row.id))


def test_no_secret_is_written_down(world: World) -> None:
    """Audit logs and operations, whole: neither root, no tenant key, no credential."""
    world.perform(world.request())
    written = world.everything_written()
    assert name(NEW) in written
    assert not [text for text in spellings(OLD, NEW, *world.secrets.values(), CREDENTIAL.encode()) if text in written]


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_take_turns(valkey_url: str, settings: Any) -> None:
    """Each tenant is moved once, and the operation ends once."""
    world = make_world(settings)
    row = world.request()
    start, over = threading.Barrier(2), []

    def work() -> None:
        try:
            start.wait(timeout=20)
            over.append(operations.perform(tenant_id=world.platform, operation_id=row.id, roots=BOTH, go_on=lambda: True))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert over == [True, True]
    assert world.actions("tenant_key.rewrap") == [1] * 5
    assert world.actions("key_operation.done") == [1, 0, 0, 0, 0]


def _versions(world: World) -> dict[UUID, int]:
    found = {}
    for tenant_id in world.all:
        with tenant_scope(tenant_id):
            found[tenant_id] = Tenant.objects.get(id=tenant_id).config_version
    return found
