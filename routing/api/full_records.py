"""Whole records of an endpoint's decisions, for a while."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.services import full_records
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.schema import changed
from tenants.core.roles import Permission


class ExplainFor(Body):
    """For how long; 0 ends it."""

    minutes: Annotated[int, msgspec.Meta(ge=0, le=full_records.MAX_MINUTES)]


class ExplainOut(msgspec.Struct, frozen=True, kw_only=True):
    """Until when the endpoint's decisions keep all their candidates; null: only those do that somebody will look at."""

    id: UUID
    name: str
    explain_until: datetime | None


class EndpointExplain(TenantView):
    """Every decision with all that was weighed."""

    permissions = {"POST": Permission.OPERATE}

    @describe("endpoints_explain", "Keep whole decisions for a while", body=ExplainFor, answers=changed(ExplainOut), tag="endpoints")
    def post(self, request: Request, reference: str) -> Response:
        """Without this, candidates are kept for one request in a hundred, for errors and for missed targets."""
        minutes = parse(request, ExplainFor).minutes
        endpoint_id = queries.endpoint(self.tenant_id, reference).id
        row = full_records.ask(tenant_id=self.tenant_id, actor=self.actor, endpoint_id=endpoint_id, minutes=minutes, now=timezone.now())
        return self.changed(ExplainOut(id=row.id, name=row.name, explain_until=row.explain_until))
