"""URLs of this app's part of the control API, below /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver

from namespaces.api import keys
from tenants.api.base import both

urlpatterns: list[URLPattern | URLResolver] = [
    *both("tenant-key", keys.TenantKey, "tenant-key"),
    *both("tenant-key/rotate", keys.TenantKeyRotation, "tenant-key-rotate"),
    *both("key-operations", keys.KeyOperationCollection, "key-operations"),
    *both("key-operations/<str:reference>", keys.KeyOperationItem, "key-operation"),
    *both("root-key", keys.RootKey, "root-key"),
    *both("root-key/rotate", keys.RootKeyRotation, "root-key-rotate"),
]
