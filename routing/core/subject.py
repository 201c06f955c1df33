"""From a snapshot and one request to the subject of its cache identity. The one place where components get their values."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from namespaces.core.subject import Adapter, Artifact, Model, ScopeLevel, Sharing, Subject
from routing.core.snapshot import ArtifactRef, EndpointEntry, TenantSnapshot
from tenants.core.scopes import ancestors
from tenants.core.snapshot import ScopeEntry


def scope_levels(path: str, scopes: Mapping[str, ScopeEntry]) -> tuple[ScopeLevel, ...]:
    """The scopes from the root to ``path`` with their versions.

    Raises:
        KeyError: an ancestor is missing from the snapshot; no identity can be built, so the request must be refused.
    """
    return tuple(ScopeLevel(id=scopes[level].id, segment=level.rsplit("/", 1)[-1], version=scopes[level].version) for level in ancestors(path))


def _artifact(reference: ArtifactRef) -> Artifact:
    return Artifact(digest=reference.digest, revision=reference.revision)


def build(
    *,
    tenant: TenantSnapshot,
    endpoint: EndpointEntry,
    levels: tuple[ScopeLevel, ...],
    key_id: UUID,
    request_context: Mapping[str, str],
    client_subdivision: str | None,
    request_nonce: bytes,
) -> Subject:
    """Gather the subject of one request.

    ``request_context`` holds only names that the endpoint allows; ``request_nonce`` is used at sharing level ``none`` alone.
    """
    sharing = Sharing(endpoint.sharing)
    model, adapter = endpoint.model, endpoint.adapter
    return Subject(
        tenant_id=tenant.tenant_id,
        sharing=sharing,
        scope=levels,
        engine_family=endpoint.engine,
        model=Model(name=model.name, revision=model.revision, quantisation=model.quantisation, kv_dtype=model.kv_dtype),
        tokenizer=_artifact(model.tokenizer),
        chat_template=_artifact(model.chat_template),
        epoch=(tenant.epoch, endpoint.epoch),
        adapter=None if adapter is None else Adapter(name=adapter.name, revision=adapter.revision, generation=adapter.generation),
        context=tuple(sorted({**endpoint.context, **request_context}.items())),
        multimodal_processor=model.multimodal_processor,
        data_class=endpoint.data_class,
        key_id=key_id if sharing in (Sharing.KEY, Sharing.NONE) else None,
        request_nonce=request_nonce if sharing is Sharing.NONE else None,
        endpoint_id=endpoint.id if endpoint.own_cache else None,
        client_subdivision=client_subdivision if endpoint.client_subdivision else None,
    )
