"""The register of routes: every URL that the data plane knows, and in particular every one that reaches an engine.

A path is matched after one decoding and is never sent on: each route has its own constant path at the engine, so nothing that a client writes in
a URL
reaches one. A near miss (doubled slashes, a doubled or missing ``/v1``) is a 404 that names the right URL; one trailing slash is forgiven.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from routing.dataplane import errors, openai


@dataclass(frozen=True, slots=True)
class Route:
    """One URL. ``engine_path`` and ``shape`` belong to routes that reach an engine: those strip, salt and record, which one contract test holds."""

    name: str
    method: str
    path: str
    engine_path: str | None = None
    shape: Callable[[dict[str, Any]], None] | None = None


CHAT = Route("chat_completions", "POST", "/v1/chat/completions", "/v1/chat/completions", openai.check_chat)
COMPLETIONS = Route("completions", "POST", "/v1/completions", "/v1/completions", openai.check_completion)
MODELS = Route("models", "GET", "/v1/models")
MODEL = Route("model", "GET", "/v1/models/{id}")

ROUTES: tuple[Route, ...] = (CHAT, COMPLETIONS, MODELS, MODEL)
ENGINE_ROUTES: tuple[Route, ...] = tuple(route for route in ROUTES if route.engine_path is not None)
PROBE_PREFIX = "/internal/probe"  # on the internal port: the same routes, for audits
PROBE_ROUTES: dict[str, Route] = {
    PROBE_PREFIX + route.path: Route(
        f"probe:{route.name.removesuffix('_completions')}", "POST", PROBE_PREFIX + route.path, route.engine_path, route.shape
    )
    for route in ENGINE_ROUTES
}

_BY_PATH = {route.path: route for route in ROUTES if route is not MODEL}
_TENANT = re.compile(r"/t/([^/]+)(/.*)")
_DOTS = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")


@dataclass(frozen=True, slots=True)
class Match:
    """A route with what the path said: the tenant's slug, the model's id."""

    route: Route
    tenant_slug: str | None = None
    model: str | None = None


def decode_path(raw_target: str) -> str:
    """The path of a request target, decoded once."""
    path = raw_target.split("?", 1)[0].split("#", 1)[0]
    if "://" in path.split("/", 3)[0] + "//" and not path.startswith("/"):  # absolute form, as proxies send it
        path = "/" + path.split("/", 3)[3] if path.count("/") >= 3 else "/"
    return unquote(path, errors="replace")


def find(path: str) -> Match | None:
    """The route of a decoded path, in its exact spelling."""
    tenant_slug = None
    if (scoped := _TENANT.fullmatch(path)) is not None:
        tenant_slug, path = scoped[1], scoped[2]
    if (route := _BY_PATH.get(path)) is not None:
        return Match(route=route, tenant_slug=tenant_slug)
    prefix = MODELS.path + "/"
    if path.startswith(prefix) and len(path) > len(prefix) and "//" not in path:
        return Match(route=MODEL, tenant_slug=tenant_slug, model=path.removeprefix(prefix))
    return None


def near_miss(path: str) -> str | None:
    """The right spelling of a path that is nearly one of ours."""
    tried = re.sub(r"/{2,}", "/", path).rstrip("/")
    tried = re.sub(r"^((?:/t/[^/]+)?)(?:/v1)+/", r"\1/v1/", tried)
    for candidate in (tried, "/v1" + tried, tried.lower(), "/v1" + tried.lower()):
        found = find(candidate)
        if found is not None and found.route is not MODEL:
            return candidate
    return None


def resolve(method: str, raw_target: str) -> Match:
    """Find the route of a request.

    Raises:
        ApiError: 404 ``unknown_url``, 405 for another method.
    """
    path = decode_path(raw_target)
    if _DOTS.search(path):
        raise errors.unknown_url(None)
    found = find(path) or (find(path[:-1]) if path.endswith("/") and not path.endswith("//") else None)
    if found is None:
        raise errors.unknown_url(near_miss(path))
    if method != found.route.method and not (method == "HEAD" and found.route.method == "GET"):
        raise errors.method_not_allowed(found.route.method)
    return found
