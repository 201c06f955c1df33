"""Models and adapters as declared: every revision here is part of the cache identity, so each change is in the audit log."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack
from uuid import UUID

from routing.models import Adapter, Endpoint, ModelSpec
from routing.services import artifacts, support
from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.services import locks

MAX_MODELS = 200
MAX_ADAPTERS_PER_MODEL = 256
MAX_CONTEXT_WINDOW_TOKENS = 100_000_000


class ModelFields(TypedDict, total=False):
    """What may be set on a model. ``*_sha256`` name artifacts that the tenant holds (64 hexadecimal digits); None takes them away."""

    name: str
    revision: str
    quantisation: str | None
    kv_dtype: str | None
    tokenizer_sha256: str | None
    tokenizer_revision: str | None
    chat_template_sha256: str | None
    chat_template_revision: str | None
    multimodal_processor: str | None
    context_window_tokens: int | None


_LABELS = {"quantisation": 64, "kv_dtype": 64, "tokenizer_revision": 200, "chat_template_revision": 200, "multimodal_processor": 200}


def _checked(tenant_id: UUID, fields: ModelFields) -> dict[str, Any]:
    """The columns that ``fields`` set, checked; refusals name the field as the caller wrote it."""
    columns: dict[str, Any] = {}
    for field, value in fields.items():
        if field == "name":
            columns[field] = names.model_name(value, field=field)
        elif field == "revision":
            columns[field] = names.label(value, field=field)
        elif field in _LABELS:
            columns[field] = None if value is None else names.label(value, field=field, maximum=_LABELS[field])
        elif field in ("tokenizer_sha256", "chat_template_sha256"):
            kind = field.removesuffix("_sha256")
            columns[f"{kind}_digest"] = None if value is None else artifacts.digest_of(tenant_id=tenant_id, kind=kind, sha256=value, field=field)
        elif field == "context_window_tokens":
            columns[field] = _context_window(value)
        else:
            raise Invalid("Unknown field.", field=field)
    return columns


def _context_window(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONTEXT_WINDOW_TOKENS:
        raise Invalid(f"Use a whole number of tokens between 1 and {MAX_CONTEXT_WINDOW_TOKENS}.", field="context_window_tokens")
    return value


_NAME_TAKEN = "There is a model of this name already."


def create_model(*, tenant_id: UUID, actor: Actor, **fields: Unpack[ModelFields]) -> ModelSpec:
    """Declare a model; ``name`` and ``revision`` are required.

    Raises:
        Invalid: a field is missing, malformed or names an artifact that the tenant does not hold.
        Conflict: the name is taken.
        LimitReached: ``MAX_MODELS``.
    """
    locks.tenant(tenant_id)
    for required in ("name", "revision"):
        if required not in fields:
            raise Invalid("This field is required.", field=required)
    columns = _checked(tenant_id, fields)
    support.within(ModelSpec.objects.filter(tenant_id=tenant_id).count(), MAX_MODELS, "models per tenant")
    with refuse_on(model_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        model = ModelSpec.objects.create(tenant_id=tenant_id, **columns)
    changes.record(tenant_id=tenant_id, actor=actor, action="model.create", object_id=model.id, object_label=model.name, after=support.shown(columns))
    return model


def update_model(*, tenant_id: UUID, actor: Actor, model_id: UUID, **fields: Unpack[ModelFields]) -> ModelSpec:
    """Change what is given. Another revision of anything makes all blocks cached under the old one unreachable.

    Raises:
        NotFound: no such model in this tenant.
        Invalid, Conflict: as :func:`create_model`.
    """
    locks.tenant(tenant_id)
    model = support.locked(ModelSpec, tenant_id=tenant_id, row_id=model_id)
    columns = _checked(tenant_id, fields)
    with refuse_on(model_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        before, after = support.apply_changes(model, columns)
    if after:
        changes.record(
            tenant_id=tenant_id,
            actor=actor,
            action="model.update",
            object_id=model.id,
            object_label=model.name,
            before=support.shown(before),
            after=support.shown(after),
        )
    return model


def delete_model(*, tenant_id: UUID, actor: Actor, model_id: UUID) -> None:
    """Delete a model that no endpoint serves, with its adapters.

    Raises:
        NotFound: no such model in this tenant.
        Conflict: an endpoint serves it.
    """
    locks.tenant(tenant_id)
    model = support.locked(ModelSpec, tenant_id=tenant_id, row_id=model_id)
    endpoint = Endpoint.objects.filter(tenant_id=tenant_id, model_id=model_id).first()
    if endpoint is not None:
        raise Conflict(f"The endpoint {endpoint.name} serves this model.")
    Adapter.objects.filter(tenant_id=tenant_id, model_id=model_id).delete()
    name, revision = model.name, model.revision
    model.delete()
    changes.record(
        tenant_id=tenant_id, actor=actor, action="model.delete", object_id=model_id, object_label=name, before={"name": name, "revision": revision}
    )


def create_adapter(*, tenant_id: UUID, actor: Actor, model_id: UUID, name: str, revision: str) -> Adapter:
    """Declare a LoRA adapter of a model.

    Raises:
        NotFound: no such model in this tenant.
        Invalid: a malformed name or revision.
        Conflict: the model has an adapter of this name.
        LimitReached: ``MAX_ADAPTERS_PER_MODEL``.
    """
    locks.tenant(tenant_id)
    model = support.locked(ModelSpec, tenant_id=tenant_id, row_id=model_id)
    names.model_name(name, field="name")
    names.label(revision, field="revision")
    held = Adapter.objects.filter(tenant_id=tenant_id, model_id=model_id).count()
    support.within(held, MAX_ADAPTERS_PER_MODEL, "adapters per model")
    with refuse_on(adapter_name_per_model=Conflict("This model has an adapter of this name already.", field="name")):
        adapter = Adapter.objects.create(tenant_id=tenant_id, model=model, name=name, revision=revision)
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="adapter.create",
        object_id=adapter.id,
        object_label=name,
        after={"model": model.name, "name": name, "revision": revision, "generation": adapter.generation},
    )
    return adapter


def update_adapter(*, tenant_id: UUID, actor: Actor, adapter_id: UUID, revision: str) -> Adapter:
    """Name another revision of an adapter.

    Raises:
        NotFound: no such adapter in this tenant.
        Invalid: a malformed revision.
    """
    locks.tenant(tenant_id)
    adapter = support.locked(Adapter, tenant_id=tenant_id, row_id=adapter_id)
    names.label(revision, field="revision")
    before, after = support.apply_changes(adapter, {"revision": revision})
    if after:
        changes.record(
            tenant_id=tenant_id, actor=actor, action="adapter.update", object_id=adapter.id, object_label=adapter.name, before=before, after=after
        )
    return adapter


def reload_adapter(*, tenant_id: UUID, actor: Actor, adapter_id: UUID, reason: str) -> Adapter:
    """Raise the generation: the engines loaded other files under the same name, so nothing cached before may be reused.

    Raises:
        NotFound: no such adapter in this tenant.
        Invalid: no reason.
    """
    locks.tenant(tenant_id)
    adapter = support.locked(Adapter, tenant_id=tenant_id, row_id=adapter_id)
    names.label(reason, field="reason", maximum=500)
    before, after = support.apply_changes(adapter, {"generation": adapter.generation + 1})
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="adapter.reload",
        object_id=adapter.id,
        object_label=adapter.name,
        before=before,
        after=after,
        reason=reason,
    )
    return adapter


def delete_adapter(*, tenant_id: UUID, actor: Actor, adapter_id: UUID) -> None:
    """Delete an adapter that no endpoint serves.

    Raises:
        NotFound: no such adapter in this tenant.
        Conflict: an endpoint serves it.
    """
    locks.tenant(tenant_id)
    adapter = support.locked(Adapter, tenant_id=tenant_id, row_id=adapter_id)
    endpoint = Endpoint.objects.filter(tenant_id=tenant_id, adapter_id=adapter_id).first()
    if endpoint is not None:
        raise Conflict(f"The endpoint {endpoint.name} serves this adapter.")
    name, revision = adapter.name, adapter.revision
    adapter.delete()
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="adapter.delete",
        object_id=adapter_id,
        object_label=name,
        before={"name": name, "revision": revision},
    )
