"""URLs of this app's part of the control API, below /api/v1/.

``reference`` is an id, or a name that is unique in the tenant; names may hold slashes, so actions stand before the items they act on.
"""

from __future__ import annotations

from django.urls import URLPattern, URLResolver

from tenants.api.audit import AuditLog
from tenants.api.base import both
from tenants.api.keys import KeyCollection, KeyItem, KeyRotation
from tenants.api.members import InvitationCollection, InvitationItem, MemberCollection, MemberItem, SignInRulesView
from tenants.api.scopes import ScopeCollection, ScopeItem, ScopeRaise
from tenants.api.tenants import MeView, TenantCollection, TenantItem
from tenants.api.tokens import TokenCollection, TokenItem, TokenRotation

urlpatterns: list[URLPattern | URLResolver] = [
    *both("me", MeView, "me"),
    *both("tenants", TenantCollection, "tenants"),
    *both("tenants/<str:reference>", TenantItem, "tenant"),
    *both("members", MemberCollection, "members"),
    *both("members/<str:reference>", MemberItem, "member"),
    *both("invitations", InvitationCollection, "invitations"),
    *both("invitations/<str:reference>", InvitationItem, "invitation"),
    *both("sign-in-rules", SignInRulesView, "sign-in-rules"),
    *both("keys", KeyCollection, "keys"),
    *both("keys/<path:reference>/rotate", KeyRotation, "key-rotate"),
    *both("keys/<path:reference>", KeyItem, "key"),
    *both("tokens", TokenCollection, "tokens"),
    *both("tokens/<path:reference>/rotate", TokenRotation, "token-rotate"),
    *both("tokens/<path:reference>", TokenItem, "token"),
    *both("scopes", ScopeCollection, "scopes"),
    *both("scopes/<path:reference>/raise", ScopeRaise, "scope-raise"),
    *both("scopes/<path:reference>", ScopeItem, "scope"),
    *both("audit-log", AuditLog, "audit-log"),
]
