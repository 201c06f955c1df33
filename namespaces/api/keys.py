"""The tenant key, the root key, and the operations on them. Nothing here can open a key: what is asked for, the ``keys`` worker does."""

from __future__ import annotations

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from namespaces.api.shapes import KeyOperationOut, RootKeyOut, RotateKey, TenantKeyOut, operation_out, version_out
from namespaces.core.keyring import root_id
from namespaces.services import keys, operations
from tenants.api.base import PlatformView, TenantView, describe
from tenants.api.bodies import parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.core.roles import Permission
from tenants.scoping import tenant_scope
from tenants.services import provisioning


class TenantKey(TenantView):
    """The key from which the tenant's salts are derived, by its version."""

    permissions = {"GET": Permission.READ}

    @describe("tenant_key_read", "Read the tenant key's versions", answers=TenantKeyOut, tag="tenant key")
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """Which version is in force and which are kept; never the key."""
        held = keys.material(self.tenant_id)
        versions = [version_out(row) for row in keys.versions(self.tenant_id)]
        return self.answer(TenantKeyOut(version=held.version if held else None, versions=versions))


class TenantKeyRotation(TenantView):
    """A new tenant key."""

    permissions = {"POST": Permission.CONFIGURE}

    @describe("tenant_key_rotate", "Rotate the tenant key", body=RotateKey, answers=changed(KeyOperationOut), status=202, tag="tenant key")
    def post(self, request: Request) -> Response:
        """Every salt of the tenant changes at once: everything it has cached becomes unreachable. While one is open, that one is the answer."""
        reason = parse(request, RotateKey).reason
        row = operations.request_tenant_rotation(tenant_id=self.tenant_id, actor=self.actor, reason=reason)
        return self.changed(operation_out(row), status=202)


class KeyOperationCollection(TenantView):
    """Operations on the tenant's key; in the platform's tenant, rotations of the root."""

    permissions = {"GET": Permission.READ}

    @describe("key_operations_list", "List operations on keys", answers=page_of(KeyOperationOut), parameters=PAGING, tag="tenant key")
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.answer(page(request, operations.listed(self.tenant_id)).render(operation_out))


class KeyOperationItem(TenantView):
    """One operation."""

    permissions = {"GET": Permission.READ}

    @describe("key_operations_read", "Read an operation on keys", answers=KeyOperationOut, tag="tenant key")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id: how far it is."""
        return self.answer(operation_out(operations.find(self.tenant_id, reference)))


class RootKey(PlatformView):
    """The root key, by its id."""

    @describe("root_key_read", "Read the root key's id", answers=RootKeyOut, tag="root key", in_tenant=False)
    def get(self, request: Request) -> Response:  # noqa: ARG002 - DRF's signature
        """For platform operators: which root the control plane seals to. Its public half tells; no process of the web holds the key."""
        public = settings.SEAL_PUBLIC_KEY
        return self.answer(RootKeyOut(root=root_id(public) if public else None))


class RootKeyRotation(PlatformView):
    """A rotation of the root key."""

    @describe("root_key_rotate", "Rotate the root key", body=RotateKey, answers=KeyOperationOut, status=202, tag="root key", in_tenant=False)
    def post(self, request: Request) -> Response:
        """For platform operators: moves every key and sealed value to the root that the control plane seals to. No salt changes. See docs/keys.md."""
        reason = parse(request, RotateKey).reason
        platform = provisioning.ensure_platform().id
        with tenant_scope(platform):
            row = operations.request_root_rotation(tenant_id=platform, actor=self.actor, reason=reason)
        return self.answer(operation_out(row), status=202)
