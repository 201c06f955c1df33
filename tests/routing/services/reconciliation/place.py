"""Where reconciliation is tried: a tenant's rows, and reports as routers write them, in Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import msgspec
import redis
from django.db import connection
from django.utils import timezone

from routing.core.record import DecisionRecord
from routing.models import DecisionRow, Endpoint, ReconciliationFinding, Replica
from routing.services import publishing
from routing.services.reconciliation import running
from routing.services.reconciliation.running import Ended
from tenants.models import Tenant
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made, make
from tests.routing.services.rows import a_model, a_pool, a_replica, an_endpoint

ENGINE: dict[str, Any] = {
    "condition": "ok",
    "build": "b1",
    "models": ["m-7b"],
    "block_size_tokens": 16,
    "capacity_tokens": 100_000,
    "residency": "exact",
}


@dataclass
class Place:
    """``tenant`` has the pool gpu with replicas a and b and the endpoint chat. ``clock`` moves what services take for now."""

    tenant: Made
    valkey: redis.Redis
    pool_id: UUID
    replica_ids: tuple[UUID, ...]
    endpoint_id: UUID
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    ahead: timedelta = timedelta(0)

    @property
    def version(self) -> int:
        with tenant_scope(self.tenant.id):
            return Tenant.objects.values_list("config_version", flat=True).get(id=self.tenant.id)

    def publish(self) -> None:
        """In a test's transaction no hook of a commit runs."""
        publishing.publish(self.tenant.id)

    def report(self, router_id: str = "r1", **changes: Any) -> None:
        """One router's report; without changes, everything is as it should be."""
        report = {"router_id": router_id, "at": self.now().timestamp(), "state": "ready", "refused": {}, "unserved": {}}
        report |= {"versions": {str(self.tenant.id): self.version}, "replicas": self.engines, **changes}
        self.valkey.set(f"saltroute:router:{router_id}", msgspec.json.encode(report))

    def now(self) -> datetime:
        return timezone.now()

    @contextmanager
    def later(self, seconds: float) -> Iterator[None]:
        """Inside, so much time has passed."""
        before, self.ahead = self.ahead, self.ahead + timedelta(seconds=seconds)
        real = timezone.now
        with mock.patch.object(timezone, "now", side_effect=lambda: real() + self.ahead):
            yield
        self.ahead = before

    def run(self, **options: Any) -> Ended:
        """One run of the beat."""
        ended = running.run(self.tenant.id, **{"trigger": "beat", **options})
        assert ended is not None
        return ended

    def found(self, seconds: float = 0.0) -> dict[str, ReconciliationFinding]:
        """What is open after two runs, ``seconds`` apart, by kind."""
        self.run()
        with self.later(seconds):
            return {one.kind: one for one in self.run().findings}

    def replica(self, number: int = 0) -> Replica:
        with tenant_scope(self.tenant.id):
            return Replica.objects.select_related("pool").get(id=self.replica_ids[number])

    def change(self, number: int = 0, **columns: Any) -> None:
        with tenant_scope(self.tenant.id):
            Replica.objects.filter(id=self.replica_ids[number]).update(**columns)

    def endpoint(self) -> Endpoint:
        with tenant_scope(self.tenant.id):
            return Endpoint.objects.get(id=self.endpoint_id)

    def rows(self, **filters: Any) -> list[ReconciliationFinding]:
        with tenant_scope(self.tenant.id):
            return list(ReconciliationFinding.objects.filter(tenant_id=self.tenant.id, **filters).order_by("created_at"))


def build(valkey_url: str, slug: str = "acorn", port: int = 9001) -> Place:
    """Make it; the router of the place reports what is right."""
    publishing._client.cache_clear()
    publishing._bursts.rest_until_s = publishing._bursts.spent_s = 0.0
    tenant = make(slug)
    with tenant_scope(tenant.id):
        model = a_model(tenant.id)
        pool = a_pool(tenant.id)
        rows = [a_replica(pool, name, f"http://127.0.0.1:{port + number}") for number, name in enumerate("ab")]
        endpoint = an_endpoint(tenant.id, pool=pool, model=model, served_model="m-7b")
        Replica.objects.filter(tenant_id=tenant.id).update(build="b1")
    urls = {row.url: dict(ENGINE) for row in rows}
    place = Place(tenant, redis.Redis.from_url(valkey_url), pool.id, tuple(row.id for row in rows), endpoint.id, urls)
    place.publish()
    place.report()
    return place


def decide(tenant_id: UUID, at: datetime, *, endpoint_id: UUID, replica_id: UUID, **fields: Any) -> None:
    """A decision as ingest stores it, by the role that may."""
    record = DecisionRecord(
        id=uuid4(),
        tenant_id=tenant_id,
        started_at=at.timestamp(),
        route="chat",
        outcome="ok",
        status=200,
        router_id="r1",
        config_version=1,
        endpoint_id=endpoint_id,
        replica_id=str(replica_id),
        **fields,
    )
    row = DecisionRow(id=record.id, tenant_id=tenant_id, started_at=at, outcome="ok", status=200, record=msgspec.to_builtins(record))
    row.endpoint_id, row.replica_id = endpoint_id, str(replica_id)
    row.scope_id, row.key_id = record.scope_id, record.key_id
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
    DecisionRow.objects.bulk_create([row], ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_app")
