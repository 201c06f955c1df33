"""Endpoints."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import rows, shapes
from routing.models import Endpoint, ModelSpec
from routing.services import endpoints
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import given
from tenants.core.errors import Invalid, NotFound
from tenants.core.roles import Permission


class EndpointView(TenantView):
    """Base of what is done with endpoints."""

    def pool_names(self) -> dict[UUID, str]:
        """Names of the pools that endpoints may sit on."""
        return {pool.id: pool.name for pool in queries.usable_pools(self.tenant_id)}

    def shown(self, endpoint_id: UUID) -> shapes.EndpointOut:
        """An endpoint as answered."""
        row = queries.endpoints(self.tenant_id).get(id=endpoint_id)
        return rows.endpoint(row, self.pool_names()[row.grant.pool_id])

    def resolved(self, fields: dict[str, Any], present: Endpoint | None = None) -> dict[str, Any]:
        """Replace the references of a body by ids; ``present`` is the endpoint that is being changed."""
        if "pool" in fields:
            fields["grant_id"] = _or_invalid(lambda ref: queries.usable_pool(self.tenant_id, ref).grant_id, fields.pop("pool"), "pool")
        model: ModelSpec | None = present.model if present else None
        if "model" in fields:
            model = _or_invalid(lambda ref: queries.model(self.tenant_id, ref), fields.pop("model"), "model")
            fields["model_id"] = model.id
        if "adapter" in fields:
            reference = fields.pop("adapter")
            of_model = queries.adapters(self.tenant_id).filter(model=model)
            fields["adapter_id"] = (
                None if reference is None else _or_invalid(lambda ref: queries.one(of_model, ref, queries.named(ref)).id, reference, "adapter")
            )
        return fields


def _or_invalid(find: Any, reference: str, field: str) -> Any:
    try:
        return find(reference)
    except NotFound:
        raise Invalid(f"You have no {field} of this id or name.", field=field) from None


class EndpointCollection(EndpointView):
    """Model names that the tenant's applications send."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    @describe("endpoints_list", "List endpoints", answers=page_of(shapes.EndpointOut), parameters=PAGING, tag="endpoints")
    def get(self, request: Request) -> Response:
        """By name."""
        pools = self.pool_names()
        found = page(request, queries.endpoints(self.tenant_id), by="name")
        return self.answer(found.render(lambda row: rows.endpoint(row, pools[row.grant.pool_id])))

    @describe("endpoints_create", "Create an endpoint", body=shapes.EndpointNew, answers=changed(shapes.EndpointOut), status=201, tag="endpoints")
    def post(self, request: Request) -> Response:
        """On an own pool or a granted one. An inline policy becomes a policy named after the endpoint."""
        fields = self.resolved(given(parse(request, shapes.EndpointNew)))
        row = endpoints.create(tenant_id=self.tenant_id, actor=self.actor, **fields)
        return self.changed(self.shown(row.id), status=201)


class EndpointItem(EndpointView):
    """One endpoint."""

    permissions = {"GET": Permission.READ, "PATCH": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}

    @describe("endpoints_read", "Read an endpoint", answers=shapes.EndpointOut, tag="endpoints")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id or name."""
        return self.answer(self.shown(queries.endpoint(self.tenant_id, reference).id))

    @describe("endpoints_change", "Change an endpoint", body=shapes.EndpointChange, answers=changed(shapes.EndpointOut), tag="endpoints")
    def patch(self, request: Request, reference: str) -> Response:
        """Requests in flight finish as they began."""
        present = queries.endpoint(self.tenant_id, reference)
        fields = self.resolved(given(parse(request, shapes.EndpointChange)), present)
        row = endpoints.update(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=present.id, **fields)
        return self.changed(self.shown(row.id))

    @describe("endpoints_delete", "Delete an endpoint", answers=changed(shapes.EndpointOut), tag="endpoints")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its decisions stay; requests for its name are answered as for any unknown model."""
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        shown = self.shown(endpoint_id)
        endpoints.delete(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id)
        return self.changed(shown)


class EndpointRotateEpoch(EndpointView):
    """A new cache epoch."""

    permissions = {"POST": Permission.OPERATE}

    @describe("endpoints_rotate_epoch", "Rotate an endpoint's epoch", body=shapes.ReasonGiven, answers=changed(shapes.EndpointOut), tag="endpoints")
    def post(self, request: Request, reference: str) -> Response:
        """Everything cached through it so far becomes unreachable. Each call is another epoch."""
        reason = parse(request, shapes.ReasonGiven).reason
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        row = endpoints.rotate_epoch(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, reason=reason)
        return self.changed(self.shown(row.id))
