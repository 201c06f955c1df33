"""WHO: people, tenants, memberships, auth scopes, API keys, and the log of what they changed."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models.functions import Lower

from tenants.core.api_key import Kind
from tenants.core.roles import Role

PLATFORM_SLUG = "platform"  # the tenant row that owns platform pools; it has no inference keys


class UserManager(BaseUserManager["User"]):
    """Creates users by e-mail; Django's own createsuperuser is not offered, services.accounts is the door."""

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(email=(username or "").strip().lower())


class User(AbstractBaseUser):
    """A person. Signs in with e-mail and password; what they may do comes from memberships, or from being a platform operator."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(max_length=254, unique=True)
    name = models.CharField(max_length=200, blank=True, default="")
    is_active = models.BooleanField(default=True)
    is_platform_operator = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_lower_case")]

    def __str__(self) -> str:
        return self.email


class Tenant(models.Model):
    """A customer. ``config_version`` rises under a row lock with every change that routers must learn of."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=63)
    name = models.CharField(max_length=200)
    config_version = models.BigIntegerField(default=1)
    epoch = models.IntegerField(default=1)
    suspended = models.BooleanField(default=False)
    deleted_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["slug"], name="tenant_slug_unique")]

    def __str__(self) -> str:
        return self.slug


class TenantRow(models.Model):
    """Base of every table with tenant rows. The migration that creates one forces row-level security; a contract test finds any without."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
        constraints: ClassVar[list[Any]] = [
            # The target of composite foreign keys (tenant_id, id).
            models.UniqueConstraint(fields=["tenant", "id"], name="%(app_label)s_%(class)s_tenant_id"),
        ]


class Membership(TenantRow):
    """A person's role in a tenant."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in Role])

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "user"], name="membership_once_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id}:{self.role}"


class Scope(TenantRow):
    """An auth scope. Raising ``version`` makes everything cached under the old one unreachable, for it and all scopes below it."""

    path = models.CharField(max_length=520, blank=True)  # "" is the root, which every tenant has
    version = models.IntegerField(default=1)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "path"], name="scope_path_per_tenant"),
        ]

    def __str__(self) -> str:
        return self.path or "(root)"


class ApiKey(TenantRow):
    """An inference key or a control token. Only its digest is stored; the key itself is shown once."""

    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in Kind])
    name = models.CharField(max_length=100)
    shown = models.CharField(max_length=16)  # first characters, for recognition
    digest = models.BinaryField(max_length=32)  # SHA-256 of the whole key, 32 bytes
    scope = models.ForeignKey(Scope, on_delete=models.PROTECT, null=True, blank=True, related_name="+", db_constraint=False)  # inference keys
    role = models.CharField(max_length=16, blank=True, default="")  # control tokens
    platform = models.BooleanField(default=False)  # a platform operator's control token; lives in the platform tenant
    endpoints = models.JSONField(null=True, blank=True)  # list of endpoint names it may use; null = all
    created_by = models.CharField(max_length=254, blank=True, default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["digest"], name="api_key_digest_unique"),
            models.UniqueConstraint(fields=["tenant", "kind", "name"], condition=models.Q(revoked_at=None), name="api_key_name_per_tenant"),
        ]

    def __str__(self) -> str:
        return self.name


class AuditEntry(TenantRow):
    """One change: who, what, before and after. Append-only: the app role may not update or delete it. Never holds a secret."""

    actor_kind = models.CharField(max_length=16)  # user, token, system
    actor_id = models.UUIDField(null=True, blank=True)
    actor_label = models.CharField(max_length=254)
    peer_address = models.CharField(max_length=64, blank=True, default="")
    action = models.CharField(max_length=64)  # noun.verb, such as api_key.revoke
    object_id = models.UUIDField(null=True, blank=True)
    object_label = models.CharField(max_length=300, blank=True, default="")
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True, default="")
    config_version = models.BigIntegerField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        indexes = [models.Index(fields=["tenant", "-created_at"], name="audit_by_time")]

    def __str__(self) -> str:
        return f"{self.action} {self.object_label}"


class IdempotencyRecord(TenantRow):
    """An Idempotency-Key seen from a caller: a repeat with the same request gets the same answer, without the secret it showed once."""

    key = models.CharField(max_length=200)
    request_digest = models.BinaryField(max_length=32)
    status = models.IntegerField()
    body = models.JSONField()

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "key"], name="idempotency_key_per_tenant"),
        ]

    def __str__(self) -> str:
        return self.key
