"""Routers' reports acted on, with a real router's report: namespaces assigned, builds and restarts noticed, and what a second namespace then gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from namespaces.audit.case import Facts
from namespaces.audit.states import Event
from routing.services.audits import running
from routing.services.audits.extent import round_tokens
from routing.services.audits.reports import Reports, join
from routing.services.audits.watch import Watch

if TYPE_CHECKING:
    from routing.models import AuditRun
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]


def reports(world: World) -> Reports:
    return join([world.rig.router.snapshots.status()])


def test_an_unverified_replica_serves_the_first_namespace_that_asked_and_no_second(world: World) -> None:
    """Refused, reported, assigned, served; the other scope stays out until an audit has proved the replica."""
    from tests.routing.services.audits.rig import until

    first, second = world.key("first"), world.key("second", "support")
    assert world.rig.chat(first, "hello")[0] == 503
    until(lambda: bool(reports(world).unserved))
    watch = Watch()
    watch.look(reports(world), timezone.now())
    assert world.replica().dedicated_namespace is not None
    world.publish()
    assert world.rig.chat(first, "hello")[0] == 200
    assert world.rig.chat(second, "hello")[0] == 503
    watch.look(reports(world), timezone.now())
    world.publish()
    assert world.rig.chat(second, "hello")[0] == 503
    assert world.audit_until_sure().outcome == "pass"
    assert (world.rig.chat(first, "hello")[0], world.rig.chat(second, "hello")[0]) == (200, 200)
    assert world.replica().dedicated_namespace is None


def test_the_router_acts_on_a_quarantine_at_once(world: World) -> None:
    """The next snapshot is enough: no restart, no further poll of an engine."""
    from routing.services import isolation
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR

    assert world.audit_until_sure().outcome == "pass"
    key = world.key("app")
    assert world.rig.chat(key, "hello")[0] == 200
    with tenant_scope(world.tenant.id):
        isolation.apply(tenant_id=world.tenant.id, actor=ACTOR, replica_id=world.replica_id, event=Event.SHARING, now=timezone.now(), reason="test")
    world.publish()
    status, body = world.rig.chat(key, "hello")
    assert (status, body["error"]["code"]) == (503, "isolation_unavailable")


def test_a_build_is_noticed_and_a_restart_asks_for_an_audit(world: World) -> None:
    """What routers scrape: build, block size, models, start. A restart keeps the state, frees nothing that is proved, and orders an audit of its own
    name, which tries every case once and no more; by hand the usual one is ordered."""
    from routing.models import AuditRun
    from tenants.scoping import tenant_scope
    from tests.routing.services.audits.rig import until

    url = world.rig.engine()
    until(lambda: bool(reports(world).engines[url].build) and reports(world).engines[url].started_at is not None)
    seen = reports(world).engines[url]
    assert seen.block_tokens == 16
    assert {"sim-8b", "ada", "bob"} <= set(seen.models)
    watch = Watch()
    watch.look(reports(world), timezone.now())
    assert world.replica().build == seen.build
    run = world.audit_until_sure()
    assert (run.outcome, run.build) == ("pass", seen.build)
    world.rig.restart()
    until(lambda: reports(world).engines[url].started_at != seen.started_at and bool(reports(world).engines[url].build))
    watch.look(reports(world), timezone.now())
    with tenant_scope(world.tenant.id):
        ordered = AuditRun.objects.filter(tenant_id=world.tenant.id, state="queued")
        assert [one.trigger for one in ordered] == ["restart"]
        order_id = ordered[0].id
    assert world.replica().isolation_state == "isolated"
    ended = running.run(world.tenant.id, order_id)
    assert ended is not None
    assert (ended.run.outcome, ended.state) == ("pass", "isolated"), ended.run.reason
    assert rounds(ended.run) == dict.fromkeys(rounds(ended.run), 1)
    assert 40_000 < ended.run.tokens_spent <= round_tokens(Facts("vllm", ("ada", "bob")), 16)
    usual = world.audit(sizes={})
    assert usual.outcome == "pass"
    assert rounds(usual)["two_salts"] > 5


def rounds(run: AuditRun) -> dict[str, int]:
    """By case, of those that were tried."""
    return {case["name"]: case["rounds"] for case in run.cases if case["rounds"]}


def test_a_quiet_fleet_costs_no_query(world: World, django_assert_num_queries: Any) -> None:
    found = reports(world)
    watch = Watch()
    watch.look(found, timezone.now())
    with django_assert_num_queries(0):
        watch.look(found, timezone.now())


def test_a_report_of_nonsense_changes_nothing(world: World) -> None:
    """Ids of nobody, ids that are none, names that are no namespaces."""
    name = "ns-" + "0" * 32
    unserved = {"x": (name,), "00000000-0000-4000-8000-000000000000": (name,), str(world.replica_id): ("acme", name)}
    Watch().look(Reports(engines={}, unserved=unserved), timezone.now())
    assert world.replica().dedicated_namespace is None


def test_free_replicas_are_given_to_different_namespaces() -> None:
    """As far as there are different ones; a name that is no id and an empty list are passed over."""
    from uuid import UUID

    from routing.services.audits.watch import spread

    first, second, third = (UUID(int=number) for number in (1, 2, 3))
    waiting = ["ns-a", "ns-b"]
    assert spread({str(first): waiting, str(second): waiting, "x": waiting}) == {first: "ns-a", second: "ns-b"}
    assert spread({str(first): waiting, str(second): [], str(third): ["ns-a"]}) == {first: "ns-a", third: "ns-a"}
