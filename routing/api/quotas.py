"""Quotas: what the tenant's requests may use, and what of it is used."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.core.quota import MAX_LIMIT, Of
from routing.models import Quota
from routing.services import quotas
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.core.roles import Permission

TAG = "quotas"
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] | None


class LimitOut(msgspec.Struct, frozen=True, kw_only=True):
    """One limit. ``used`` holds what is reserved for requests under way, and is null while nobody knows. ``reset_s``: seconds until the month ends,
    or until what was used has left the sliding minute."""

    limit: int
    used: int | None
    left: int | None
    reset_s: float | None


class QuotaOut(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of a tenant, scope (with those below it), key or endpoint may use; null: no such limit. ``found`` false: nothing has that
    name now."""

    id: UUID
    of: str
    name: str
    found: bool
    requests_per_minute: LimitOut | None
    tokens_per_minute: LimitOut | None
    tokens_per_month: LimitOut | None


class QuotaPut(Body):
    """The limits to be; those left out are none. ``name``: a scope's path, a key's or an endpoint's name; nothing for the tenant and the platform."""

    of: Of
    name: str = ""
    requests_per_minute: Limit = None
    tokens_per_minute: Limit = None
    tokens_per_month: Limit = None


class QuotaView(TenantView):
    """Base of what is done with quotas."""

    def shown(self, rows: list[Quota]) -> list[QuotaOut]:
        """Quotas with what is used."""
        return [_out(held) for held in quotas.standings(self.tenant_id, rows, timezone.now())]


class QuotaCollection(QuotaView):
    """All quotas of the tenant."""

    permissions = {"GET": Permission.READ, "PUT": Permission.CONFIGURE}

    @describe("quotas_list", "List quotas", answers=page_of(QuotaOut), parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """With what is used, what is left, and when it begins anew."""
        found = page(request, Quota.objects.filter(tenant_id=self.tenant_id), by="created_at")
        return self.answer({"results": self.shown(found.rows), "next": found.next})

    @describe("quotas_set", "Set a quota", body=QuotaPut, answers=changed(QuotaOut), tag=TAG)
    def put(self, request: Request) -> Response:
        """There is one for each name: setting it again replaces its limits and keeps what was used. All quotas that apply to a request must hold."""
        wanted = parse(request, QuotaPut)
        row = quotas.put(
            tenant_id=self.tenant_id,
            actor=self.actor,
            of=wanted.of,
            name=wanted.name,
            requests_per_minute=wanted.requests_per_minute,
            tokens_per_minute=wanted.tokens_per_minute,
            tokens_per_month=wanted.tokens_per_month,
            platform=self.may(Permission.PLATFORM),
        )
        return self.changed(self.shown([row])[0])


class QuotaItem(QuotaView):
    """One quota."""

    permissions = {"GET": Permission.READ, "DELETE": Permission.CONFIGURE}

    @describe("quotas_read", "Read a quota", answers=QuotaOut, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id."""
        return self.answer(self.shown([queries.quota(self.tenant_id, reference)])[0])

    @describe("quotas_remove", "Remove a quota", answers=changed(QuotaOut), tag=TAG)
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Routers let its requests through within a second. What was used under it is forgotten."""
        row = queries.quota(self.tenant_id, reference)
        (shown,) = self.shown([row])
        quotas.remove(tenant_id=self.tenant_id, actor=self.actor, quota_id=row.id, platform=self.may(Permission.PLATFORM))
        return self.changed(shown)


def _out(held: quotas.Held) -> QuotaOut:
    limits = {
        one.measure: LimitOut(limit=one.limit, used=one.used, left=one.left, reset_s=None if one.reset_s is None else round(one.reset_s, 1))
        for one in held.standings
    }
    return QuotaOut(
        id=held.row.id,
        of=held.row.of,
        name=held.row.name,
        found=held.found,
        requests_per_minute=limits.get("requests_per_minute"),
        tokens_per_minute=limits.get("tokens_per_minute"),
        tokens_per_month=limits.get("tokens_per_month"),
    )
