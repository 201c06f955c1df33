"""Answers for what no view answered: our own mistakes, and requests that Django refuses before any view. In JSON below /api/, as pages elsewhere."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import defaults

from tenants.api import errors

API = "/api/"


def server_error(request: HttpRequest) -> HttpResponse:
    """500: logged with its traceback by Django; the answer says nothing of it."""
    if request.path.startswith(API):
        return _json(errors.body("internal_error", "The error is ours and has been logged. Nothing of this request was saved."), 500)
    return defaults.server_error(request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400: a host that is not ours, a malformed request."""
    if request.path.startswith(API):
        return _json(errors.body("malformed", "This request is malformed, or its Host is not one of ours."), 400)
    return defaults.bad_request(request, exception)


def _json(body: dict[str, object], status: int) -> HttpResponse:
    return JsonResponse(body, status=status, headers={"Cache-Control": "private, no-store", "Vary": "Authorization, Cookie"})
