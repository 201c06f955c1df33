"""Rows for console tests: a tenant with people, a pool, an endpoint and decisions, made straight on the models inside the tenant scope."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from django.test import Client
from django.utils import timezone

from namespaces.audit import evidence
from routing.core.record import AttemptRecord, CandidateRecord, DecisionRecord
from routing.models import AuditRun, Endpoint, ModelSpec, Policy, PolicyVersion, Pool, PoolGrant, Quota, Replica
from routing.services import records as ingest
from tenants.core.api_key import Kind
from tenants.models import ApiKey, Invitation, Membership, Scope, Tenant, User
from tenants.scoping import tenant_scope

PASSWORD = "quite a long pass phrase"


class AsOwner(Protocol):
    """The fixture of the same name."""

    def __call__(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Made:
    """One tenant and the ids that tests open."""

    tenant_id: uuid.UUID
    slug: str
    root_scope_id: uuid.UUID
    pool_id: uuid.UUID
    replica_ids: tuple[uuid.UUID, ...]
    endpoint_id: uuid.UUID
    key_id: uuid.UUID
    policy_id: uuid.UUID  # the endpoint's routing policy
    member_id: uuid.UUID  # somebody who never signs in
    invitation_id: uuid.UUID
    quota_id: uuid.UUID  # the tenant's, far from its limit


@dataclass(frozen=True)
class Town:
    """Two tenants; ``acorn`` has an owner and a viewer, ``birch`` an owner who is a stranger to acorn, and there is a platform operator."""

    acorn: Made
    birch: Made
    owner: Client
    viewer: Client
    stranger: Client
    operator: Client


def town() -> Town:
    """Make the town. Nobody goes through the sign-in page."""
    acorn, birch = tenant("acorn"), tenant("birch")
    clients = {}
    for name in ("owner", "viewer", "stranger", "operator"):
        user = person(f"{name}@example.com", operator=name == "operator")
        clients[name] = Client()
        clients[name].force_login(user)
        if name != "operator":
            member((birch if name == "stranger" else acorn).tenant_id, user, "viewer" if name == "viewer" else "owner")
    return Town(acorn=acorn, birch=birch, **clients)


def person(email: str, *, operator: bool = False) -> User:
    """A person who signs in with :data:`PASSWORD`."""
    user = User(email=email, is_platform_operator=operator)
    user.set_password(PASSWORD)
    user.save()
    return user


def member(tenant_id: uuid.UUID, user: User, role: str) -> None:
    """Give a person a role."""
    with tenant_scope(tenant_id):
        Membership.objects.create(tenant_id=tenant_id, user=user, role=role)


def tenant(slug: str, *, endpoint: str = "llama-chat", model: str = "m-7b", replicas: tuple[str, ...] = ("a", "b"), key: str = "app") -> Made:
    """A tenant with a scope tree, a pool of its own, an endpoint on it and one key."""
    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        Tenant.objects.create(id=tenant_id, slug=slug, name=slug.title())
        root = Scope.objects.create(tenant_id=tenant_id, path="")
        Scope.objects.create(tenant_id=tenant_id, path="support")
        pool = Pool.objects.create(tenant_id=tenant_id, name=f"{slug}-pool", isolation="declared")
        grant = PoolGrant.objects.create(tenant_id=tenant_id, pool=pool)
        rows = [
            Replica.objects.create(tenant_id=tenant_id, pool=pool, name=name, url=f"http://127.0.0.1:{9001 + number}/{slug}")
            for number, name in enumerate(replicas)
        ]
        spec = ModelSpec.objects.create(tenant_id=tenant_id, name=model, revision="r1", tokenizer_revision="t1", tokenizer_digest=b"\1" * 32)
        policy = Policy.objects.create(tenant_id=tenant_id, kind="routing", name="default")
        version = PolicyVersion.objects.create(tenant_id=tenant_id, policy=policy, version=1, spec={"policy": "ettft"})
        slo = Policy.objects.create(tenant_id=tenant_id, kind="slo", name="chat")
        target = PolicyVersion.objects.create(tenant_id=tenant_id, policy=slo, version=1, spec={"ttft_p95_ms": 2000})
        made = Endpoint.objects.create(
            tenant_id=tenant_id,
            name=endpoint,
            grant=grant,
            model=spec,
            served_model=model,
            routing_policy=version,
            slo_policy=target,
            context={"org_policy": "v7"},
        )
        secret = f"sk-sr-{slug}-{key}"
        stored = ApiKey.objects.create(
            tenant_id=tenant_id,
            kind=Kind.INFERENCE.value,
            name=key,
            shown="sk-sr-abcdef",
            digest=hashlib.sha256(secret.encode()).digest(),
            scope=root,
            created_by="owner@example.com",
        )
        quiet = Membership.objects.create(tenant_id=tenant_id, user=person(f"quiet@{slug}.example"), role="viewer")
        invited = Invitation.objects.create(
            tenant_id=tenant_id,
            email=f"invited@{slug}.example",
            role="viewer",
            nonce=b"n" * 32,
            digest=hashlib.sha256(slug.encode()).digest(),
            invited_by="owner@example.com",
            expires_at=timezone.now() + timedelta(days=7),
        )
        quota = Quota.objects.create(tenant_id=tenant_id, of="tenant", tokens_per_month=1_000_000)
    replica_ids = tuple(row.id for row in rows)
    return Made(tenant_id, slug, root.id, pool.id, replica_ids, made.id, stored.id, policy.id, quiet.id, invited.id, quota.id)


def candidate(replica_id: uuid.UUID, name: str, **fields: Any) -> CandidateRecord:
    """A candidate with sensible figures; ``terms`` and the rest can be set."""
    terms = fields.pop("terms", {"wait": 0.02, "prefill": 0.09, "external_price": 0.05})
    score_s = sum(terms.values())
    usual = {"expected_ttft_s": score_s, "score_s": score_s, "uncached_tokens": 200.0, "evidence": "inferred", "evidence_age_s": 2.5, "in_flight": 1}
    return CandidateRecord(replica_id=str(replica_id), replica_name=name, terms=terms, **{**usual, **fields})


def record(made: Made, **fields: Any) -> DecisionRecord:
    """A decision that went well: the chosen replica held most of the prompt."""
    first, second = made.replica_ids[0], made.replica_ids[-1]
    usual: dict[str, Any] = {
        "id": uuid.uuid4(),
        "tenant_id": made.tenant_id,
        "started_at": timezone.now().timestamp(),
        "route": "/v1/chat/completions",
        "outcome": "ok",
        "status": 200,
        "router_id": "router-1",
        "config_version": 3,
        "endpoint_id": made.endpoint_id,
        "endpoint": "llama-chat",
        "key_id": made.key_id,
        "scope_id": made.root_scope_id,
        "namespace": "ns-1f2e3d",
        "model": "llama-chat",
        "policy": "ettft",
        "policy_version": 1,
        "stream": True,
        "replica_id": str(first),
        "replica_name": "a",
        "matched_tokens": 1024,
        "expected_cached_tokens": 980.0,
        "estimated_prompt_tokens": 1180,
        "prompt_tokens": 1200,
        "completion_tokens": 64,
        "cached_tokens": 1008,
        "expected_ttft_s": 0.11,
        "ttft_s": 0.12,
        "e2e_s": 1.9,
        "decide_s": 0.0004,
        "slo_ttft_s": 2.0,
        "attempts": (AttemptRecord(replica_id=str(first), status=200, duration_s=1.9),),
        "candidates": (
            candidate(first, "a", matched_tokens=1024, expected_cached_tokens=980.0),
            candidate(
                second, "b", terms={"wait": 0.4, "prefill": 0.3, "external_price": 0.31, "pressure": 0.1}, uncached_tokens=1180.0, evidence="none"
            ),
        ),
    }
    return DecisionRecord(**{**usual, **fields})


CASES = [
    {
        "name": "two_salts",
        "title": "same tokens under two identities, in both directions",
        "rows": [1, 2],
        "outcome": "pass",
        "reason": "",
        "rounds": 30,
        "negative_probes": 60,
        "controls_seen": 58,
    },
    {
        "name": "images",
        "title": "images and prompt embeddings",
        "rows": [14, 15],
        "outcome": "not expressible",
        "reason": "no image model here",
        "rounds": 0,
        "negative_probes": 0,
        "controls_seen": 0,
    },
]


def audit_run(made: Made, **fields: Any) -> AuditRun:
    """An audit that passed, with its signed report."""
    document = {"format": "saltroute-audit/1", "outcome": "pass"}
    signature, key = evidence.sign(document, bytes(32))
    now = timezone.now()
    usual: dict[str, Any] = {
        "state": "finished",
        "trigger": "demand",
        "requested_by": "owner@example.com",
        "endpoint_id": made.endpoint_id,
        "endpoint_name": "llama-chat",
        "pool_id": made.pool_id,
        "pool_name": f"{made.slug}-pool",
        "pool_owner_id": made.tenant_id,
        "replica_id": made.replica_ids[0],
        "replica_name": "a",
        "epochs": "1.1",
        "build": "b1946ac92492d234",
        "started_at": now - timedelta(seconds=40),
        "finished_at": now,
        "outcome": "pass",
        "probes": 124,
        "negative_probes": 60,
        "failure_bound_ppm": 50_000,
        "tokens_spent": 41_337,
        "cases": CASES,
        "evidence": document,
        "signature": signature,
        "evidence_key": key,
    }
    with tenant_scope(made.tenant_id):
        return AuditRun.objects.create(tenant_id=made.tenant_id, **{**usual, **fields})


def store(as_owner: AsOwner, made: Made, *records: DecisionRecord) -> None:
    """Store records as ingest does, with what they add up to. The console's own role may only read them, so this acts as the schema's owner."""
    with tenant_scope(made.tenant_id), as_owner():
        assert ingest.store(records).stored == len(records)


def ago(**span: float) -> float:
    """Unix seconds of a moment before now."""
    return (timezone.now() - timedelta(**span)).timestamp()
