"""Rows as answered."""

from __future__ import annotations

from typing import Any, cast

from django.utils import timezone

from routing import queries
from routing.api import pool_shapes, shapes
from routing.core import glossary
from routing.core.reach import Reach
from routing.core.residency_said import Said
from routing.core.snapshot import EngineFamily, IsolationMode, IsolationState, ReplicaRole, ReplicaState, SharingLevel
from routing.models import Adapter, Artifact, DecisionRow, Endpoint, ModelSpec, Policy, PolicyVersion, Replica
from routing.queries import Routers, UsablePool


def _hex(digest: Any) -> str | None:
    return None if digest is None else bytes(digest).hex()


def artifact(row: Artifact) -> shapes.ArtifactOut:
    return shapes.ArtifactOut(
        id=row.id, kind=row.kind, name=row.name, sha256=bytes(row.digest).hex(), size_bytes=row.size_bytes, created_at=row.created_at
    )


def model(row: ModelSpec) -> shapes.ModelOut:
    return shapes.ModelOut(
        id=row.id,
        name=row.name,
        revision=row.revision,
        quantisation=row.quantisation,
        kv_dtype=row.kv_dtype,
        tokenizer_sha256=_hex(row.tokenizer_digest),
        tokenizer_revision=row.tokenizer_revision,
        chat_template_sha256=_hex(row.chat_template_digest),
        chat_template_revision=row.chat_template_revision,
        multimodal_processor=row.multimodal_processor,
        context_window_tokens=row.context_window_tokens,
        created_at=row.created_at,
    )


def adapter(row: Adapter) -> shapes.AdapterOut:
    return shapes.AdapterOut(
        id=row.id,
        model=row.model.name,
        model_id=row.model_id,
        name=row.name,
        revision=row.revision,
        generation=row.generation,
        created_at=row.created_at,
    )


def pool(row: UsablePool) -> pool_shapes.PoolOut:
    return pool_shapes.PoolOut(
        id=row.id,
        name=row.name,
        owner="tenant" if row.own else "platform",
        isolation=cast(IsolationMode, row.isolation),
        replicas=row.replicas,
        grants=row.grants if row.own else None,
    )


def reach(heard: Reach) -> pool_shapes.ReachOut | None:
    """None where no router has asked the engine."""
    if not heard.asked:
        return None
    return pool_shapes.ReachOut(
        unreachable=heard.unreachable,
        away_since=queries.moment(heard.since_s),
        why="; ".join(sorted({glossary.label("health", one) for one in heard.conditions})),
        routers_away=heard.away,
        routers_asked=heard.asked,
    )


def residency(heard: Said) -> pool_shapes.ResidencyOut | None:
    """None where no router says."""
    if not heard.state:
        return None
    reasons = sorted(heard.reasons)
    return pool_shapes.ResidencyOut(
        state=heard.state,
        reasons=reasons,
        why="; ".join(glossary.label("residency_reason", one) for one in reasons),
        since=queries.moment(heard.since_s),
        event_blocks=heard.event_blocks,
        routers=heard.routers,
    )


def replica(row: Replica, found: Routers) -> pool_shapes.ReplicaOut:
    """``found``: the routers' reports, read once for a whole list."""
    reached = queries.reach(found, row.url)
    return pool_shapes.ReplicaOut(
        id=row.id,
        pool=row.pool.name,
        pool_id=row.pool_id,
        name=row.name,
        url=row.url,
        engine=cast(EngineFamily, row.engine),
        role=cast(ReplicaRole, row.role),
        max_concurrency=row.max_concurrency,
        state=cast(ReplicaState, row.state),
        reach=reach(reached),
        residency=None if reached.unreachable else residency(queries.residency(found, row.url)),
        has_credential=row.credential is not None,
        kv_events=row.kv_events,
        isolation=cast(IsolationState, row.isolation_state),
        isolation_since=row.isolation_since,
        isolation_reason=row.isolation_reason,
        verified_at=row.isolation_verified_at,
        build=row.build or None,
        dedicated_namespace=row.dedicated_namespace,
        audit_tokens_today=row.audit_tokens if row.audit_day == timezone.now().date() else 0,
        created_at=row.created_at,
    )


def policy(row: Policy, newest: PolicyVersion) -> shapes.PolicyOut:
    return shapes.PolicyOut(id=row.id, name=row.name, version=newest.version, spec=newest.spec, created_at=row.created_at)


def version(row: PolicyVersion) -> shapes.VersionOut:
    return shapes.VersionOut(id=row.id, version=row.version, spec=row.spec, created_at=row.created_at, created_by=row.created_by)


def use(row: PolicyVersion) -> shapes.PolicyUse:
    return shapes.PolicyUse(name=row.policy.name, version=row.version, spec=row.spec)


def endpoint(row: Endpoint, pool_name: str) -> shapes.EndpointOut:
    return shapes.EndpointOut(
        id=row.id,
        name=row.name,
        pool=pool_name,
        pool_id=row.grant.pool_id,
        model=row.model.name,
        model_id=row.model_id,
        model_revision=row.model.revision,
        adapter=row.adapter.name if row.adapter else None,
        adapter_id=row.adapter_id,
        engine=cast(EngineFamily, row.engine),
        served_model=row.served_model,
        context=row.context,
        request_context=row.request_context,
        sharing=cast(SharingLevel, row.sharing),
        routing_policy=use(row.routing_policy),
        slo=use(row.slo_policy) if row.slo_policy else None,
        candidate=use(row.candidate_policy) if row.candidate_policy else None,
        canary_share=row.canary_share,
        epoch=row.epoch,
        data_class=row.data_class,
        own_cache=row.own_cache,
        client_subdivision=row.client_subdivision,
        enabled=row.enabled,
        created_at=row.created_at,
    )


def decision(row: DecisionRow, readable: set[str] | None) -> shapes.DecisionOut:
    """``readable``: ids of replicas that may be named; None is all."""
    shown = row.replica_id if row.replica_id and (readable is None or row.replica_id in readable) else None
    return shapes.DecisionOut(
        id=row.id,
        started_at=row.started_at,
        endpoint_id=row.endpoint_id,
        key_id=row.key_id,
        scope_id=row.scope_id,
        replica_id=shown,
        outcome=row.outcome,
        status=row.status,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        matched_tokens=row.matched_tokens,
        expected_ttft_s=row.expected_ttft_s,
        ttft_s=row.ttft_s,
        e2e_s=row.e2e_s,
    )


def routers(found: Routers, *, platform: bool) -> shapes.RoutersOut:
    return shapes.RoutersOut(
        summary=found.summary,
        reachable=found.reachable,
        config_version=found.config_version,
        published_version=found.published_version,
        applied=found.applied,
        total=len(found.routers),
        routers=[
            shapes.RouterOut(router_id=one.router_id, applied_version=one.applied_version, stale=one.stale, report=one.report if platform else None)
            for one in found.routers
        ],
    )
