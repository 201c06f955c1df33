"""Endpoints: the model names that a tenant's applications send, on which pool they are served and under which identity."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack
from uuid import UUID

from django.db.models import F

from routing.core.engines import ENGINES
from routing.models import Adapter, Endpoint, ModelSpec, PolicyVersion, PoolGrant
from routing.services import policies, slo, support
from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.services import locks

MAX_ENDPOINTS = 500
MAX_CONTEXT_NAMES = 16
MAX_CONTEXT_CHARACTERS = 128
SHARING = ("tenant", "scope", "key", "none")


class EndpointFields(TypedDict, total=False):
    """What may be set on an endpoint. ``grant_id``, ``model_id`` and ``adapter_id`` are rows of the tenant.

    ``routing_policy`` and ``slo``: a policy's name, ``{name, version}`` or an inline document; see ``policies.resolve``.
    """

    name: str
    grant_id: UUID
    model_id: UUID
    adapter_id: UUID | None
    engine: str
    served_model: str | None
    context: dict[str, str]
    request_context: list[str]
    sharing: str
    routing_policy: object
    slo: object
    data_class: str | None
    own_cache: bool
    client_subdivision: bool
    enabled: bool


_PLAIN = ("own_cache", "client_subdivision", "enabled")


def _context_name(name: object, field: str) -> str:
    text = names.label(name, field=field, maximum=64)
    if any(character in text for character in "=,; "):
        raise Invalid("A context name has no blanks, commas, semicolons or equals signs: requests send name=version.", field=field)
    return text


def _context(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Invalid("Give an object of names and versions, such as {org_policy: v7}.", field="context")
    if len(value) > MAX_CONTEXT_NAMES:
        raise Invalid(f"At most {MAX_CONTEXT_NAMES} context names.", field="context")
    return {
        _context_name(name, "context"): names.label(version, field=f"context.{name}", maximum=MAX_CONTEXT_CHARACTERS)
        for name, version in value.items()
    }


def _request_context(value: object) -> list[str]:
    if not isinstance(value, list):
        raise Invalid("Give a list of names.", field="request_context")
    if len(value) > MAX_CONTEXT_NAMES:
        raise Invalid(f"At most {MAX_CONTEXT_NAMES} context names.", field="request_context")
    return sorted({_context_name(name, "request_context") for name in value})


def _row(model: type[Any], tenant_id: UUID, row_id: object, field: str) -> Any:
    found = model.objects.filter(tenant_id=tenant_id, id=row_id).first() if isinstance(row_id, UUID) else None
    if found is None:
        raise Invalid("There is no such object in this tenant.", field=field)
    return found


def _checked(tenant_id: UUID, fields: EndpointFields) -> dict[str, Any]:
    """The columns that ``fields`` set, except the policies and the served model, which depend on others."""
    columns: dict[str, Any] = {}
    for field, value in fields.items():
        if field == "name":
            columns["name"] = names.model_name(value, field=field)
        elif field == "grant_id":
            columns["grant_id"] = _row(PoolGrant, tenant_id, value, "pool").id
        elif field == "model_id":
            columns["model_id"] = _row(ModelSpec, tenant_id, value, "model").id
        elif field == "adapter_id":
            columns["adapter_id"] = None if value is None else _row(Adapter, tenant_id, value, "adapter").id
        elif field == "engine":
            columns["engine"] = support.one_of(value, tuple(ENGINES), field=field)
        elif field == "context":
            columns["context"] = _context(value)
        elif field == "request_context":
            columns["request_context"] = _request_context(value)
        elif field == "sharing":
            columns["sharing"] = support.one_of(value, SHARING, field=field)
        elif field == "data_class":
            columns["data_class"] = None if value is None else names.label(value, field=field, maximum=64)
        elif field in _PLAIN:
            if not isinstance(value, bool):
                raise Invalid("Use true or false.", field=field)
            columns[field] = value
        elif field not in ("routing_policy", "slo", "served_model"):
            raise Invalid("Unknown field.", field=field)
    return columns


def _policies(tenant_id: UUID, actor: Actor, fields: EndpointFields, endpoint_name: str) -> dict[str, PolicyVersion | None]:
    columns: dict[str, PolicyVersion | None] = {}
    if "routing_policy" in fields:
        columns["routing_policy"] = policies.resolve(
            tenant_id=tenant_id, actor=actor, kind="routing", wanted=fields["routing_policy"], endpoint_name=endpoint_name, field="routing_policy"
        )
    if "slo" in fields:
        wanted = fields["slo"]
        columns["slo_policy"] = (
            None
            if wanted is None
            else policies.resolve(tenant_id=tenant_id, actor=actor, kind="slo", wanted=wanted, endpoint_name=endpoint_name, field="slo")
        )
    return columns


def _default_served(tenant_id: UUID, model_id: UUID, adapter_id: UUID | None) -> str:
    """What the engine calls it: the adapter's name where there is one, else the model's."""
    if adapter_id is not None:
        return Adapter.objects.get(tenant_id=tenant_id, id=adapter_id).name
    return ModelSpec.objects.get(tenant_id=tenant_id, id=model_id).name


def _check_together(tenant_id: UUID, model_id: UUID, adapter_id: UUID | None, context: dict[str, str], request_context: list[str]) -> None:
    if adapter_id is not None and not Adapter.objects.filter(tenant_id=tenant_id, id=adapter_id, model_id=model_id).exists():
        raise Invalid("This adapter belongs to another model.", field="adapter")
    if len(set(context) | set(request_context)) > MAX_CONTEXT_NAMES:
        raise Invalid(f"At most {MAX_CONTEXT_NAMES} context names, declared and per request together.", field="request_context")


def _audit(endpoint: Endpoint) -> dict[str, Any]:
    """The endpoint as the audit log keeps it."""
    return {
        "name": endpoint.name,
        "model": endpoint.model.name,
        "adapter": endpoint.adapter.name if endpoint.adapter else None,
        "engine": endpoint.engine,
        "served_model": endpoint.served_model,
        "grant": str(endpoint.grant_id),
        "context": endpoint.context,
        "request_context": endpoint.request_context,
        "sharing": endpoint.sharing,
        "routing_policy": f"{endpoint.routing_policy.policy.name} v{endpoint.routing_policy.version}",
        "slo": f"{endpoint.slo_policy.policy.name} v{endpoint.slo_policy.version}" if endpoint.slo_policy else None,
        "candidate": f"{endpoint.candidate_policy.policy.name} v{endpoint.candidate_policy.version}" if endpoint.candidate_policy else None,
        "canary_share": endpoint.canary_share,
        "data_class": endpoint.data_class,
        "own_cache": endpoint.own_cache,
        "client_subdivision": endpoint.client_subdivision,
        "enabled": endpoint.enabled,
    }


_NAME_TAKEN = "There is an endpoint of this name already."
_RELATED = ("model", "adapter", "routing_policy__policy", "slo_policy__policy", "candidate_policy__policy", "previous_policy__policy")


def create(*, tenant_id: UUID, actor: Actor, **fields: Unpack[EndpointFields]) -> Endpoint:
    """Create an endpoint; ``name``, ``grant_id`` and ``model_id`` are required.

    Raises:
        Invalid: a field is missing, malformed, or names what the tenant does not have.
        Conflict: the name is taken.
        LimitReached: ``MAX_ENDPOINTS``.
    """
    locks.tenant(tenant_id)
    for required, shown in (("name", "name"), ("grant_id", "pool"), ("model_id", "model")):
        if required not in fields:
            raise Invalid("This field is required.", field=shown)
    columns = _checked(tenant_id, fields)
    support.within(Endpoint.objects.filter(tenant_id=tenant_id).count(), MAX_ENDPOINTS, "endpoints per tenant")
    adapter_id = columns.get("adapter_id")
    _check_together(tenant_id, columns["model_id"], adapter_id, columns.get("context", {}), columns.get("request_context", []))
    served = fields.get("served_model")
    columns["served_model"] = (
        _default_served(tenant_id, columns["model_id"], adapter_id) if served is None else names.model_name(served, field="served_model")
    )
    if Endpoint.objects.filter(tenant_id=tenant_id, name=columns["name"]).exists():
        raise Conflict(_NAME_TAKEN, field="name")  # asked first, so that no policy is made for an endpoint that is refused
    with_policies: EndpointFields = {"routing_policy": {"policy": "ettft"}, **fields}
    columns |= _policies(tenant_id, actor, with_policies, columns["name"])
    with refuse_on(endpoint_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        endpoint = Endpoint.objects.create(tenant_id=tenant_id, **columns)
    endpoint = Endpoint.objects.select_related(*_RELATED).get(tenant_id=tenant_id, id=endpoint.id)
    slo.check(tenant_id, endpoint)
    changes.record(
        tenant_id=tenant_id, actor=actor, action="endpoint.create", object_id=endpoint.id, object_label=endpoint.name, after=_audit(endpoint)
    )
    return endpoint


def update(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, **fields: Unpack[EndpointFields]) -> Endpoint:
    """Change what is given. ``served_model`` None means the default again; another model or adapter renews a default that was in use.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid, Conflict: as :func:`create`.
    """
    locks.tenant(tenant_id)
    support.locked(Endpoint, tenant_id=tenant_id, row_id=endpoint_id)
    endpoint = Endpoint.objects.select_related(*_RELATED).get(tenant_id=tenant_id, id=endpoint_id)
    before = _audit(endpoint)
    columns = _checked(tenant_id, fields)
    model_id, adapter_id = columns.get("model_id", endpoint.model_id), columns.get("adapter_id", endpoint.adapter_id)
    _check_together(
        tenant_id, model_id, adapter_id, columns.get("context", endpoint.context), columns.get("request_context", endpoint.request_context)
    )
    served = fields.get("served_model")
    if served is not None:
        columns["served_model"] = names.model_name(served, field="served_model")
    elif "served_model" in fields or endpoint.served_model == _default_served(tenant_id, endpoint.model_id, endpoint.adapter_id):
        columns["served_model"] = _default_served(tenant_id, model_id, adapter_id)
    columns |= _policies(tenant_id, actor, fields, columns.get("name", endpoint.name))
    if columns.get("routing_policy") is not None:
        columns |= policies.moved(endpoint, columns["routing_policy"])
    with refuse_on(endpoint_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        _, changed = support.apply_changes(endpoint, columns)
    if not changed:
        return endpoint
    endpoint = Endpoint.objects.select_related(*_RELATED).get(tenant_id=tenant_id, id=endpoint_id)
    slo.check(tenant_id, endpoint)
    after = _audit(endpoint)
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="endpoint.update",
        object_id=endpoint.id,
        object_label=endpoint.name,
        before={name: value for name, value in before.items() if after[name] != value},
        after={name: value for name, value in after.items() if before[name] != value},
    )
    return endpoint


def rotate_epoch(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID, reason: str) -> Endpoint:
    """Make everything cached through this endpoint so far unreachable. Not safe to repeat: each call is another epoch.

    Raises:
        NotFound: no such endpoint in this tenant.
        Invalid: no reason.
    """
    locks.tenant(tenant_id)
    endpoint = support.locked(Endpoint, tenant_id=tenant_id, row_id=endpoint_id)
    names.label(reason, field="reason", maximum=500)
    Endpoint.objects.filter(tenant_id=tenant_id, id=endpoint_id).update(epoch=F("epoch") + 1)
    before = endpoint.epoch
    endpoint.refresh_from_db(fields=["epoch"])
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action="endpoint.rotate_epoch",
        object_id=endpoint.id,
        object_label=endpoint.name,
        before={"epoch": before},
        after={"epoch": endpoint.epoch},
        reason=reason,
    )
    return endpoint


def delete(*, tenant_id: UUID, actor: Actor, endpoint_id: UUID) -> None:
    """Delete an endpoint. Its decisions stay; requests for its name are answered as for any unknown model.

    Raises:
        NotFound: no such endpoint in this tenant.
    """
    locks.tenant(tenant_id)
    support.locked(Endpoint, tenant_id=tenant_id, row_id=endpoint_id)
    endpoint = Endpoint.objects.select_related(*_RELATED).get(tenant_id=tenant_id, id=endpoint_id)
    before, name = _audit(endpoint), endpoint.name
    endpoint.delete()
    changes.record(tenant_id=tenant_id, actor=actor, action="endpoint.delete", object_id=endpoint_id, object_label=name, before=before)
