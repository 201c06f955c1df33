"""What ``make up`` says of the demo's isolation: what the control API tells of replicas and audits when it is asked, with its date, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

MARGIN = " " * 13  # below the first line's text
Row = dict[str, Any]  # as the control API answers it


def settled(replicas: Sequence[Row], runs: Sequence[Row], *, began: datetime) -> bool:
    """Whether waiting changes nothing: each replica is isolated, or its newest audit was refused since ``began``. ``runs`` are newest first."""
    return all(replica["isolation"] == "isolated" or _refused_since(_newest(replica, runs), began) for replica in replicas)


def _refused_since(run: Row | None, began: datetime) -> bool:
    return run is not None and run["state"] == "refused" and datetime.fromisoformat(run["created_at"]) >= began


def told(replicas: Sequence[Row], runs: Sequence[Row]) -> str:
    """One line for each replica: its state, the newest clean audit with what it probed and when, and what became of an audit ordered after that."""
    lines = [f"{replica['name']} is {replica['isolation']}: {_proof(replica, runs)}{_since(_newest(replica, runs))}" for replica in replicas]
    return "  Isolation  " + f"\n{MARGIN}".join(lines) if lines else ""


def _newest(replica: Row, runs: Sequence[Row]) -> Row | None:
    return next((run for run in runs if run["replica_id"] == replica["id"]), None)


def _proof(replica: Row, runs: Sequence[Row]) -> str:
    clean = next((run for run in runs if run["replica_id"] == replica["id"] and run["outcome"] == "pass"), None)
    if clean is not None:
        return f"{clean['negative_probes']} negative probes found nothing shared, {_minute(clean['finished_at'])}"
    if replica["verified_at"] is not None:
        return f"the last clean audit ended {_minute(replica['verified_at'])}"
    return "no clean audit yet"


def _since(run: Row | None) -> str:
    if run is None or run["outcome"] == "pass":
        return ""
    if run["state"] in ("queued", "running"):
        return "; another audit is on its way"
    what = "was refused" if run["state"] == "refused" else f"ended {run['outcome']}"
    return f"; the newest audit, {_minute(run['created_at'])}, {what}: {run['reason']}"


def _minute(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
