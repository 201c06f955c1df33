"""A policy's way through a real router in front of simulated engines, as its records tell it: shadow, canary, promoted, rolled back. And a version
that no router can run: the last good configuration stays in force."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone

from routing import queries
from routing.models import DecisionRow, Endpoint, PolicyVersion, Pool
from routing.services import publishing, trials
from routing.services.records import STREAM, Ingest
from tenants import changes
from tenants.scoping import tenant_scope
from tests.routing.services.audits.conftest import world
from tests.routing.services.audits.rig import until
from tests.routing.services.rows import ACTOR, a_replica, secret

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
__all__ = ["world"]  # the fixture
TURNS = {"policy": "round_robin"}


class Traffic:
    """Conversations of one key, and what the routers recorded of them, taken in by the real ingest."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.key = world.key("app")
        self.client = redis.Redis.from_url(settings.VALKEY_URL)
        self.ingest = Ingest(self.client, records_key=secret("RECORDS_KEY"), consumer="c1", block_s=0.01)
        self.ingest.ensure_group()
        self.count = 0

    def _chat(self, text: str) -> None:
        """A streamed request: only those have a time to first token."""
        body = {"model": "chat", "max_tokens": 1, "stream": True, "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.world.rig.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")

    def talk(self, conversations: int = 12) -> list[Any]:
        """New conversations of one turn each; their records, oldest first."""
        before = self.count
        for _ in range(conversations):
            self.count += 1
            self._chat(f"conversation {self.count} " * 40)
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_ingest")

        def arrived() -> bool:
            self.ingest.turn()
            return self.ingest.counts["stored"] >= self.count

        until(arrived)
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE saltroute_app")
        assert self.client.xlen(STREAM) == 0
        with tenant_scope(self.world.tenant.id):
            rows = list(DecisionRow.objects.filter(tenant_id=self.world.tenant.id).order_by("started_at"))
            return [queries.record_of(row) for row in rows][before:]


@pytest.fixture
def traffic(world: World) -> Traffic:
    """Two replicas that an operator vouches for, so that any request may go to either."""
    with tenant_scope(world.tenant.id):
        pool = Pool.objects.get(tenant_id=world.tenant.id)
        a_replica(pool, name="b", url=world.rig.engine(1))
        Pool.objects.filter(id=pool.id).update(isolation="declared")
        changes.record(tenant_id=world.tenant.id, actor=ACTOR, action="test.change")
    world.publish()
    return Traffic(world)


def endpoint(world: World) -> Endpoint:
    with tenant_scope(world.tenant.id):
        return queries.endpoint(world.tenant.id, "chat")


def test_from_the_shadow_over_a_canary_to_all_and_back(world: World, traffic: Traffic) -> None:
    """Each step is one call and one version; what the report says is what the records hold."""
    arguments: dict[str, Any] = {"tenant_id": world.tenant.id, "actor": ACTOR, "endpoint_id": world.endpoint_id}

    with tenant_scope(world.tenant.id):
        trials.start(**arguments, policy=TURNS, share=0.0)
    world.publish()
    shadow = traffic.talk()
    assert {(one.policy, one.trial.policy, one.trial.placed) for one in shadow} == {("ettft", "round_robin", False)}

    with tenant_scope(world.tenant.id):
        trials.start(**arguments, policy=TURNS, share=0.5)
    world.publish()
    canary = traffic.talk(24)
    placed = [one for one in canary if one.trial.placed]
    assert 0 < len(placed) < len(canary)
    assert {(one.policy, one.trial.policy) for one in placed} == {("round_robin", "ettft")}
    assert {one.policy for one in canary if not one.trial.placed} == {"ettft"}

    with tenant_scope(world.tenant.id):
        report = trials.report(tenant_id=world.tenant.id, endpoint=endpoint(world), whole=True, now=timezone.now())
    assert report is not None
    assert (report.figures.decisions, report.figures.candidate.requests) == (len(shadow) + len(canary), len(placed))
    agreed = sum(one.trial.replica_id == one.replica_id for one in [*shadow, *canary])
    assert report.figures.agreement is not None
    assert report.figures.agreement.value == pytest.approx(agreed / (len(shadow) + len(canary)))
    assert report.figures.candidate.ttft_s.mean is not None
    assert report.figures.candidate.ttft_s.mean.value == pytest.approx(sum(one.ttft_s for one in placed) / len(placed))

    with tenant_scope(world.tenant.id):
        trials.promote(**arguments, version=1)
    world.publish()
    promoted = traffic.talk()
    assert {(one.policy, one.trial) for one in promoted} == {("round_robin", None)}
    assert len({one.replica_id for one in promoted}) == 2

    for _ in range(2):  # the second changes nothing
        with tenant_scope(world.tenant.id):
            trials.roll_back(**arguments)
        world.publish()
    assert {(one.policy, one.trial) for one in traffic.talk(6)} == {("ettft", None)}


def test_a_version_that_no_router_can_run_leaves_the_last_good_one_in_force(world: World, traffic: Traffic, as_owner: Any) -> None:
    """Stored documents are compiled first, so it takes a damaged row. Requests go on, the router says what it refused,
    and the next good version is taken."""
    with tenant_scope(world.tenant.id):
        trials.start(tenant_id=world.tenant.id, actor=ACTOR, endpoint_id=world.endpoint_id, policy=TURNS, share=1.0)
    world.publish()
    good = world.rig.report()["versions"][str(world.tenant.id)]
    with tenant_scope(world.tenant.id):
        candidate = endpoint(world).candidate_policy_id
        assert candidate is not None
        with as_owner():
            assert PolicyVersion.objects.filter(id=candidate).update(spec={"policy": "weighted", "weights": {"luck": -1}}) == 1
        changes.record(tenant_id=world.tenant.id, actor=ACTOR, action="test.change")
    bad = publishing.publish(world.tenant.id)
    until(lambda: str(world.tenant.id) in world.rig.report()["refused"])
    assert world.rig.report()["versions"][str(world.tenant.id)] == good < bad
    assert {one.policy for one in traffic.talk(4)} == {"round_robin"}
    with tenant_scope(world.tenant.id):
        assert trials.report(tenant_id=world.tenant.id, endpoint=endpoint(world), whole=True, now=timezone.now()) is not None  # the page still opens
        trials.roll_back(tenant_id=world.tenant.id, actor=ACTOR, endpoint_id=world.endpoint_id)
    world.publish()
    assert {one.policy for one in traffic.talk(4)} == {"ettft"}
    with tenant_scope(world.tenant.id):
        versions = PolicyVersion.objects.filter(tenant_id=world.tenant.id, id=candidate)
        assert versions.count() == 1  # history stays, damaged as it is
