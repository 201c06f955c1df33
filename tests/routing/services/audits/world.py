"""The tenant of the audit tests, and short ways to audit its replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from namespaces import roots
from namespaces.services import keys
from routing import queries
from routing.models import AuditRun, Replica
from routing.services import catalogue, publishing
from routing.services.audits import orders, running, targets
from tenants.models import Tenant
from tenants.scoping import tenant_scope
from tenants.services import api_keys, scopes
from tests.routing.services.audits.rig import Rig
from tests.routing.services.made import Made, make
from tests.routing.services.rows import ACTOR, a_model, a_pool, a_replica, an_endpoint

MOST_REPEATS = 5

SMALL = {"rounds": 1, "timed_negatives": 16, "timed_rounds": 5}


@dataclass
class World:
    """``key`` and ``other_key`` act in two scopes, so in two namespaces."""

    rig: Rig
    tenant: Made
    endpoint_id: UUID
    replica_id: UUID

    def publish(self) -> None:
        """Publish the tenant and wait until the router has it: in a test's transaction no hook of a commit runs."""
        publishing.publish(self.tenant.id)
        with tenant_scope(self.tenant.id):
            version = Tenant.objects.values_list("config_version", flat=True).get(id=self.tenant.id)
        self.rig.in_force(self.tenant.id, version)

    def replica(self) -> Replica:
        with tenant_scope(self.tenant.id):
            return Replica.objects.select_related("pool").get(id=self.replica_id)

    def order(self, sizes: dict[str, int] | None = None, trigger: str = "demand") -> AuditRun:
        with tenant_scope(self.tenant.id):
            endpoint = queries.endpoint(self.tenant.id, str(self.endpoint_id))
            (target,) = targets.chosen(self.tenant.id, endpoint, str(self.replica_id))
            return orders.order(target=target, actor=ACTOR, trigger=trigger, now=timezone.now(), sizes=SMALL if sizes is None else sizes)[0]

    def audit(self, sizes: dict[str, int] | None = None) -> AuditRun:
        """Order an audit and carry it out; publishes what it changed."""
        ended = running.run(self.tenant.id, self.order(sizes).id)
        assert ended is not None
        self.publish()
        return ended.run

    def audit_until_sure(self) -> AuditRun:
        """Audit again while the outcome is inconclusive: where other work shares the machine, times may not tell, and the verdict says so."""
        run = self.audit()
        for _ in range(MOST_REPEATS):
            if run.outcome != "inconclusive":
                break
            with tenant_scope(self.tenant.id):
                Replica.objects.filter(tenant_id=self.tenant.id).update(audit_tokens=0)  # each repeat may spend a day's budget
            run = self.audit()
        return run

    def key(self, name: str, scope: str = "") -> str:
        """An inference key, published."""
        with tenant_scope(self.tenant.id):
            issued = api_keys.issue_inference(tenant_id=self.tenant.id, actor=ACTOR, name=name, now=timezone.now(), scope_path=scope)
        self.publish()
        assert issued.secret is not None
        return issued.secret


def build(rig: Rig) -> tuple[Made, UUID, UUID]:
    """The rows."""
    tenant = make("acorn")
    from django.conf import settings

    with tenant_scope(tenant.id):
        keys.provision(tenant_id=tenant.id, actor=ACTOR, root=roots.load(settings.ROOT).current)
        model = a_model(tenant.id, "sim-8b")
        for name in ("ada", "bob"):
            catalogue.create_adapter(tenant_id=tenant.id, actor=ACTOR, model_id=model.id, name=name, revision="r1")
        pool = a_pool(tenant.id)
        replica = a_replica(pool, url=rig.engine())
        endpoint = an_endpoint(tenant.id, pool=pool, model=model, served_model="sim-8b")
        scopes.create(tenant_id=tenant.id, actor=ACTOR, path="support")
    return tenant, endpoint.id, replica.id


def failed(run: AuditRun) -> set[str]:
    """Names of the cases that failed."""
    return {case["name"] for case in run.cases if case["outcome"] == "fail"}


def verdicts(run: AuditRun) -> dict[str, Any]:
    return {case["name"]: case["outcome"] for case in run.cases}
