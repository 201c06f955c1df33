"""Bases of every view of the control API: parse, call a service, answer.

:class:`TenantView` authenticates, finds the tenant, asks the permission of the method and opens the tenant scope, and only then runs the method.
A refusal leaves the method as an exception, through the scope, so that everything the request wrote is rolled back before it becomes an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast
from uuid import UUID

import msgspec
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from tenants import queries
from tenants.actor import Actor
from tenants.api import schema
from tenants.api.authentication import Caller
from tenants.api.bodies import MAX_BODY_BYTES, StrictJsonParser, receive
from tenants.core.errors import Forbidden, NotFound
from tenants.core.roles import Permission, Role, permissions
from tenants.models import PLATFORM_SLUG, Tenant, User
from tenants.scoping import tenant_scope
from tenants.services import denials, second_factors

SAFE_METHODS = ("GET", "HEAD")
Handler = Callable[..., Response]
describe = schema.describe  # importing that module registers how structs and credentials are described


def both(route: str, view: type[APIView], name: str) -> list[URLPattern]:
    """A route with and without its trailing slash; the description lists it once. With it comes first: a ``path`` converter would swallow it."""
    return [path(f"{route}/", view.as_view(schema=None)), path(route, view.as_view(), name=name)]


class ApiView(APIView):
    """A view for anybody with a credential. No tenant scope is open: a method that needs one opens it."""

    parser_classes = [StrictJsonParser]
    http_method_names = ["get", "post", "put", "patch", "delete", "head"]
    max_body_bytes: ClassVar[int] = MAX_BODY_BYTES

    @property
    def caller(self) -> Caller:
        """Who calls."""
        return cast(Caller, self.request.user)

    @property
    def actor(self) -> Actor:
        """The caller as services and the audit log know it."""
        return self.caller.actor

    @property
    def default_response_headers(self) -> dict[str, str]:
        """Nothing of this API may be kept by a cache, or be given to another credential."""
        return {"Allow": ", ".join(self.allowed_methods), "Cache-Control": "private, no-store", "Vary": "Authorization, Cookie"}

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """DRF's own dispatch, with :meth:`run` around the method so that a subclass can hold a transaction open for exactly that long."""
        self.args, self.kwargs = args, kwargs
        call = self.initialize_request(request, *args, **kwargs)
        self.request = call
        self.headers = self.default_response_headers
        response: HttpResponseBase
        try:
            self.initial(call, *args, **kwargs)
            name = (call.method or "").lower()
            handler = getattr(self, name, None) if name in self.http_method_names else None
            response = self.run(call, handler or self.http_method_not_allowed, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request; what is no refusal is raised again
            response = self.handle_exception(error)
        self.response = self.finalize_response(call, response, *args, **kwargs)
        return self.response

    def run(self, request: Request, handler: Handler, *args: Any, **kwargs: Any) -> Response:
        """Run the method."""
        return handler(request, *args, **kwargs)

    def answer(self, shape: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        """Answer with a struct, or plain data."""
        return Response(msgspec.to_builtins(shape), status=status, headers=headers)


class PlatformView(ApiView):
    """A view for platform operators alone. No tenant scope is open."""

    def run(self, request: Request, handler: Handler, *args: Any, **kwargs: Any) -> Response:
        """Refuse everybody else, then run the method."""
        require_platform(self.caller)
        return handler(request, *args, **kwargs)


class TenantView(ApiView):
    """A view inside one tenant. ``permissions`` names the permission of each method it has."""

    permissions: ClassVar[dict[str, Permission]] = {}
    tenant: Tenant
    role: Role
    platform: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        unguarded = [name for name in ("get", "post", "put", "patch", "delete") if hasattr(cls, name) and name.upper() not in cls.permissions]
        if unguarded:
            raise TypeError(f"{cls.__name__} names no permission for {', '.join(unguarded)}")

    @property
    def tenant_id(self) -> UUID:
        """The tenant that the session is scoped to."""
        return self.tenant.id

    @property
    def actor(self) -> Actor:
        """The caller with what they may do here; services ask it again when a change is recorded."""
        return replace(self.caller.actor, permissions=permissions(self.role, platform_operator=self.platform))

    def run(self, request: Request, handler: Handler, *args: Any, **kwargs: Any) -> Response:
        """Find the tenant, take in the body, open the scope, ask the permission, run the method; a refusal rolls everything back."""
        if handler == self.http_method_not_allowed:
            return handler(request, *args, **kwargs)
        tenant_id, slug = self._find(request)
        if request.method not in SAFE_METHODS and self.may(self.permissions[request.method or ""]):
            receive(request, self.max_body_bytes)  # of whoever may send it, and before a transaction is open: a client may be slow
        try:
            with tenant_scope(tenant_id):
                self.tenant = self._enter(tenant_id, slug)
                self._permit(request)
                return handler(request, *args, **kwargs)
        except (Forbidden, NotFound) as refusal:
            if request.method not in SAFE_METHODS:
                denials.record(tenant_id=tenant_id, actor=self.actor, method=request.method or "", path=request.path, code=refusal.code)
            raise

    def may(self, permission: Permission) -> bool:
        """Whether the caller may do more than the method asks for."""
        return permission in permissions(self.role, platform_operator=self.platform)

    def changed(self, shape: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        """Answer a change: the resource, and the version of the tenant's configuration that holds it."""
        version = Tenant.objects.values_list("config_version", flat=True).get(id=self.tenant_id)
        return self.answer({**msgspec.to_builtins(shape), "config_version": version}, status=status, headers=headers)

    def _find(self, request: Request) -> tuple[UUID, str | None]:
        """The tenant to act in, and the slug it must have; sets the caller's role there."""
        caller, slug = self.caller, request.headers.get(queries.TENANT_HEADER)
        self.platform = caller.platform
        if caller.user_id is not None:
            person = User.objects.get(id=caller.user_id)
            seat = queries.seat_of_user(person, slug)
            if second_factors.missing(person, seat):
                raise Forbidden("A second factor is required here: set it up on your account page in the console.")
            self.role = seat.role
            return seat.tenant_id, None
        self.role = Role.OWNER if caller.platform else cast(Role, caller.token_role)
        if caller.platform:
            tenant_id = queries.tenant_id_of(slug or PLATFORM_SLUG)
            if tenant_id is None:
                raise NotFound
            return tenant_id, None
        return cast(UUID, caller.token_tenant_id), slug

    def _enter(self, tenant_id: UUID, slug: str | None) -> Tenant:
        tenant = queries.tenant(tenant_id)
        if slug is not None and tenant.slug != slug:
            raise NotFound
        return tenant

    def _permit(self, request: Request) -> None:
        method = "GET" if request.method == "HEAD" else request.method or ""
        if not self.may(self.permissions[method]):
            raise Forbidden(f"This needs the permission {self.permissions[method].value!r}.")
        if self.tenant.suspended and method != "GET" and not self.platform:
            raise Forbidden("This tenant is suspended: it can be read, not changed.")


def require_platform(caller: Caller) -> None:
    """Refuse whoever is no platform operator.

    Raises:
        Forbidden: a tenant's own caller, whatever their role there.
    """
    if not caller.platform:
        raise Forbidden("This is for platform operators.")
