"""WHO: people, tenants, memberships, auth scopes, API keys, and the log of what they changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.crypto import salted_hmac

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
    second_factor_at = models.DateTimeField(null=True, blank=True)  # since when signing in needs a code too; the secret is a SecondFactor
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_lower_case")]

    def __str__(self) -> str:
        return self.email

    def get_session_auth_hash(self) -> str:
        """What every session of this person carries. It changes with the password and with the second factor: sessions from before end."""
        since = self.second_factor_at.isoformat() if self.second_factor_at else ""
        return salted_hmac("saltroute.session", f"{self.password}\0{since}", algorithm="sha256").hexdigest()

    def get_session_auth_fallback_hash(self) -> Iterator[str]:
        """None: another SECRET_KEY ends every session."""
        return iter(())


class SecondFactor(models.Model):
    """A person's TOTP secret, sealed under the sign-in key (tenants.core.second_factor). In force once ``User.second_factor_at`` is set."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, primary_key=True, related_name="+")
    secret = models.BinaryField(max_length=200)
    last_step = models.BigIntegerField(null=True, blank=True)  # the newest 30 s step whose code was taken; none is taken twice
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.user_id)


class RecoveryCode(models.Model):
    """One of the codes that stand in for a lost second factor. Only its digest is stored; each is taken once."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    digest = models.BinaryField(max_length=32)  # bound to the person, see tenants.core.second_factor
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "digest"], name="recovery_code_once")]

    def __str__(self) -> str:
        return str(self.id)


class PersonSession(models.Model):
    """A session of the console, as tenants.sessions keeps it. The cookie's key is stored as a digest alone; ``id`` names it to its owner."""

    session_key = models.CharField(max_length=64, primary_key=True)  # SHA-256 of the key, hexadecimal
    session_data = models.TextField()
    expire_date = models.DateTimeField(db_index=True)
    id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, blank=True, related_name="+")  # null until somebody has signed in
    created_at = models.DateTimeField(default=timezone.now)  # its life is counted from here
    last_seen_at = models.DateTimeField(default=timezone.now)
    peer_address = models.CharField(max_length=64, blank=True, default="")
    browser = models.CharField(max_length=200, blank=True, default="")

    def __str__(self) -> str:
        return str(self.id)


class OutgoingMail(models.Model):
    """A mail that waits for a worker. It holds no link and no token: the worker makes them when it sends.

    A wish to reset a password is queued whether or not the address has an account, so that asking takes the same work either way.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=24)  # tenants.services.mail.KINDS
    address = models.EmailField(max_length=254)
    invitation_digest = models.BinaryField(max_length=32, null=True, blank=True)
    attempts = models.IntegerField(default=0)
    next_at = models.DateTimeField(db_index=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class SignInCount(models.Model):
    """How often something of signing in happened to one person in a quarter of an hour (tenants.services.sign_ins). Gone when it was told."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    subject = models.UUIDField()  # the person's id; zero: all addresses without an account together
    kind = models.CharField(max_length=24)
    window_started_at = models.DateTimeField(db_index=True)
    attempts = models.BigIntegerField()
    peer_address = models.CharField(max_length=64, blank=True, default="")  # of the last one
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["subject", "kind", "window_started_at"], name="sign_in_count_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.attempts}"


class Tenant(models.Model):
    """A customer. ``config_version`` rises under a row lock with every change that routers must learn of."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=63)
    name = models.CharField(max_length=200)
    config_version = models.BigIntegerField(default=1)
    epoch = models.IntegerField(default=1)
    suspended = models.BooleanField(default=False)
    require_second_factor = models.BooleanField(default=False)  # of its members in the console; control tokens are not people
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
    # Since when the person has been here themselves. Before that others see their address alone: anybody's can be added.
    entered_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "user"], name="membership_once_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id}:{self.role}"


class Invitation(TenantRow):
    """An e-mail address that was offered a role. The link's token follows from ``nonce`` and the installation's secret; its digest finds the row."""

    email = models.EmailField(max_length=254)
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in Role])
    nonce = models.BinaryField(max_length=32)
    digest = models.BinaryField(max_length=32)  # SHA-256 of the token
    invited_by = models.CharField(max_length=254)
    mail = models.CharField(max_length=8, default="queued")  # queued, sent, failed, none
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta(TenantRow.Meta):
        constraints = [
            *TenantRow.Meta.constraints,
            models.UniqueConstraint(fields=["digest"], name="invitation_digest_unique"),
            models.UniqueConstraint(
                fields=["tenant", "email"], condition=models.Q(accepted_at=None, revoked_at=None), name="invitation_open_once_per_address"
            ),
        ]

    def __str__(self) -> str:
        return self.email


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


class FormerText(TenantRow):
    """The digest of a text that a key had until it got another, at ``created_at``. Append-only: no key of any tenant gets that text again."""

    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+", db_constraint=False)
    digest = models.BinaryField(max_length=32)  # SHA-256 of the whole text, 32 bytes

    class Meta(TenantRow.Meta):
        constraints = [*TenantRow.Meta.constraints, models.UniqueConstraint(fields=["digest"], name="former_text_once")]

    def __str__(self) -> str:
        return str(self.key_id)


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
