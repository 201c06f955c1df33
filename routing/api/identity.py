"""Cache identities: which one a request gets and why, and the events that changed them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing.services import explanation, identity_events
from routing.services.explanation import CONTEXT_HEADER, SCOPE_HEADER, Explained
from routing.services.identity_events import Impact, RateFrom
from tenants.api.base import TenantView, describe
from tenants.api.pagination import Page, page
from tenants.api.schema import PAGING, page_of
from tenants.core.errors import Invalid
from tenants.core.roles import Permission
from tenants.models import AuditEntry

_ASKED = (
    OpenApiParameter("key", str, required=True, description="Id or name of an inference key."),
    OpenApiParameter("model", str, required=True, description="The model name that clients send."),
    OpenApiParameter("scope", str, description=f"As a client sends it in {SCOPE_HEADER}; the key's own without it."),
    OpenApiParameter("context", str, description=f"As a client sends it in {CONTEXT_HEADER}."),
    OpenApiParameter("cache_salt", str, description="The client's own subdivision, where the endpoint allows one."),
)


class ComponentOut(msgspec.Struct, frozen=True, kw_only=True):
    """One component of an identity. An ``absent`` one adds nothing to the encoding; a null ``value`` of another is encoded as null."""

    name: str
    source: str
    absent: bool
    value: Any


class ChangeOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could happen and the components it would change; none: the same blocks stay shared."""

    what: str
    components: list[str]


class ExplanationOut(msgspec.Struct, frozen=True, kw_only=True):
    """An identity in encoding order, without any key or salt."""

    key: str
    model: str
    scope: str
    sharing: str
    shared_with: str
    schema_version: int
    tenant_key_version: int | None
    notes: list[str]
    components: list[ComponentOut]
    changes: list[ChangeOut]


class ImpactOut(msgspec.Struct, frozen=True, kw_only=True):
    """What an event reached: namespaces seen in the 7 days before it, and what computing the hour before it again is expected to cost.

    ``cold_seconds`` is prefill time of one replica at a rate taken from prompts of at least 2000 computed tokens, else from what routers had learned,
    else from shorter prompts; ``rate_seen`` false: at the router's default rate.
    """

    namespaces: int
    cold_tokens: int
    cold_seconds: float
    prefill_tokens_per_second: float
    rate_seen: bool
    rate_from: RateFrom


class IdentityEventOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that made cached blocks unreachable. ``actor`` is null where the audit log is closed; ``impact`` where counting took too long."""

    id: UUID
    at: datetime
    action: str
    object_id: UUID | None
    object: str
    components: list[str]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str
    actor: str | None
    impact: ImpactOut | None


class NamespaceExplain(TenantView):
    """Which identity a request gets."""

    permissions = {"GET": Permission.READ}

    @describe("namespaces_explain", "Explain a cache identity", answers=ExplanationOut, parameters=_ASKED, tag="cache identity")
    def get(self, request: Request) -> Response:
        """By the router's own code, from the configuration as it is now."""
        asked = {parameter.name: _text(request, parameter.name) for parameter in _ASKED}
        for required in ("key", "model"):
            if asked[required] is None:
                raise Invalid("This parameter is required.", field=required)
        headers = {header: value for header, value in ((SCOPE_HEADER, asked["scope"]), (CONTEXT_HEADER, asked["context"])) if value is not None}
        answer = explanation.explain(
            tenant_id=self.tenant_id, key=asked["key"] or "", model=asked["model"] or "", headers=headers, cache_salt=asked["cache_salt"]
        )
        return self.answer(_explanation(answer))


class IdentityEvents(TenantView):
    """What made cached blocks unreachable."""

    permissions = {"GET": Permission.READ}

    @describe("identity_events_list", "List identity events", answers=page_of(IdentityEventOut), parameters=PAGING, tag="cache identity")
    def get(self, request: Request) -> Response:
        """Newest first: who, when, why, how many namespaces, and the expected cold cost."""
        found: Page[AuditEntry] = page(request, identity_events.events(self.tenant_id))
        impacts = identity_events.impacts(self.tenant_id, found.rows)
        named = self.may(Permission.MEMBERS)
        return self.answer(found.render(lambda row: _event(row, impacts.get(row.id), named=named)))


def _text(request: Request, name: str) -> str | None:
    value = request.query_params.get(name)
    if value is not None and "\0" in value:
        raise Invalid("This holds a NUL character.", field=name)
    return value


def _explanation(answer: Explained) -> ExplanationOut:
    identity = answer.identity
    return ExplanationOut(
        key=answer.key,
        model=answer.model,
        scope=answer.scope,
        sharing=identity.sharing,
        shared_with=identity.shared_with,
        schema_version=identity.schema,
        tenant_key_version=answer.key_version,
        notes=list(answer.notes),
        components=[ComponentOut(name=one.name, source=one.source, absent=one.absent, value=one.value) for one in identity.components],
        changes=[ChangeOut(what=one.what, components=list(one.components)) for one in identity.changes],
    )


def _event(row: AuditEntry, impact: Impact | None, *, named: bool) -> IdentityEventOut:
    return IdentityEventOut(
        id=row.id,
        at=row.created_at,
        action=row.action,
        object_id=row.object_id,
        object=row.object_label,
        components=identity_events.components(row),
        before=row.before,
        after=row.after,
        reason=row.reason,
        actor=row.actor_label if named else None,
        impact=None if impact is None else _impact(impact),
    )


def _impact(impact: Impact) -> ImpactOut:
    return ImpactOut(
        namespaces=impact.namespaces,
        cold_tokens=impact.cold_tokens,
        cold_seconds=round(impact.cold_s, 3),
        prefill_tokens_per_second=round(impact.prefill_tokens_per_s, 1),
        rate_seen=impact.rate_seen,
        rate_from=impact.rate_from,
    )
