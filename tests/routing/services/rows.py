"""Short ways to the rows that tests of services stand on."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings

from namespaces import roots
from routing import queries
from routing.models import Endpoint, ModelSpec, Pool, Replica
from routing.services import catalogue, endpoints, pools, replicas
from tenants.actor import system
from tenants.models import AuditEntry, Tenant

ACTOR = system("test")


def secret(name: str) -> bytes:
    """A key of the settings, or ROOT_KEY, the current root key; the tests' environment has them all."""
    value = roots.load(settings.ROOT).current if name == "ROOT_KEY" else getattr(settings, name)
    assert isinstance(value, bytes)
    return value


def version(tenant_id: UUID) -> int:
    return Tenant.objects.values_list("config_version", flat=True).get(id=tenant_id)


def actions(tenant_id: UUID) -> list[str]:
    """The audit log's actions, oldest first."""
    return list(AuditEntry.objects.filter(tenant_id=tenant_id).order_by("created_at").values_list("action", flat=True))


def a_model(tenant_id: UUID, name: str = "m-7b", **fields: Any) -> ModelSpec:
    return catalogue.create_model(tenant_id=tenant_id, actor=ACTOR, name=name, revision="r1", **fields)


def a_pool(tenant_id: UUID, name: str = "gpu") -> Pool:
    return pools.create(tenant_id=tenant_id, actor=ACTOR, name=name)


def a_replica(pool: Pool, name: str = "a", url: str = "http://127.0.0.1:9001", **fields: Any) -> Replica:
    return replicas.create(tenant_id=pool.tenant_id, actor=ACTOR, pool_id=pool.id, name=name, url=url, **fields)


def an_endpoint(tenant_id: UUID, name: str = "chat", *, pool: Pool | None = None, model: ModelSpec | None = None, **fields: Any) -> Endpoint:
    model = model or a_model(tenant_id)
    pool = pool or a_pool(tenant_id)
    grant = queries.grant_of(tenant_id, pool.id)
    assert grant is not None
    return endpoints.create(tenant_id=tenant_id, actor=ACTOR, name=name, grant_id=grant.id, model_id=model.id, **fields)
