"""What requests' time went into, over many decisions."""

from __future__ import annotations

from datetime import datetime
from typing import cast, get_args

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api.decisions import DecisionView, moment, reference, word
from routing.services.causes import By, Causes, summed
from tenants.api.base import describe
from tenants.core.roles import Permission

_PARAMETERS = (
    OpenApiParameter("by", str, enum=list(get_args(By)), description="What to sum by; by endpoint without it."),
    OpenApiParameter("endpoint", str, description="Id or name of an endpoint."),
    OpenApiParameter(
        "since",
        datetime,
        description="Started at or after; an hour before the end without it, at most eight days. Rounded down to a whole step: a minute, of older"
        " times ten minutes, of days an hour.",
    ),
    OpenApiParameter("until", datetime, description="Started before; now without it."),
)


class CauseCollection(DecisionView):
    """Why requests took their time."""

    permissions = {"GET": Permission.READ}

    @describe("causes_list", "Sum what requests' time went into", answers=Causes, parameters=_PARAMETERS, tag="decisions")
    def get(self, request: Request) -> Response:
        """Over all decisions of the period, out of rollups. On a pool of the platform's, what tells of others is one part."""
        query = request.query_params
        return self.answer(
            summed(
                self.tenant_id,
                by=cast(By, word(request, "by", get_args(By)) or "endpoint"),
                readable=self.readable(),
                endpoint_id=reference(query.get("endpoint"), lambda ref: queries.endpoint(self.tenant_id, ref).id, "endpoint"),
                since=moment(query.get("since"), "since"),
                until=moment(query.get("until"), "until"),
            )
        )
