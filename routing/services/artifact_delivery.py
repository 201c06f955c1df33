"""Delivery of artifacts: what published snapshots name lies in Valkey under its SHA-256, compressed, for routers to fetch.

The publishing script notes in ``REFS`` what each tenant's published snapshot names, so that need and snapshot never differ. What is needed and not
there is put there by whoever publishes, or by the sweep; what no tenant names any more the sweep removes, asking ``REFS`` again inside Valkey.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

import redis

from routing.core import artifact
from routing.models import Artifact
from tenants import scoping

REFS = "saltroute:artifacts"  # hash: tenant id -> the hexadecimal digests that its published snapshot names, separated by spaces
HELD = "saltroute:artifact-sizes"  # hash: hexadecimal digest -> bytes in Valkey
MAX_BYTES_PER_TENANT = 256 * 1024 * 1024  # of content, in the order of their digests; what is beyond stays undelivered
SWEEP_BYTES = 256 * 1024 * 1024  # of content, in one run of the sweep
_log = logging.getLogger(__name__)

_REMOVE_UNNAMED = """
for _, named in ipairs(redis.call('HVALS', KEYS[1])) do
  if string.find(named, ARGV[1], 1, true) then return 0 end
end
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[3])
"""


def refs_of(named: Iterable[tuple[artifact.Kind, bytes]]) -> str:
    """The value of a tenant's field in ``REFS``."""
    return " ".join(sorted({digest.hex() for _, digest in named}))


def missing(client: redis.Redis, digests: Iterable[str]) -> list[str]:
    """Those of ``digests`` (hexadecimal) that Valkey does not have.

    Raises:
        redis.RedisError: Valkey is away.
    """
    wanted = list(dict.fromkeys(digests))
    if not wanted:
        return []
    with client.pipeline(transaction=False) as pipe:
        for digest in wanted:
            pipe.exists(artifact.KEY.format(digest))
        return [digest for digest, found in zip(wanted, pipe.execute(), strict=True) if not found]


def deliver(client: redis.Redis, tenant_id: UUID, named: Iterable[str], lacking: Collection[str], *, limit_bytes: int) -> int:
    """Put those of the scoped tenant's ``named`` artifacts into Valkey that are ``lacking`` there; returns the bytes of content that were put there.

    Args:
        limit_bytes: how much content to put there now; that the tenant's artifacts take ``MAX_BYTES_PER_TENANT`` at most holds in any case.

    Raises:
        redis.RedisError: Valkey is away.
    """
    scoping.require_scope(tenant_id)
    rows = Artifact.objects.filter(tenant_id=tenant_id)
    wanted = [bytes.fromhex(digest) for digest in named]
    sizes = {bytes(digest).hex(): size for digest, size in rows.filter(digest__in=wanted).values_list("digest", "size_bytes")}
    total = spent = 0
    for digest, size in sorted(sizes.items()):
        total += size
        if total > MAX_BYTES_PER_TENANT:
            _log.warning("tenant %s names more artifacts than are delivered: %d bytes at most", tenant_id, MAX_BYTES_PER_TENANT)
            break
        if digest not in lacking or spent + size > limit_bytes:
            continue
        packed = artifact.pack(bytes(rows.filter(digest=bytes.fromhex(digest)).values_list("content", flat=True)[0]))
        with client.pipeline() as pipe:
            pipe.set(artifact.KEY.format(digest), packed)
            pipe.hset(HELD, digest, str(len(packed)))
            pipe.execute()
        spent += size
    return spent


def repair(client: redis.Redis, tenant_ids: Iterable[UUID]) -> None:
    """Put there what published snapshots name and Valkey lacks, and remove what none names. ``tenant_ids`` are all tenants, deleted ones too.

    Raises:
        redis.RedisError: Valkey is away.
    """
    refs: Mapping[str, list[str]] = {_text(tenant): _text(named).split() for tenant, named in client.hgetall(REFS).items()}
    known = {str(tenant_id): tenant_id for tenant_id in tenant_ids}
    lacking = set(missing(client, (digest for named in refs.values() for digest in named)))
    left_bytes = SWEEP_BYTES
    for tenant, named in refs.items():
        if tenant not in known:
            client.hdel(REFS, tenant)
        elif not lacking.isdisjoint(named):
            with scoping.tenant_scope(known[tenant]):
                left_bytes -= deliver(client, known[tenant], named, lacking, limit_bytes=left_bytes)
    named_somewhere = {digest for tenant, named in refs.items() if tenant in known for digest in named}
    for digest in map(_text, client.hkeys(HELD)):
        if digest not in named_somewhere and client.eval(_REMOVE_UNNAMED, 3, REFS, HELD, artifact.KEY.format(digest), digest):
            _log.info("artifact %s is named by no tenant any more and was removed", digest)


def _text(value: bytes | str) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value
