"""Cross-origin answers, for browser clients on the operator's list of origins. Preflights carry no credentials and need none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
EXPOSED = "x-saltroute-decision, x-saltroute-model, x-request-id, retry-after"
MAX_ASKED = 64


def answer_headers(headers: Mapping[str, str], origins: Sequence[str]) -> dict[str, str]:
    """What every answer carries when its request came from an allowed origin."""
    origin = headers.get("Origin")
    if origin is None or not origins:
        return {}
    if origin in origins or "*" in origins:
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED, "Vary": "Origin"}
    return {"Vary": "Origin"}


def preflight_headers(headers: Mapping[str, str], origins: Sequence[str]) -> dict[str, str]:
    """What an OPTIONS answer carries beyond that: the methods, and the headers that were asked for, if they are header names."""
    if "Access-Control-Allow-Origin" not in answer_headers(headers, origins):
        return {}
    asked = [name.strip() for name in headers.get("Access-Control-Request-Headers", "").split(",")[:MAX_ASKED]]
    return {
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": ", ".join(name for name in asked if _TOKEN.fullmatch(name)) or "authorization, content-type",
        "Access-Control-Max-Age": "600",
    }
