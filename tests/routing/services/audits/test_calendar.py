"""Which audits are ordered, and when none is. Orders only; nothing is carried out."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.routing.services.made import Made, make

pytestmark = pytest.mark.django_db
NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def acorn(db: None) -> Made:
    return make("acorn")


@pytest.fixture
def platform(db: None) -> Made:
    return make("platform")


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


def planned(now: datetime) -> list[tuple[str, str, str]]:
    """(tenant, endpoint, trigger) of what a plan orders."""
    from routing.models import AuditRun
    from routing.services.audits import calendar
    from tenants.models import Tenant
    from tenants.scoping import tenant_scope

    found = []
    for tenant_id, run_id in calendar.plan(now):
        with tenant_scope(tenant_id):
            run = AuditRun.objects.get(id=run_id)
            found.append((Tenant.objects.get(id=tenant_id).slug, run.endpoint_name, run.trigger))
            run.created_at = now
            run.save(update_fields=["created_at"])
    return found


def ended(now: datetime, **columns: Any) -> None:
    """Everything ordered is over; replicas are as ``columns`` say."""
    from routing.models import AuditRun, Replica
    from tenants.queries import all_tenants
    from tenants.scoping import tenant_scope

    for ref in all_tenants():
        with tenant_scope(ref.tenant_id):
            AuditRun.objects.filter(tenant_id=ref.tenant_id, state="queued").update(state="finished")
            Replica.objects.filter(tenant_id=ref.tenant_id).update(audit_at=now, **columns)


def a_setup(tenant: Made, **fields: Any) -> Any:
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import a_pool, a_replica, an_endpoint

    with tenant_scope(tenant.id):
        pool = a_pool(tenant.id)
        a_replica(pool, **fields)
        return an_endpoint(tenant.id, pool=pool)


def test_a_new_replica_is_tried_once(acorn: Made) -> None:
    """The order stands until it is carried out; then ten minutes rest, then again as long as it is not isolated."""
    a_setup(acorn)
    assert planned(at(0)) == [("acorn", "chat", "first")]
    assert planned(at(1)) == []
    ended(at(2))
    assert planned(at(11)) == []
    assert planned(at(12)) == [("acorn", "chat", "retry")]


def test_an_isolated_one_every_24_hours(acorn: Made) -> None:
    a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0))
    assert planned(at(24 * 60 - 1)) == []
    assert planned(at(24 * 60)) == [("acorn", "chat", "daily")]


def test_after_48_hours_without_a_clean_one_it_is_suspect(acorn: Made) -> None:
    from routing.models import Replica
    from tenants.scoping import tenant_scope

    a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0), isolation_since=at(0))
    planned(at(48 * 60 + 1))
    with tenant_scope(acorn.id):
        assert Replica.objects.get().isolation_state == "suspect"


def test_an_epoch_asks_for_an_audit_and_a_new_endpoint_too(acorn: Made) -> None:
    """Through that endpoint; the other one waits for its turn."""
    from routing import queries
    from routing.services import endpoints
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR, an_endpoint

    endpoint = a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0))
    assert planned(at(20)) == []
    with tenant_scope(acorn.id):
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="an incident")
    assert planned(at(21)) == [("acorn", "chat", "epoch")]
    ended(at(21), isolation_state="isolated", isolation_verified_at=at(21))
    with tenant_scope(acorn.id):
        pool = queries.own_pool(acorn.id, "gpu")
        an_endpoint(acorn.id, "second", pool=pool, model=queries.model(acorn.id, "m-7b"))
    assert planned(at(40)) == [("acorn", "second", "epoch")]


def test_a_platform_pool_is_tried_through_a_grantees_endpoint(acorn: Made, platform: Made) -> None:
    """The platform has none of its own; the run, its cost and its evidence are the tenant's to read."""
    from routing.models import AuditRun
    from routing.services import pools
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR, a_pool, a_replica, an_endpoint

    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        replica = a_replica(shared)
    assert planned(at(0)) == []
    with tenant_scope(platform.id):
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, pool=shared)
    assert planned(at(1)) == [("acorn", "chat", "first")]
    with tenant_scope(acorn.id):
        run = AuditRun.objects.get()
    assert (run.replica_id, run.replica_name, run.pool_owner_id) == (replica.id, "", platform.id)


@pytest.mark.parametrize("isolation", ["declared", "dedicated"])
def test_pools_that_somebody_vouches_for_are_not_tried_unasked(acorn: Made, isolation: str) -> None:
    from routing.models import Pool
    from tenants.scoping import tenant_scope

    a_setup(acorn)
    with tenant_scope(acorn.id):
        Pool.objects.update(isolation=isolation)
    assert planned(at(0)) == []


def test_quarantine_ends_no_audit_before_the_repair_and_two_after(acorn: Made) -> None:
    a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="quarantined", isolation_since=at(0))
    assert planned(at(30)) == []
    ended(at(0), isolation_repaired_at=at(31))
    assert planned(at(32)) == [("acorn", "chat", "retry")]
    ended(at(32), isolation_clean_at=at(33))
    assert planned(at(42.5)) == []
    assert planned(at(43)) == [("acorn", "chat", "retry")]


def refused(now: datetime) -> None:
    """What is ordered finds the day's tokens used up."""
    from routing.models import AuditRun
    from tenants.queries import all_tenants
    from tenants.scoping import tenant_scope

    for ref in all_tenants():
        with tenant_scope(ref.tenant_id):
            AuditRun.objects.filter(tenant_id=ref.tenant_id, state="queued").update(state="refused", finished_at=now)


def test_a_refused_order_is_not_repeated_with_every_plan(acorn: Made) -> None:
    """An hour's rest, or until the day's tokens come back at midnight."""
    a_setup(acorn)
    assert planned(at(0)) == [("acorn", "chat", "first")]
    refused(at(1))
    assert planned(at(60)) == []
    assert planned(at(62)) == [("acorn", "chat", "first")]
    refused(at(11 * 60 + 50))
    assert planned(at(11 * 60 + 59)) == []
    assert planned(at(12 * 60)) == [("acorn", "chat", "first")]


def test_what_was_too_little_for_an_epoch_may_do_for_the_daily_one(acorn: Made) -> None:
    from routing.services import endpoints
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR

    endpoint = a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0))
    with tenant_scope(acorn.id):
        endpoints.rotate_epoch(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, reason="an incident")
    assert planned(at(24 * 60 - 20)) == [("acorn", "chat", "epoch")]
    refused(at(24 * 60 - 20))
    assert planned(at(24 * 60 - 10)) == []
    assert planned(at(24 * 60)) == [("acorn", "chat", "daily")]


def test_an_alarm_does_not_repeat_a_refused_order_either(acorn: Made, as_owner: Callable[[], AbstractContextManager[None]]) -> None:
    from routing.models import Replica
    from tenants.scoping import tenant_scope

    endpoint = a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0))
    with tenant_scope(acorn.id):
        an_alarm(acorn, endpoint, as_owner, str(Replica.objects.get().id), at(20))
    assert planned(at(20.2)) == [("acorn", "chat", "alarm")]
    refused(at(20.3))
    assert planned(at(20.5)) == []


def begun(tenant: Made, run_id: uuid.UUID, now: datetime, **tokens: int) -> Any:
    """Whether an order may begin."""
    from routing.models import AuditRun
    from routing.services.audits import orders, targets
    from tenants.scoping import tenant_scope

    with tenant_scope(tenant.id):
        run = AuditRun.objects.get(id=run_id)
        target = targets.again(tenant.id, run.endpoint_id, run.replica_id)
    return orders.begin(run=run, target=target, now=now, **tokens)


@pytest.mark.parametrize(("trigger", "may"), [("epoch", False), ("daily", True), ("retry", True)])
def test_epochs_of_a_shared_pools_tenants_leave_tokens_for_other_reasons(acorn: Made, platform: Made, settings: Any, trigger: str, may: bool) -> None:
    """Another build, a retry, the daily proof. The same budget does for an epoch where nothing has to be kept."""
    from routing.models import AuditRun
    from routing.services import pools
    from tenants.core.errors import LimitReached
    from tenants.scoping import tenant_scope
    from tests.routing.services.rows import ACTOR, a_pool, a_replica, an_endpoint

    settings.AUDIT_TOKENS_A_DAY = 1000
    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        a_replica(shared)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, pool=shared)
    assert planned(at(0)) == [("acorn", "chat", "first")]
    with tenant_scope(acorn.id):
        AuditRun.objects.update(trigger=trigger)
        run_id = AuditRun.objects.get().id
    if may:
        assert begun(acorn, run_id, at(0), needed_tokens=400).left_tokens == 1000
        return
    with pytest.raises(LimitReached, match="leaves 800"):
        begun(acorn, run_id, at(0), needed_tokens=400)
    settings.AUDIT_TOKENS_A_DAY = 1200
    assert begun(acorn, run_id, at(0), needed_tokens=400).left_tokens == 1200


def test_an_owners_own_epochs_spend_its_own_tokens(acorn: Made, settings: Any) -> None:
    from routing.models import AuditRun
    from tenants.scoping import tenant_scope

    settings.AUDIT_TOKENS_A_DAY = 1000
    a_setup(acorn)
    assert planned(at(0))
    with tenant_scope(acorn.id):
        AuditRun.objects.update(trigger="epoch")
        run_id = AuditRun.objects.get().id
    assert begun(acorn, run_id, at(0), needed_tokens=400).left_tokens == 1000


def test_restarts_of_a_proved_build_leave_tokens_for_the_next_build(acorn: Made, settings: Any) -> None:
    """Such an engine serves everybody on; another build serves one namespace until it is audited. A refused restart keeps no other order back."""
    from routing.models import AuditRun, Replica
    from routing.services.audits import calendar
    from tenants.core.errors import LimitReached
    from tenants.scoping import tenant_scope

    settings.AUDIT_TOKENS_A_DAY = 1000
    a_setup(acorn)
    assert planned(at(0)) == [("acorn", "chat", "first")]
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0), build="b1")
    with tenant_scope(acorn.id):
        replica_id = Replica.objects.get().id
    ((_, run_id),) = calendar.observed(acorn.id, replica_id, at(20), trigger="restart")
    with pytest.raises(LimitReached, match="leaves 501"):
        begun(acorn, run_id, at(20), needed_tokens=501)
    refused(at(20))
    assert calendar.observed(acorn.id, replica_id, at(21), trigger="restart") == []
    ((_, run_id),) = calendar.observed(acorn.id, replica_id, at(21), trigger="build")
    assert not begun(acorn, run_id, at(21), needed_tokens=501).restarted
    ended(at(22), audit_busy_until=None)
    with tenant_scope(acorn.id):
        AuditRun.objects.filter(state="refused").update(trigger="demand")
    ((_, run_id),) = calendar.observed(acorn.id, replica_id, at(40), trigger="restart")
    assert begun(acorn, run_id, at(40), needed_tokens=500).restarted


def test_a_restart_of_what_no_audit_has_proved_is_no_mere_restart(acorn: Made, settings: Any) -> None:
    """Unverified, suspect, or of a build that nobody knows: it gets a whole audit, and all that is left."""
    from routing.models import AuditRun
    from tenants.scoping import tenant_scope

    settings.AUDIT_TOKENS_A_DAY = 1000
    a_setup(acorn)
    for number, (state, build) in enumerate([("unverified", "b1"), ("suspect", "b1"), ("isolated", "")]):
        assert planned(at(30 * number))
        with tenant_scope(acorn.id):
            run = AuditRun.objects.get(state="queued")
            AuditRun.objects.filter(id=run.id).update(trigger="restart")
        ended_but(run, at(30 * number), isolation_state=state, build=build, isolation_verified_at=None)
        assert not begun(acorn, run.id, at(30 * number), needed_tokens=501).restarted
        ended(at(30 * number), audit_busy_until=None)
        with tenant_scope(acorn.id):
            AuditRun.objects.filter(id=run.id).update(state="finished")


def ended_but(run: Any, now: datetime, **columns: Any) -> None:
    """Replicas are as ``columns`` say, and the order still waits."""
    from routing.models import AuditRun, Replica
    from tenants.scoping import tenant_scope

    ended(now, **columns)
    with tenant_scope(run.tenant_id):
        AuditRun.objects.filter(id=run.id).update(state="queued")
        assert Replica.objects.filter(tenant_id=run.tenant_id).exists()


def test_a_paused_replica_and_a_disabled_endpoint_are_left_alone(acorn: Made) -> None:
    from routing.models import Endpoint, Replica
    from tenants.scoping import tenant_scope

    a_setup(acorn)
    with tenant_scope(acorn.id):
        Endpoint.objects.update(enabled=False)
    assert planned(at(0)) == []
    with tenant_scope(acorn.id):
        Endpoint.objects.update(enabled=True)
        Replica.objects.update(state="paused")
    assert planned(at(0)) == []


def an_alarm(acorn: Made, endpoint: Any, as_owner: Callable[[], AbstractContextManager[None]], replica_id: str, now: datetime) -> None:
    """A decision record with an alarm, as ingest stores it."""
    from routing.models import DecisionRow
    from tenants.scoping import tenant_scope

    with as_owner(), tenant_scope(acorn.id):
        DecisionRow.objects.create(
            id=uuid.uuid4(),
            tenant_id=acorn.id,
            started_at=now,
            endpoint_id=endpoint.id,
            replica_id=replica_id,
            outcome="ok",
            status=200,
            record={"alarm": "cached_more_than_owned"},
        )


def test_an_alarm_raises_an_audit_and_judges_nothing(acorn: Made, as_owner: Callable[[], AbstractContextManager[None]]) -> None:
    """Ten alarms, one audit; the state stays; within ten minutes of an audit no further one."""
    from routing.models import Replica
    from tenants.scoping import tenant_scope

    endpoint = a_setup(acorn)
    assert planned(at(0))
    ended(at(0), isolation_state="isolated", isolation_verified_at=at(0))
    with tenant_scope(acorn.id):
        replica_id = str(Replica.objects.get().id)
    for _ in range(10):
        an_alarm(acorn, endpoint, as_owner, replica_id, at(20))
    an_alarm(acorn, endpoint, as_owner, str(uuid.uuid4()), at(20))
    an_alarm(acorn, endpoint, as_owner, "", at(20))
    assert planned(at(20.2)) == [("acorn", "chat", "alarm")]
    assert planned(at(20.4)) == []
    ended(at(20.5))
    an_alarm(acorn, endpoint, as_owner, replica_id, at(21))
    assert planned(at(21.2)) == []
    with tenant_scope(acorn.id):
        assert Replica.objects.get().isolation_state == "isolated"


def test_orders_that_nobody_takes_are_given_up_and_dead_runs_end(acorn: Made) -> None:
    from routing.models import AuditRun
    from routing.services.audits import calendar
    from tenants.scoping import tenant_scope

    a_setup(acorn)
    ((tenant_id, run_id),) = calendar.plan(at(0))
    with tenant_scope(tenant_id):
        AuditRun.objects.filter(id=run_id).update(created_at=at(0))
    calendar.plan(at(61))
    with tenant_scope(tenant_id):
        assert AuditRun.objects.get(id=run_id).state == "refused"
        AuditRun.objects.filter(id=run_id).update(state="running", started_at=at(61))
    calendar.plan(at(90))
    with tenant_scope(tenant_id):
        run = AuditRun.objects.get(id=run_id)
    assert (run.state, run.outcome) == ("finished", "inconclusive")
