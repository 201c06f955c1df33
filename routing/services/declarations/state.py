"""What is there: a tenant's resources in the terms of a declaration, for the plan to compare with and the export to write down."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from routing import queries
from routing.models import Pool, Quota, Replica
from routing.services import pools, quotas
from routing.services.policies import inline_name
from tenants.core.api_key import Kind
from tenants.core.scopes import ROOT
from tenants.queries import KeyStatus, all_tenants, key_status, keys, members, passes, scopes


@dataclass
class PolicyState:
    """A policy's newest document."""

    version: int
    spec: dict[str, Any]


@dataclass
class KeyState:
    """An inference key that is not revoked."""

    scope: str
    endpoints: list[str] | None
    expires_at: datetime | None
    digest: bytes = field(repr=False)
    expired: bool = False
    passing: bool = False  # issued for an hour at most: no export holds it


@dataclass
class State:
    """One tenant. Dictionaries are keyed by name; replicas and adapters by (pool or model, name), policies by (kind, name)."""

    tenant_id: UUID
    slug: str
    name: str
    suspended: bool
    scopes: set[str] = field(default_factory=set)
    members: dict[str, str] = field(default_factory=dict)
    artifacts: set[tuple[str, str]] = field(default_factory=set)  # (kind, sha256)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    adapters: dict[tuple[str, str], str] = field(default_factory=dict)
    pools: dict[str, str] = field(default_factory=dict)  # name -> isolation
    usable_pools: set[str] = field(default_factory=set)  # names, of granted pools too
    replicas: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    grants: dict[str, dict[str, float]] = field(default_factory=dict)  # pool -> slug -> weight; the platform alone
    policies: dict[tuple[str, str], PolicyState] = field(default_factory=dict)
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, KeyState] = field(default_factory=dict)
    quotas: dict[tuple[str, str], dict[str, int | None]] = field(default_factory=dict)  # (of, name) -> limit by measure


def read(tenant_id: UUID) -> State:
    """Read the scoped tenant."""
    from tenants.queries import tenant

    row = tenant(tenant_id)
    state = State(tenant_id=tenant_id, slug=row.slug, name=row.name, suspended=row.suspended)
    state.scopes = {scope.path for scope in scopes(tenant_id)}
    state.members = {membership.user.email: membership.role for membership in members(tenant_id)}
    state.artifacts = {(artifact.kind, bytes(artifact.digest).hex()) for artifact in queries.artifacts(tenant_id)}
    for model in queries.models(tenant_id):
        state.models[model.name] = {
            "revision": model.revision,
            "quantisation": model.quantisation,
            "kv_dtype": model.kv_dtype,
            "multimodal_processor": model.multimodal_processor,
            "context_window_tokens": model.context_window_tokens,
            "tokenizer_sha256": _hex(model.tokenizer_digest),
            "tokenizer_revision": model.tokenizer_revision,
            "chat_template_sha256": _hex(model.chat_template_digest),
            "chat_template_revision": model.chat_template_revision,
        }
    state.adapters = {(adapter.model.name, adapter.name): adapter.revision for adapter in queries.adapters(tenant_id)}
    _read_pools(state)
    _read_policies(state)
    _read_endpoints(state)
    now = timezone.now()
    for key in keys(tenant_id, Kind.INFERENCE).filter(revoked_at=None):
        state.keys[key.name] = KeyState(
            scope=key.scope.path if key.scope else ROOT,
            endpoints=key.endpoints,
            expires_at=key.expires_at,
            digest=bytes(key.digest),
            expired=key_status(key, now) is KeyStatus.EXPIRED,
            passing=passes(key),
        )
    state.quotas = {(row.of, row.name): quotas.limits_of(row) for row in Quota.objects.filter(tenant_id=tenant_id)}
    return state


def _hex(digest: bytes | memoryview | None) -> str | None:
    return None if digest is None else bytes(digest).hex()


def _read_pools(state: State) -> None:
    slugs = {ref.tenant_id: ref.slug for ref in all_tenants()}
    for pool in Pool.objects.filter(tenant_id=state.tenant_id).order_by("name"):
        state.pools[pool.name] = pool.isolation
        weights = pools.weights(pool)
        state.grants[pool.name] = {slugs[other]: weight for other, weight in weights.items() if other in slugs and other != state.tenant_id}
    for replica in Replica.objects.filter(tenant_id=state.tenant_id).select_related("pool").order_by("pool__name", "name"):
        state.replicas[(replica.pool.name, replica.name)] = {
            "id": replica.id,
            "url": replica.url,
            "engine": replica.engine,
            "role": replica.role,
            "max_concurrency": replica.max_concurrency,
            "kv_events": replica.kv_events,
            "credential_tag": None if replica.credential_tag is None else bytes(replica.credential_tag),
            "has_credential": replica.credential is not None,
        }


def _read_policies(state: State) -> None:
    for kind in ("routing", "slo"):
        rows = {policy.id: policy.name for policy in queries.policies(state.tenant_id, kind)}
        for policy_id, version in queries.latest_versions(state.tenant_id, list(rows)).items():
            state.policies[(kind, rows[policy_id])] = PolicyState(version=version.version, spec=version.spec)


def _read_endpoints(state: State) -> None:
    pools = {pool.id: pool.name for pool in queries.usable_pools(state.tenant_id)}
    state.usable_pools = set(pools.values())
    for row in queries.endpoints(state.tenant_id).order_by("name"):
        default_served = row.adapter.name if row.adapter else row.model.name
        state.endpoints[row.name] = {
            "pool": pools[row.grant.pool_id],
            "model": row.model.name,
            "adapter": row.adapter.name if row.adapter else None,
            "engine": row.engine,
            "served_model": None if row.served_model == default_served else row.served_model,
            "context": row.context,
            "request_context": row.request_context,
            "sharing": row.sharing,
            "routing_policy": (row.routing_policy.policy.name, row.routing_policy.version),
            "slo": (row.slo_policy.policy.name, row.slo_policy.version) if row.slo_policy else None,
            "candidate": (row.candidate_policy.policy.name, row.candidate_policy.version) if row.candidate_policy else None,
            "canary_share": row.canary_share,
            "data_class": row.data_class,
            "own_cache": row.own_cache,
            "client_subdivision": row.client_subdivision,
            "enabled": row.enabled,
        }


def inline_policies(state: State) -> set[tuple[str, str]]:
    """The policies that an export writes into their endpoint: named after it, in use there at their newest version, and nowhere else."""
    users: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, endpoint in state.endpoints.items():
        for kind, column in (("routing", "routing_policy"), ("slo", "slo"), ("routing", "candidate")):
            if endpoint[column] is not None:
                users.setdefault((kind, endpoint[column][0]), []).append((name, column))
    found = set()
    for key, uses in users.items():
        name, column = uses[0]
        named_after = inline_name(name, trial=column == "candidate") == key[1]
        if len(uses) == 1 and named_after and state.endpoints[name][column][1] == state.policies[key].version:
            found.add(key)
    return found
