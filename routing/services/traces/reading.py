"""Jobs and traces as API and console show them. Inside the tenant's scope; nothing here changes a row."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec
from django.http import HttpResponse

from routing.models import TraceJob
from tenants.core.errors import Conflict

TITLES = {"analyze": "Analysis", "replay": "Replay of policies", "review": "Review of a policy"}
PLOTS = {
    "ceiling": "Ceiling by scope",
    "capacity": "Hits by cache size",
    "gaps": "Reuse gaps",
    "concentration": "Concentration",
    "parting": "First divergence",
    "changes": "Differences with their intervals",
    "ttft": "Time to first token",
    "hits": "Hit rate beside the ceiling",
}
# A page that is opened where it was downloaded has a policy of its own inside; served, it is a file, and would run nothing.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; base-uri 'none'; frame-ancestors 'none'"
# An image is a document of its own, which does not see the page's colours: it has these two, and nothing else that its policy lets stand.
IMAGE_STYLE = "svg{color:#1d2430}@media (prefers-color-scheme:dark){svg{color:#e6e9ee}}"
_STYLE_HASH = base64.b64encode(hashlib.sha256(IMAGE_STYLE.encode()).digest()).decode()
IMAGE_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; sandbox; base-uri 'none'; frame-ancestors 'none'"
MIN_PACE_S = 2.0  # of work before an end is foretold


def share(row: TraceJob) -> float | None:
    """How much is done, 0 to 1; None where it is not known."""
    if row.state == "done":
        return 1.0
    return min(1.0, row.done / row.total) if row.total else None


def expected_end(row: TraceJob, now: datetime) -> datetime | None:
    """When a running job ends if it goes on as it has since its attempt began; None where that cannot be said."""
    if row.state != "running" or row.attempt_at is None or not row.total:
        return None
    took_s, did = (now - row.attempt_at).total_seconds(), row.done - row.attempt_done
    if did <= 0 or took_s < MIN_PACE_S:
        return None
    return now + timedelta(seconds=took_s * max(0, row.total - row.done) / did)


def whole(row: TraceJob) -> TraceJob:
    """A job that is done.

    Raises:
        Conflict: it is not, and the message says what it is.
    """
    if row.state != "done":
        raise Conflict(f"There is no result: the job is {row.state}." + (f" {row.error}" if row.error else ""))
    return row


def file_name(row: TraceJob, ending: str) -> str:
    """What a downloaded result is called."""
    return f"saltroute-{row.kind}-{row.created_at:%Y-%m-%d}-{str(row.id)[:8]}.{ending}"


def as_file(row: TraceJob, headers: Mapping[str, str]) -> HttpResponse:
    """A job's page as a download."""
    own = {
        "Content-Disposition": f'attachment; filename="{file_name(row, "html")}"',
        "Content-Security-Policy": REPORT_POLICY,
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(row.html, content_type="text/html; charset=utf-8", headers={**headers, **own})


def as_json(row: TraceJob, headers: Mapping[str, str]) -> HttpResponse:
    """A job's figures as a download."""
    own = {"Content-Disposition": f'attachment; filename="{file_name(row, "json")}"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(msgspec.json.encode(row.result), content_type="application/json", headers={**headers, **own})


def as_image(svg: str) -> HttpResponse:
    """A plot as an image, readable in light and dark."""
    head, rest = svg.split(">", 1)
    own = {"Content-Security-Policy": IMAGE_POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "private, max-age=3600"}
    return HttpResponse(f"{head}><style>{IMAGE_STYLE}</style>{rest}", content_type="image/svg+xml; charset=utf-8", headers=own)
