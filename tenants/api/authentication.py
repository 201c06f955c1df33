"""Who calls the control API: a control token, or a person signed in to the console.

Every reason to refuse a token (unknown, revoked, expired, an inference key, a deleted tenant) gives the same 401, so that guessing learns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from tenants.actor import Actor
from tenants.api.errors import CHALLENGE, UNAUTHENTICATED
from tenants.core.roles import Role
from tenants.models import User
from tenants.services import key_use, second_factors

_SCHEMES = ("bearer", "token")


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. A token acts in its own tenant (a platform token in any); a person where they are a member."""

    actor: Actor
    platform: bool
    user_id: UUID | None = None
    token_tenant_id: UUID | None = None
    token_role: Role | None = None

    @property
    def is_authenticated(self) -> bool:
        """Asked by DRF."""
        return True


def peer_address(request: HttpRequest | Request) -> str:
    """The socket's peer. Forwarding headers are claims of the client and are not read."""
    return str(request.META.get("REMOTE_ADDR") or "")[:64]


class ControlTokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer srct-...`` (or ``Token srct-...``)."""

    def authenticate(self, request: Request) -> tuple[Caller, None] | None:
        """The caller; None without the header, so that a session may follow."""
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        scheme, _, presented = header.partition(" ")
        if scheme.lower() not in _SCHEMES:
            raise AuthenticationFailed(UNAUTHENTICATED)
        token = key_use.authenticate_control(presented.strip(), now=timezone.now())
        if token is None:
            raise AuthenticationFailed(UNAUTHENTICATED)
        actor = Actor(kind="token", label=token.name, id=token.id, peer_address=peer_address(request))
        return Caller(actor=actor, platform=token.platform, token_tenant_id=token.tenant_id, token_role=Role(token.role)), None

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - DRF's signature
        """The challenge of a 401."""
        return CHALLENGE


class ConsoleSession(SessionAuthentication):
    """The console's session cookie; changes need the CSRF token."""

    def authenticate(self, request: Request) -> Any:
        """The caller; None when nobody is signed in."""
        signed_in = super().authenticate(request)
        if signed_in is None:
            return None
        user: User = signed_in[0]
        return caller_of(user, peer_address(request)), None


def caller_of(user: User, peer: str) -> Caller:
    """A signed-in person as a caller. An operator who owes a second factor is none before they have it."""
    platform = user.is_platform_operator and not (user.second_factor_at is None and second_factors.operator_needs_one(user))
    return Caller(actor=Actor(kind="user", label=user.email, id=user.id, peer_address=peer), platform=platform, user_id=user.id)
