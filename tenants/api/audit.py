"""The audit log."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import queries
from tenants.api.base import TenantView, describe
from tenants.api.pagination import page
from tenants.api.schema import PAGING, page_of
from tenants.api.shapes import AuditOut, audit_out
from tenants.core.errors import Invalid
from tenants.core.roles import Permission

_FILTERS = (
    OpenApiParameter("action", str, description="A whole action such as api_key.revoke, or its noun."),
    OpenApiParameter("object_id", str, description="The id of what was changed."),
)


class AuditLog(TenantView):
    """What was changed in the tenant, by whom; append-only."""

    permissions = {"GET": Permission.MEMBERS}

    @describe("audit_log_list", "List the audit log", answers=page_of(AuditOut), parameters=(*PAGING, *_FILTERS), tag="audit log")
    def get(self, request: Request) -> Response:
        """Newest first; refused attempts to change something are in it as request.denied."""
        wanted = request.query_params.get("object_id")
        object_id = None if wanted is None else queries.parse_uuid(wanted)
        if wanted is not None and object_id is None:
            raise Invalid("This is not an id.", field="object_id")
        action = request.query_params.get("action")
        if action is not None and "\0" in action:
            raise Invalid("This is not an action.", field="action")
        return self.answer(page(request, queries.audit_log(self.tenant_id, action=action, object_id=object_id)).render(audit_out))
