"""The Idempotency-Key header: a client that repeats a request after a time-out does not do it twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.api.base import TenantView
from tenants.core.errors import Invalid
from tenants.services import idempotency

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
MAX_CHARACTERS = 200
PARAMETER = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="1 to 200 visible ASCII characters, kept for 24 h. A repeat is given the first answer again, without the secret that was shown once.",
)
_SHOWN_ONCE = "secret"


def once(view: TenantView, request: Request, act: Callable[[], Response]) -> Response:
    """Run ``act`` unless this request was answered before under the same Idempotency-Key; without the header, just run it.

    Raises:
        Invalid: the header is malformed.
        Conflict: the key was used for another request, or by another caller.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return act()
    if not 1 <= len(key) <= MAX_CHARACTERS or not all("!" <= character <= "~" for character in key):
        raise Invalid(f"Use 1 to {MAX_CHARACTERS} visible ASCII characters.", field=HEADER)
    earlier = idempotency.claim(tenant_id=view.tenant_id, key=key, request_digest=_digest(view, request), now=timezone.now())
    if earlier is not None:
        return view.answer(earlier.body, status=earlier.status, headers={REPLAYED: "true"})
    response = act()
    kept = {name: None if name == _SHOWN_ONCE else value for name, value in response.data.items()}
    idempotency.complete(tenant_id=view.tenant_id, key=key, status=response.status_code, body=kept)
    return response


def _digest(view: TenantView, request: Request) -> bytes:
    asked = [request.method, request.path.rstrip("/"), view.actor.kind, view.actor.id, request.data]
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).digest()
