"""Response headers that keep a browser from running what we did not ship."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

_API_DOCS = "/api/docs"
_OWN_ONLY = ("script-src", "style-src", "connect-src", "font-src", "form-action")
_POLICY = "; ".join(
    ["default-src 'none'", *(f"{name} 'self'" for name in _OWN_ONLY), "img-src 'self' data:", "base-uri 'none'", "frame-ancestors 'none'"]
)
# The browsable API documentation is third-party code that writes style elements; its scripts are files like any other.
_DOCS_POLICY = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")


class ContentSecurityPolicy:
    """Adds Content-Security-Policy to every answer, and forbids caches to keep what a signed-in person saw."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", _DOCS_POLICY if request.path.startswith(_API_DOCS) else _POLICY)
        if not request.path.startswith("/static/"):
            response.headers.setdefault("Cache-Control", "private, no-store")
        return response
