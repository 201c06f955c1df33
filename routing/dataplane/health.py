"""Pages for operators: ``/healthz`` (the process lives), ``/readyz`` (it should get traffic), and on the internal port ``/metrics`` and ``/status``.

Policy: ``stale`` is still ready (200): a lost Valkey must not take every router out of service at once. ``starting``, ``draining`` and ``expired``
are 503.
"""

from __future__ import annotations

import time

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from routing.dataplane.feeds.snapshots import SnapshotFeed, readiness
from routing.dataplane.state import Plane

READY = ("ready", "stale")


def public_page(plane: Plane, path: str) -> web.Response | None:
    """``/healthz`` and ``/readyz``, on both ports; None for any other path."""
    if path == "/healthz":
        return _json(200, {"status": "ok"})
    if path == "/readyz":
        now = time.time()
        state = readiness(plane, now)
        body: dict[str, object] = {"status": state}
        if plane.feed.contact_at is not None:
            body["contact_age_s"] = round(max(0.0, now - plane.feed.contact_at), 3)
            if state in ("stale", "expired"):
                body["stale_since"] = plane.feed.contact_at + plane.config.stale_s
        return _json(200 if state in READY else 503, body)
    return None


def internal_page(plane: Plane, feed: SnapshotFeed, path: str) -> web.Response | None:
    """All pages of the internal port."""
    if path == "/metrics":
        return web.Response(body=plane.metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})
    if path == "/status":
        return web.Response(body=feed.status(), headers={"Content-Type": "application/json"})
    return public_page(plane, path)


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), headers={"Content-Type": "application/json", "Cache-Control": "no-store"})
