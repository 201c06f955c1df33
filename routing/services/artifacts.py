"""Artifacts: tokenizers and chat templates, held by the SHA-256 of their content. They never change; another content is another artifact.

What tenants upload is foreign code: it is admitted only after it compiled where routers will run it, in a process without keys and with limits.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import cast
from uuid import UUID

import msgspec
from django.db.models import Q, Sum

from routing.core import artifact
from routing.models import Artifact, ModelSpec
from routing.prompts.faults import tidied
from routing.prompts.pool import Pool, PoolLimits, Refused
from routing.prompts.service import Prompts
from routing.services import support
from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.services import locks

KINDS = ("tokenizer", "chat_template")
MAX_BYTES = 64 * 1024 * 1024
MAX_TEMPLATE_BYTES = 1024 * 1024
MAX_PER_TENANT = 100
MAX_TOTAL_BYTES = 1024 * 1024 * 1024


def _check(kind: str, content: bytes) -> None:
    if not content:
        raise Invalid("The content is empty.", field="content")
    maximum = MAX_BYTES if kind == "tokenizer" else MAX_TEMPLATE_BYTES
    if len(content) > maximum:
        raise Invalid(f"A {kind} has at most {maximum} bytes; this has {len(content)}.", field="content")
    if kind == "chat_template":
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            raise Invalid("A chat template must be UTF-8 text.", field="content") from None
        return
    try:
        # Raw checks the syntax without building objects from what may be 64 MiB.
        raw = msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Invalid("A tokenizer must be a tokenizer.json: this is not JSON.", field="content") from None
    if not bytes(raw).lstrip().startswith(b"{"):
        raise Invalid("A tokenizer must be a tokenizer.json: a JSON object.", field="content")


_REFUSED = {
    "bad_tokenizer": "This tokenizer.json cannot be loaded.",
    "bad_template": "This chat template does not compile.",
    "deadline": "It did not compile within the time that is allowed for it.",
    "memory": "It did not compile within the memory that is allowed for it.",
}
COMPILE_S = 20.0
_OWNER = b"upload"


def _compile(kind: artifact.Kind, content: bytes, digest: bytes) -> None:
    """Compile in the sandbox, as a router does.

    Raises:
        Invalid: it does not compile there.
    """

    async def admitted() -> str | None:
        prompts = Prompts()
        await prompts.start()
        try:
            if not prompts.load(digest, content, kind):
                return "memory"
            return await prompts.admit(digest, kind, owner=_OWNER, deadline_s=COMPILE_S)
        finally:
            await prompts.stop()

    reason = asyncio.run(admitted())
    if reason is None:
        return
    told = _REFUSED.get(reason, f"It could not be compiled ({reason}).")
    if reason.startswith("bad_") and (fault := asyncio.run(_fault(kind, content, digest))):
        told = f"{told.removesuffix('.')}: {fault}."
    raise Invalid(told, field="content")


async def _fault(kind: artifact.Kind, content: bytes, digest: bytes) -> str:
    """What is wrong with an artifact, as another worker of the sandbox says; "" where it cannot say."""
    pool = Pool(PoolLimits(workers=1))
    await pool.start()
    try:
        said = await pool.run(owner=_OWNER, needs=(), culprit=digest, operation="fault", arguments=[kind, content], limit_s=COMPILE_S)
    except Refused:
        return ""
    finally:
        await pool.stop()
    return tidied(said)


def store(*, tenant_id: UUID, actor: Actor, kind: str, name: str, content: bytes) -> tuple[Artifact, bool]:
    """Keep ``content``; the same kind and content again give the artifact that is there, whatever its name.

    Returns:
        The artifact, and whether it is new.

    Raises:
        Invalid: unknown kind, bad name, empty, too large, not a tokenizer.json or not UTF-8, or it does not compile in the sandbox.
        LimitReached: too many artifacts, or too many bytes in all.
    """
    support.one_of(kind, KINDS, field="kind")
    names.label(name, field="name")
    _check(kind, content)
    digest = hashlib.sha256(content).digest()
    same = Artifact.objects.defer("content").filter(tenant_id=tenant_id, kind=kind, digest=digest)
    if not same.exists():
        _compile(cast(artifact.Kind, kind), content, digest)  # before the lock: it may take seconds
    locks.tenant(tenant_id)
    existing = same.first()
    if existing is not None:
        return existing, False
    held = Artifact.objects.filter(tenant_id=tenant_id)
    support.within(held.count(), MAX_PER_TENANT, "artifacts per tenant")
    if (held.aggregate(total=Sum("size_bytes"))["total"] or 0) + len(content) > MAX_TOTAL_BYTES:
        raise LimitReached(f"A tenant's artifacts may have at most {MAX_TOTAL_BYTES} bytes in all.")
    with refuse_on(artifact_digest_per_tenant=Conflict("The same content is being stored by another request; repeat this one.")):
        stored = Artifact.objects.create(tenant_id=tenant_id, kind=kind, name=name, digest=digest, size_bytes=len(content), content=content)
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="artifact.store",
        object_id=stored.id,
        object_label=name,
        after={"kind": kind, "sha256": digest.hex(), "size_bytes": len(content)},
        publishes=False,  # routers act on it once a model names it
    )
    return stored, True


def delete(*, tenant_id: UUID, actor: Actor, artifact_id: UUID) -> None:
    """Delete an artifact that no model names.

    Raises:
        NotFound: no such artifact in this tenant.
        Conflict: a model names it.
    """
    locks.tenant(tenant_id)
    row = Artifact.objects.defer("content").select_for_update().filter(tenant_id=tenant_id, id=artifact_id).first()
    if row is None:
        raise NotFound
    digest = bytes(row.digest)
    used = ModelSpec.objects.filter(tenant_id=tenant_id).filter(Q(tokenizer_digest=digest) | Q(chat_template_digest=digest)).first()
    if used is not None:
        raise Conflict(f"The model {used.name} uses this artifact.")
    name, kind = row.name, row.kind
    row.delete()
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="artifact.delete",
        object_id=artifact_id,
        object_label=name,
        before={"kind": kind, "sha256": digest.hex()},
        publishes=False,
    )


def digest_of(*, tenant_id: UUID, kind: str, sha256: object, field: str) -> bytes:
    """The digest of an artifact that the tenant holds, from its hexadecimal form.

    Raises:
        Invalid: not 64 hexadecimal digits, or the tenant holds no such artifact of this kind.
    """
    try:
        digest = bytes.fromhex(sha256) if isinstance(sha256, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise Invalid("Use the 64 hexadecimal digits of a SHA-256.", field=field)
    if not Artifact.objects.filter(tenant_id=tenant_id, kind=kind, digest=digest).exists():
        raise Invalid(f"You hold no {kind} with this SHA-256; upload it first.", field=field)
    return digest
