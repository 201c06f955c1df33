"""The error shape of the control API: ``{"error": {"code", "message", "field"}}``, plus ``details`` where several fields are at fault.

One place turns every refusal into an answer, so that absent and not-yours, and every reason for a 401, are the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connection
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from tenants.constraints import violated
from tenants.core.errors import Conflict, Forbidden, NotFound, Refusal, Unauthenticated, Unavailable

CHALLENGE = 'Bearer realm="saltroute"'
UNAUTHENTICATED = "A valid control token or a signed-in session is required."
_FOREIGN_KEY_VIOLATION = "23503"
# What PostgreSQL says while it answers and cannot write: to be mended by whoever runs it, and not by trying again.
_NO_CHANGES = {"53100": "its disk is full", "25006": "it is read-only"}
_log = logging.getLogger(__name__)


class TooLarge(Refusal):
    """The body is larger than this route accepts."""

    code = "too_large"
    http_status = 413


def body(code: str, message: str, field: str | None = None, details: list[dict[str, str]] | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    error: dict[str, Any] = {"code": code, "message": message, "field": field}
    if details is not None:
        error["details"] = details
    return {"error": error}


def handle(error: Exception, context: dict[str, Any]) -> Response | None:  # noqa: ARG001 - DRF's signature
    """Answer a refusal. None for our own mistakes: they stay exceptions, become a 500 and are logged with their traceback."""
    if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
        # The tenant scope has rolled back by now. Were requests atomic, DRF's turning the error into a response would commit the rest.
        connection.set_rollback(True)
    if isinstance(error, exceptions.APIException):
        return _from_drf(error)
    refusal = _refusal(error)
    return None if refusal is None else answer(refusal)


def answer(refusal: Refusal) -> Response:
    """A refusal as a response."""
    everything = [(refusal.field or "", refusal.message), *refusal.others] if refusal.others else []
    details = [{"field": field, "message": message} for field, message in everything] or None
    response = Response(body(refusal.code, refusal.message, refusal.field, details), status=refusal.http_status)
    if refusal.http_status == 401:
        response.headers["WWW-Authenticate"] = CHALLENGE
    return response


def _refusal(error: Exception) -> Refusal | None:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Http404):
        return NotFound()
    if isinstance(error, DjangoPermissionDenied):
        return Forbidden("You may not do this.")
    if isinstance(error, DatabaseError) and (why := _NO_CHANGES.get(getattr(error.__cause__, "sqlstate", None) or "")) is not None:
        _log.error("the database takes no changes: %s", why)
        return Unavailable(f"The database takes no changes at the moment ({why}); nothing was changed.")
    if isinstance(error, (OperationalError, InterfaceError)):
        _log.warning("the database is away: %s", type(error).__name__)
        return Unavailable("The database cannot be reached; nothing was changed.")
    if isinstance(error, IntegrityError) and getattr(error.__cause__, "sqlstate", None) == _FOREIGN_KEY_VIOLATION:
        # References are checked at commit: somebody removed their target after we looked.
        _log.info("a reference went away: %s", violated(error))
        return Conflict("Something this refers to was removed, or is still in use. Nothing was changed.")
    return None


def _from_drf(error: exceptions.APIException) -> Response:
    if isinstance(error, (exceptions.NotAuthenticated, exceptions.AuthenticationFailed)):
        return answer(Unauthenticated(UNAUTHENTICATED))
    if isinstance(error, exceptions.NotFound):
        return answer(NotFound())
    if isinstance(error, exceptions.ValidationError):
        details = list(_details(error.detail, ""))
        first = details[0] if details else {"field": "", "message": "Invalid."}
        return Response(body("invalid", first["message"], first["field"] or None, details), status=400)
    code = {
        exceptions.ParseError: "malformed",
        exceptions.PermissionDenied: "forbidden",
        exceptions.MethodNotAllowed: "method_not_allowed",
        exceptions.UnsupportedMediaType: "unsupported_media_type",
        exceptions.NotAcceptable: "not_acceptable",
        exceptions.Throttled: "too_many_requests",
    }.get(type(error), "refused")
    response = Response(body(code, str(error.detail)), status=error.status_code)
    wait_s = getattr(error, "wait", None)
    if wait_s is not None:
        response.headers["Retry-After"] = str(max(1, int(wait_s)))
    return response


def _details(detail: Any, path: str) -> Iterator[dict[str, str]]:
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from _details(inner, f"{path}.{name}".lstrip(".") if name != "non_field_errors" else path)
    elif isinstance(detail, list):
        for position, inner in enumerate(detail):
            yield from _details(inner, path if isinstance(inner, str) else f"{path}[{position}]")
    else:
        yield {"field": path, "message": str(detail)}
