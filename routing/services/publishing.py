"""Publishing: a tenant's rows become one sealed, signed snapshot in Valkey, from where routers take it.

Three ways lead here and any of them may be late or repeat: the on-commit hook of the change itself (so that nothing waits for Celery), the task,
and the sweep. Valkey keeps the highest version, whoever comes last.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from functools import cache
from typing import cast
from uuid import UUID

import msgspec
import redis
from django.conf import settings
from django.db import DatabaseError, connection, transaction

from namespaces.core.snapshot import KeyMaterial
from namespaces.models import TenantKeyVersion
from routing import queries
from routing.core import artifact
from routing.core import snapshot as wire
from routing.models import Endpoint, PolicyVersion, Replica, TraceCapture
from routing.services import artifact_delivery, captures, quotas, slo
from tenants import scoping
from tenants.models import Tenant
from tenants.queries import all_tenants, snapshot_keys, snapshot_scopes

SNAPSHOT_PREFIX = "saltroute:snap:"
ANNOUNCE = "saltroute:announce"
BURST_BUDGET_S = 2.0  # direct publishing after one commit; what is beyond is left to the sweep
REST_AFTER_FAILURE_S = 1.0
ARTIFACTS_S = 10.0  # the sweep's patience with Valkey for artifacts
DIRECT_ARTIFACT_BYTES = 4 * 1024 * 1024  # of content, delivered while publishing: 17 MB take half a second
_log = logging.getLogger(__name__)

# Keeps the highest version. The same version again changes nothing unless the document is gone.
_COMPARE_AND_SET = """
local held = redis.call('HGET', KEYS[2], ARGV[1])
local new = tonumber(ARGV[2])
if held then
  if tonumber(held) > new then return 0 end
  if tonumber(held) == new and redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then return 0 end
end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[5])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PUBLISH', ARGV[4], ARGV[1] .. ' ' .. ARGV[2])
return 1
"""


class NotConfigured(Exception):
    """This process holds no publish or seal key, so it cannot publish; another one will."""


# ---- assembly ----------------------------------------------------------------------------------------------------------


def build_snapshot(tenant_id: UUID, *, now_s: float) -> wire.TenantSnapshot:
    """Assemble the snapshot of the scoped tenant, in nine queries however much it has. A deleted tenant gives a tombstone.

    The version is read first: what a concurrent change may add to the later reads comes again, whole, under its own version.
    """
    scoping.require_scope(tenant_id)
    tenant = Tenant.objects.get(id=tenant_id)
    head = wire.TenantSnapshot(
        tenant_id=tenant_id,
        slug=tenant.slug,
        version=tenant.config_version,
        published_at=now_s,
        epoch=tenant.epoch,
        suspended=tenant.suspended,
        deleted=tenant.deleted_at is not None,
    )
    if head.deleted:
        return head
    key = TenantKeyVersion.objects.filter(tenant_id=tenant_id, retired_at=None).order_by("-version").first()
    pools = _pools(tenant_id)
    captured = captures.running(tenant_id, _moment(now_s))
    return msgspec.structs.replace(
        head,
        key_material=KeyMaterial(version=key.version, wrapped=bytes(key.wrapped)) if key else None,
        scopes=snapshot_scopes(tenant_id),
        keys=snapshot_keys(tenant_id, _moment(now_s)),
        pools=pools,
        quotas=quotas.entries(tenant_id),
        endpoints=tuple(_endpoint(row, pools, captured.get(row.id)) for row in queries.endpoints(tenant_id).order_by("name")),
    )


def _moment(now_s: float) -> datetime:
    return datetime.fromtimestamp(now_s, tz=UTC)


def _pools(tenant_id: UUID) -> tuple[wire.PoolEntry, ...]:
    replicas: dict[UUID, list[wire.ReplicaEntry]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pool_id, replica_id, name, url, engine, state, credential, kv_events, dedicated_namespace, isolation, role, max_concurrency"
            " FROM saltroute_granted_replicas(%s)",
            [tenant_id],
        )
        for pool_id, replica_id, name, url, engine, state, credential, kv_events, dedicated, isolation, role, limit in cursor.fetchall():
            entry = wire.ReplicaEntry(
                id=replica_id,
                name=name,
                url=url,
                engine=engine,
                state=state,
                credential=bytes(credential) if credential is not None else None,
                kv_events=_kv_events(kv_events),
                dedicated_namespace=dedicated,
                isolation=isolation,
                role=role,
                max_concurrency=limit,
            )
            replicas.setdefault(pool_id, []).append(entry)
        columns = "pool_id, owner_tenant_id, name, isolation, weight"
        cursor.execute(f"SELECT {columns} FROM saltroute_granted_pools(%s) ORDER BY name, pool_id", [tenant_id])  # noqa: S608 - columns of ours
        rows = cursor.fetchall()
    return tuple(
        wire.PoolEntry(
            id=pool_id,
            name=name,
            owner_tenant_id=owner,
            isolation=isolation,
            replicas=tuple(replicas.get(pool_id, ())),
            shared=owner != tenant_id,
            weight=weight,
        )
        for pool_id, owner, name, isolation, weight in rows
    )


def _kv_events(value: object) -> wire.KvEvents | None:
    # A raw cursor gives jsonb as text: Django decodes it only for its own fields.
    held = msgspec.json.decode(value) if isinstance(value, str | bytes) else value
    return msgspec.convert(held, wire.KvEvents) if held else None


def _spill_pool(row: Endpoint, pools: tuple[wire.PoolEntry, ...]) -> UUID | None:
    """The pool that the endpoint's policy spills to, of those in the snapshot; of one name the tenant's own wins, as everywhere."""
    policy = slo.compiled(row.slo_policy)
    if policy is None or policy.spill_pool is None:
        return None
    named = [pool for pool in pools if policy.spill_pool in (pool.name, str(pool.id))]
    return min(named, key=lambda pool: (pool.owner_tenant_id != row.tenant_id, str(pool.id))).id if named else None


def _capture(row: TraceCapture | None) -> wire.CaptureEntry | None:
    if row is None or row.seed is None:
        return None
    return wire.CaptureEntry(id=row.id, seed=bytes(row.seed), share=row.share, until=row.ends_at.timestamp())


def _endpoint(row: Endpoint, pools: tuple[wire.PoolEntry, ...], captured: TraceCapture | None) -> wire.EndpointEntry:
    model, adapter = row.model, row.adapter
    return wire.EndpointEntry(
        id=row.id,
        name=row.name,
        pool_id=row.grant.pool_id,
        model=wire.ModelEntry(
            name=model.name,
            revision=model.revision,
            tokenizer=_artifact(model.tokenizer_digest, model.tokenizer_revision),
            chat_template=_artifact(model.chat_template_digest, model.chat_template_revision),
            quantisation=model.quantisation,
            kv_dtype=model.kv_dtype,
            multimodal_processor=model.multimodal_processor,
            context_window_tokens=model.context_window_tokens,
        ),
        engine=cast(wire.EngineFamily, row.engine),
        served_model=row.served_model,
        routing_policy=_policy(row.routing_policy),
        slo=_policy(row.slo_policy) if row.slo_policy else None,
        spill_pool_id=_spill_pool(row, pools),
        candidate_policy=_policy(row.candidate_policy) if row.candidate_policy else None,
        canary_share=row.canary_share,
        adapter=wire.AdapterEntry(name=adapter.name, revision=adapter.revision, generation=adapter.generation) if adapter else None,
        context=row.context,
        request_context=tuple(row.request_context),
        sharing=cast(wire.SharingLevel, row.sharing),
        epoch=row.epoch,
        data_class=row.data_class,
        own_cache=row.own_cache,
        client_subdivision=row.client_subdivision,
        enabled=row.enabled,
        created_at=row.created_at.timestamp(),
        explain_until=row.explain_until.timestamp() if row.explain_until else 0.0,
        capture=_capture(captured),
    )


def _artifact(digest: bytes | memoryview | None, revision: str | None) -> wire.ArtifactRef:
    return wire.ArtifactRef(digest=bytes(digest) if digest is not None else None, revision=revision)


def _policy(version: PolicyVersion) -> wire.PolicyEntry:
    return wire.PolicyEntry(name=version.policy.name, version=version.version, spec=version.spec)


# ---- delivery ----------------------------------------------------------------------------------------------------------


def publish(tenant_id: UUID) -> int:
    """Publish the tenant's present configuration, and small artifacts that it names and Valkey lacks: large ones are the sweep's.

    Repeats and latecomers change nothing.

    Returns:
        The version that was built.

    Raises:
        NotConfigured: no keys in this process.
        redis.RedisError: Valkey did not take it within ``settings.PUBLISH_TIMEOUT_S``.
    """
    if settings.PUBLISH_KEY is None or settings.SEAL_PUBLIC_KEY is None:
        raise NotConfigured
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost:  # one view of all rows; inside somebody's transaction it is too late to ask for it
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with scoping.tenant_scope(tenant_id):
            built = build_snapshot(tenant_id, now_s=time.time())
            if built.deleted:
                Replica.objects.filter(tenant_id=tenant_id).delete()  # their addresses are free for others again
    document = wire.seal(built, seal_public_key=settings.SEAL_PUBLIC_KEY, publish_key=settings.PUBLISH_KEY)
    keys = [f"{SNAPSHOT_PREFIX}{tenant_id}", queries.VERSIONS, artifact_delivery.REFS]
    named = artifact_delivery.refs_of(artifact.named_by(built))
    client = _client(settings.VALKEY_URL, settings.PUBLISH_TIMEOUT_S)
    client.eval(_COMPARE_AND_SET, len(keys), *keys, str(tenant_id), built.version, document, ANNOUNCE, named)
    if lacking := artifact_delivery.missing(client, named.split()):
        with scoping.tenant_scope(tenant_id):
            artifact_delivery.deliver(client, tenant_id, named.split(), set(lacking), limit_bytes=DIRECT_ARTIFACT_BYTES)
    return built.version


def sweep() -> list[UUID]:
    """Publish every tenant whose version in Valkey is not the one in PostgreSQL, or whose document is gone. Returns those it published."""
    refs = all_tenants(deleted=True)
    client = _client(settings.VALKEY_URL, settings.PUBLISH_TIMEOUT_S)
    held, noted = client.hgetall(queries.VERSIONS), set(client.hkeys(artifact_delivery.REFS))
    with client.pipeline(transaction=False) as pipe:
        for ref in refs:
            pipe.exists(f"{SNAPSHOT_PREFIX}{ref.tenant_id}")
        present = pipe.execute()
    published: list[UUID] = []
    for ref, exists in zip(refs, present, strict=True):
        version = int(held.get(str(ref.tenant_id).encode(), 0))
        if version > ref.config_version:
            # A database restored from a backup: routers refuse what is older than what they have seen.
            _log.error("tenant %s is at version %d here and at %d in Valkey; raise it to be heard again", ref.slug, ref.config_version, version)
        elif version < ref.config_version or not exists or str(ref.tenant_id).encode() not in noted:
            try:
                publish(ref.tenant_id)
            except (ValueError, TypeError, LookupError, msgspec.MsgspecError):  # one tenant's damaged row must not keep the others back
                _log.exception("tenant %s cannot be published", ref.slug)
            else:
                published.append(ref.tenant_id)
    with queries.valkey(ARTIFACTS_S) as patient:
        artifact_delivery.repair(patient, [ref.tenant_id for ref in refs])
    return published


@cache
def _client(url: str, timeout_s: float) -> redis.Redis:  # noqa: ARG001 - the URL is part of the cache key; valkey() reads the same setting
    return queries.valkey(timeout_s)


# ---- the on-commit hook ------------------------------------------------------------------------------------------------


class _Bursts(threading.local):
    """Per thread: what direct publishing has cost since the last pause, and whether it rests after a failure."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.ended_s = 0.0  # monotonic
        self.rest_until_s = 0.0  # monotonic; after a failure

    def may_publish(self, now_s: float) -> bool:
        if now_s - self.ended_s > 0.05:  # hooks of one commit follow each other at once, so this is another commit
            self.spent_s = 0.0
        return now_s >= self.rest_until_s and self.spent_s < BURST_BUDGET_S

    def note(self, began_s: float, ended_s: float, *, failed: bool) -> None:
        self.spent_s += ended_s - began_s
        self.ended_s = ended_s
        if failed:
            self.rest_until_s = ended_s + REST_AFTER_FAILURE_S


_bursts = _Bursts()


def publish_on_commit(tenant_id: UUID) -> None:
    """Publish at once, in the process that made the change. Bounded, and never raises: what fails here the task and the sweep repair.

    One transaction may record many changes of many tenants and calls this once for each: a version that Valkey holds already is not built again,
    and all of them together may take ``BURST_BUDGET_S``; after a failure the rest is left to the sweep at once.
    """
    began_s = time.monotonic()
    if not _bursts.may_publish(began_s):
        _log.info("publishing tenant %s is left to the sweep", tenant_id)
        return
    failed = False
    try:
        if not _is_published(tenant_id):
            publish(tenant_id)
    except NotConfigured:
        _log.debug("this process holds no publish key; the sweep publishes tenant %s", tenant_id)
    except (redis.RedisError, DatabaseError) as error:
        failed = True
        _log.warning("tenant %s was not published at once (%s); the sweep repeats it", tenant_id, type(error).__name__)
    except Exception:  # noqa: BLE001 - after the commit: an answer must not become a 500 for a change that stands
        failed = True
        _log.exception("tenant %s was not published at once; the sweep repeats it", tenant_id)
    _bursts.note(began_s, time.monotonic(), failed=failed)


def _is_published(tenant_id: UUID) -> bool:
    with scoping.tenant_scope(tenant_id):
        version = Tenant.objects.values_list("config_version", flat=True).get(id=tenant_id)
    held = _client(settings.VALKEY_URL, settings.PUBLISH_TIMEOUT_S).hget(queries.VERSIONS, str(tenant_id))
    return held is not None and int(held) >= version
