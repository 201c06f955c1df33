"""Artifacts, models and adapters."""

from __future__ import annotations

import base64
import binascii
from typing import IO, Any, cast

from drf_spectacular.utils import OpenApiParameter
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import rows, shapes
from routing.services import artifacts, catalogue
from tenants.api.base import TenantView, describe
from tenants.api.bodies import StrictJsonParser, parse
from tenants.api.errors import TooLarge
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import given
from tenants.core.errors import Invalid, referred
from tenants.core.roles import Permission

_READ_WRITE = {"GET": Permission.READ, "PATCH": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}
_LIST_CREATE = {"GET": Permission.READ, "POST": Permission.CONFIGURE}
_KIND = OpenApiParameter("kind", str, enum=list(artifacts.KINDS), description="What the bytes of an octet-stream are; in a list: only these.")
_NAME = OpenApiParameter("name", str, description="The file's name, with an octet-stream.")


class BytesParser(BaseParser):
    """A body taken as bytes, up to the view's bound."""

    media_type = "application/octet-stream"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:  # noqa: ARG002 - DRF's signature
        """Read the whole body, as ``content``."""
        raw = stream.read(artifacts.MAX_BYTES + 1)
        if len(raw) > artifacts.MAX_BYTES:
            raise TooLarge(f"The body is larger than {artifacts.MAX_BYTES} bytes.")
        return {"content": raw}


class ArtifactCollection(TenantView):
    """Tokenizers and chat templates, by content."""

    permissions = _LIST_CREATE
    parser_classes = [StrictJsonParser, BytesParser]
    max_body_bytes = artifacts.MAX_BYTES * 4 // 3 + 64 * 1024  # base64 and the rest of the JSON

    @describe("artifacts_list", "List artifacts", answers=page_of(shapes.ArtifactOut), parameters=(*PAGING, _KIND), tag="models")
    def get(self, request: Request) -> Response:
        """Newest first, without their content."""
        found = queries.artifacts(self.tenant_id)
        kind = request.query_params.get("kind")
        return self.answer(page(request, found if kind is None else found.filter(kind=kind)).render(rows.artifact))

    @describe(
        "artifacts_store",
        "Keep an artifact",
        body={"application/json": shapes.ArtifactNew, "application/octet-stream": bytes},
        answers=changed(shapes.ArtifactOut),
        status=201,
        parameters=(_KIND, _NAME),
        tag="models",
        extra={200: changed(shapes.ArtifactOut)},
    )
    def post(self, request: Request) -> Response:
        """The same content again answers 200 with the artifact that is there."""
        if request.content_type.partition(";")[0].strip() == BytesParser.media_type:
            kind, name = request.query_params.get("kind", ""), request.query_params.get("name", "")
            content: bytes = cast(dict[str, Any], request.data).get("content", b"")  # no parser is asked about an empty body
        else:
            wanted = parse(request, shapes.ArtifactNew)
            kind, name = wanted.kind, wanted.name
            try:
                content = base64.b64decode(wanted.content_base64, validate=True)
            except (binascii.Error, ValueError):
                raise Invalid("This is not base64.", field="content_base64") from None
        row, new = artifacts.store(tenant_id=self.tenant_id, actor=self.actor, kind=kind, name=name, content=content)
        return self.changed(rows.artifact(row), status=201 if new else 200)


class ArtifactItem(TenantView):
    """One artifact, by id or SHA-256."""

    permissions = {"GET": Permission.READ, "DELETE": Permission.CONFIGURE}

    @describe("artifacts_read", "Read an artifact", answers=shapes.ArtifactOut, tag="models")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Without its content."""
        return self.answer(rows.artifact(queries.artifact(self.tenant_id, reference)))

    @describe("artifacts_delete", "Delete an artifact", answers=changed(shapes.ArtifactOut), tag="models")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Refused while a model names it."""
        row = queries.artifact(self.tenant_id, reference)
        shown = rows.artifact(row)
        artifacts.delete(tenant_id=self.tenant_id, actor=self.actor, artifact_id=row.id)
        return self.changed(shown)


class ModelCollection(TenantView):
    """Models as declared."""

    permissions = _LIST_CREATE

    @describe("models_list", "List models", answers=page_of(shapes.ModelOut), parameters=PAGING, tag="models")
    def get(self, request: Request) -> Response:
        """By name."""
        return self.answer(page(request, queries.models(self.tenant_id), by="name").render(rows.model))

    @describe("models_create", "Declare a model", body=shapes.ModelNew, answers=changed(shapes.ModelOut), status=201, tag="models")
    def post(self, request: Request) -> Response:
        """Its name and revision, and what decides tokens beside the weights."""
        row = catalogue.create_model(tenant_id=self.tenant_id, actor=self.actor, **given(parse(request, shapes.ModelNew)))
        return self.changed(rows.model(row), status=201)


class ModelItem(TenantView):
    """One model."""

    permissions = _READ_WRITE

    @describe("models_read", "Read a model", answers=shapes.ModelOut, tag="models")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id or name."""
        return self.answer(rows.model(queries.model(self.tenant_id, reference)))

    @describe("models_change", "Change a model", body=shapes.ModelChange, answers=changed(shapes.ModelOut), tag="models")
    def patch(self, request: Request, reference: str) -> Response:
        """Another revision of anything makes all blocks cached under the old one unreachable."""
        fields = given(parse(request, shapes.ModelChange))
        model_id = queries.model(self.tenant_id, reference).id
        row = catalogue.update_model(tenant_id=self.tenant_id, actor=self.actor, model_id=model_id, **fields)
        return self.changed(rows.model(row))

    @describe("models_delete", "Delete a model", answers=changed(shapes.ModelOut), tag="models")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With its adapters. Refused while an endpoint serves it."""
        row = queries.model(self.tenant_id, reference)
        shown = rows.model(row)
        catalogue.delete_model(tenant_id=self.tenant_id, actor=self.actor, model_id=row.id)
        return self.changed(shown)


class AdapterCollection(TenantView):
    """LoRA adapters."""

    permissions = _LIST_CREATE

    @describe("adapters_list", "List adapters", answers=page_of(shapes.AdapterOut), parameters=PAGING, tag="models")
    def get(self, request: Request) -> Response:
        """By name."""
        return self.answer(page(request, queries.adapters(self.tenant_id), by="name").render(rows.adapter))

    @describe("adapters_create", "Declare an adapter", body=shapes.AdapterNew, answers=changed(shapes.AdapterOut), status=201, tag="models")
    def post(self, request: Request) -> Response:
        """Of a model that is declared."""
        wanted = parse(request, shapes.AdapterNew)
        with referred("model"):
            model_id = queries.model(self.tenant_id, wanted.model).id
        row = catalogue.create_adapter(tenant_id=self.tenant_id, actor=self.actor, model_id=model_id, name=wanted.name, revision=wanted.revision)
        return self.changed(rows.adapter(row), status=201)


class AdapterItem(TenantView):
    """One adapter, by id, or by name where only one model has it."""

    permissions = _READ_WRITE

    @describe("adapters_read", "Read an adapter", answers=shapes.AdapterOut, tag="models")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Its revision and generation."""
        return self.answer(rows.adapter(queries.adapter(self.tenant_id, reference)))

    @describe("adapters_change", "Change an adapter's revision", body=shapes.AdapterChange, answers=changed(shapes.AdapterOut), tag="models")
    def patch(self, request: Request, reference: str) -> Response:
        """Blocks cached under the old revision become unreachable."""
        revision = parse(request, shapes.AdapterChange).revision
        adapter_id = queries.adapter(self.tenant_id, reference).id
        row = catalogue.update_adapter(tenant_id=self.tenant_id, actor=self.actor, adapter_id=adapter_id, revision=revision)
        return self.changed(rows.adapter(row))

    @describe("adapters_delete", "Delete an adapter", answers=changed(shapes.AdapterOut), tag="models")
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Refused while an endpoint serves it."""
        row = queries.adapter(self.tenant_id, reference)
        shown = rows.adapter(row)
        catalogue.delete_adapter(tenant_id=self.tenant_id, actor=self.actor, adapter_id=row.id)
        return self.changed(shown)


class AdapterReload(TenantView):
    """Engines loaded other files under the same name."""

    permissions = {"POST": Permission.OPERATE}

    @describe("adapters_reload", "Raise an adapter's generation", body=shapes.ReasonGiven, answers=changed(shapes.AdapterOut), tag="models")
    def post(self, request: Request, reference: str) -> Response:
        """Nothing cached before may be reused."""
        reason = parse(request, shapes.ReasonGiven).reason
        adapter_id = queries.adapter(self.tenant_id, reference).id
        row = catalogue.reload_adapter(tenant_id=self.tenant_id, actor=self.actor, adapter_id=adapter_id, reason=reason)
        return self.changed(rows.adapter(row))
