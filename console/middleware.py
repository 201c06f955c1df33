"""Response headers that keep a browser from running what we did not ship, and the note that a session is in use."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from tenants.sessions import SessionStore

_API_DOCS = "/api/docs"
_OWN_ONLY = ("script-src", "style-src", "connect-src", "font-src", "form-action")
_POLICY = "; ".join(
    ["default-src 'none'", *(f"{name} 'self'" for name in _OWN_ONLY), "img-src 'self' data:", "base-uri 'none'", "frame-ancestors 'none'"]
)
# The browsable API documentation is third-party code that writes style elements; its scripts are files like any other.
_DOCS_POLICY = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")


class ContentSecurityPolicy:
    """Adds Content-Security-Policy to every answer, HSTS behind TLS, and forbids caches to keep what a signed-in person saw."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", _DOCS_POLICY if request.path.startswith(_API_DOCS) else _POLICY)
        if not request.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "private, no-store")
        if settings.HTTPS and settings.SECURE_HSTS_SECONDS:
            # Django's own sends it only over TLS that it sees; ours ends at the proxy.
            response.headers.setdefault("Strict-Transport-Security", f"max-age={settings.SECURE_HSTS_SECONDS}")
        return response


class SessionActivity:
    """Notes that a session is used, so that it ends when it is not. Pages that refresh themselves (htmx) do not count: a forgotten tab is idle."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        refreshes = request.method == "GET" and request.headers.get("HX-Request") == "true"
        if settings.SESSION_COOKIE_NAME in request.COOKIES and not refreshes and isinstance(request.session, SessionStore):
            request.session.is_empty()  # loads it, and with it the row that is touched
            if request.session.get("_auth_user_id"):
                request.session.touch()
        return self.get_response(request)
