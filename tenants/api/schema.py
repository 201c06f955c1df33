"""The API's description of itself: structs as OpenAPI components, and the ways to authenticate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from tenants.queries import TENANT_HEADER

F = TypeVar("F", bound=Callable[..., Any])


class StructSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]  # drf-spectacular's registration hook has no annotations
    """A msgspec struct is its own serializer."""

    target_class = "msgspec.Struct"
    match_subclasses = True

    def get_name(self, auto_schema: Any, direction: Any) -> str:  # noqa: ARG002 - drf-spectacular's signature
        """The component's name."""
        return str(self._target().__name__)

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:  # noqa: ARG002 - drf-spectacular's signature
        """The component's schema; structs inside it become components too."""
        target = self._target()
        _, components = msgspec.json.schema_components([target], ref_template="#/components/schemas/{name}")
        own: dict[str, Any] = components.pop(target.__name__)
        classes = _classes(msgspec.inspect.type_info(target))
        for name, schema in components.items():
            # Known by its class, so that two classes of one name are reported and one class used twice is not.
            part = ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, object=classes[name], schema=schema)  # type: ignore[no-untyped-call]  # not annotated
            auto_schema.registry.register_on_missing(part)
        return own

    def _target(self) -> type[msgspec.Struct]:
        target: Any = self.target
        return target if isinstance(target, type) else type(target)


def _classes(root: msgspec.inspect.Type) -> dict[str, type]:
    """The structs and enums inside a type, by the name of their component."""
    found: dict[str, type] = {}
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (msgspec.inspect.StructType, msgspec.inspect.EnumType)) and node.cls.__name__ not in found:
            found[node.cls.__name__] = node.cls
            waiting.extend(field.type for field in getattr(node, "fields", ()))
        waiting.extend(inner for name in ("item_type", "key_type", "value_type", "type") if (inner := getattr(node, name, None)) is not None)
        waiting.extend(inner for name in ("types", "item_types") for inner in getattr(node, name, ()))
    return found


class ControlTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # drf-spectacular's registration hook has no annotations
    """A control token in the Authorization header."""

    target_class = "tenants.api.authentication.ControlTokenAuthentication"
    name = "controlToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:  # noqa: ARG002 - drf-spectacular's signature
        """The scheme."""
        return {"type": "http", "scheme": "bearer", "description": "A control token (srct-...), shown once when it was issued."}


class ConsoleSessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # drf-spectacular's registration hook has no annotations
    """The console's session."""

    target_class = "tenants.api.authentication.ConsoleSession"
    name = "consoleSession"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:  # noqa: ARG002 - drf-spectacular's signature
        """The scheme."""
        said = "The console's session; changes also need X-CSRFToken."
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": said}


class FieldFault(msgspec.Struct, frozen=True):
    """One field at fault."""

    field: str
    message: str


class Fault(msgspec.Struct, frozen=True):
    """Why a request was refused. ``code`` never changes; ``field`` is the path of the input at fault."""

    code: str
    message: str
    field: str | None = None
    details: list[FieldFault] | msgspec.UnsetType = msgspec.UNSET


class Error(msgspec.Struct, frozen=True):
    """The shape of every error."""

    error: Fault


PAGING = (
    OpenApiParameter("limit", int, description="Rows per page, 1 to 200; 50 without it."),
    OpenApiParameter("cursor", str, description="``next`` of the page before."),
)
_TENANT = OpenApiParameter(
    TENANT_HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Slug of the tenant to act in: for people with several memberships and for platform operators.",
)
_REASONS = {
    400: "Malformed or invalid; field says where.",
    401: "No valid credential.",
    403: "Not allowed.",
    404: "Absent, or not yours.",
    409: "The state does not allow it.",
}
_made: dict[tuple[str, type], type[msgspec.Struct]] = {}


def describe(
    operation: str,
    summary: str,
    *,
    answers: type | dict[str, Any] | None,
    body: type | dict[str, Any] | None = None,
    status: int = 200,
    parameters: tuple[OpenApiParameter, ...] = (),
    tag: str,
    in_tenant: bool = True,
    extra: Mapping[int | tuple[int, str], Any] | None = None,
) -> Callable[[F], F]:
    """Describe one method of a view. ``operation`` is unique and stable: generated clients name their functions by it."""
    responses: dict[Any, Any] = {status: answers, **(extra or {})}
    for code, reason in _REASONS.items():
        responses.setdefault(code, OpenApiResponse(Error, description=reason))
    decorate: Callable[[F], F] = extend_schema(
        operation_id=operation,
        summary=summary,
        request=body,
        responses=responses,
        parameters=[*parameters, *((_TENANT,) if in_tenant else ())],
        tags=[tag],
    )
    return decorate


def page_of(row: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The shape of a list of ``row``."""
    return _make("List", row, lambda: msgspec.defstruct(f"{row.__name__}List", [("results", list[row]), ("next", str | None)]))  # type: ignore[valid-type]  # a type made at run time


def changed(row: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The shape of ``row`` as a change answers it: with the version of the tenant's configuration that holds the change."""
    return _make("Changed", row, lambda: msgspec.defstruct(f"{row.__name__}Changed", [("config_version", int)], bases=(row,), kw_only=True))


def _make(kind: str, row: type[msgspec.Struct], build: Callable[[], type[msgspec.Struct]]) -> type[msgspec.Struct]:
    if (kind, row) not in _made:
        _made[kind, row] = build()
    return _made[kind, row]
