"""What a start says of audits: those that were carried out, with their date, and why one was not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from deploy.local import demo_isolation

BEGAN = datetime.fromisoformat("2026-11-30T17:00:00Z")
REASON = "The replica's audits have used 295284 of 300000 tokens today, and one more needs 35360. The day ends at 00:00 UTC."


def _replica(**given: Any) -> dict[str, Any]:
    return {"id": "1", "name": "private-1", "isolation": "isolated", "verified_at": "2026-11-30T09:30:00Z", **given}


def _run(**given: Any) -> dict[str, Any]:
    """One that passed before this start."""
    passed = {"state": "finished", "outcome": "pass", "reason": "", "negative_probes": 17, "finished_at": "2026-11-30T09:30:00Z"}
    return {"replica_id": "1", "created_at": "2026-11-30T09:29:00Z", **passed, **given}


REFUSED = _run(state="refused", outcome=None, reason=REASON, negative_probes=0, created_at="2026-11-30T17:01:00Z")
RUNNING = _run(state="running", outcome=None, negative_probes=0, finished_at=None, created_at="2026-11-30T17:01:00Z")
PROVED = "private-1 is isolated: 17 negative probes found nothing shared, 2026-11-30 09:30 UTC"


@pytest.mark.parametrize(
    ("replica", "runs", "line"),
    [
        (_replica(), [_run(), _run(negative_probes=46, finished_at="2026-11-29T09:30:00Z")], PROVED),
        (_replica(), [REFUSED, _run()], f"{PROVED}; the newest audit, 2026-11-30 17:01 UTC, was refused: {REASON}"),
        (_replica(), [RUNNING, _run()], f"{PROVED}; another audit is on its way"),
        (_replica(), [_run(replica_id="2")], "private-1 is isolated: the last clean audit ended 2026-11-30 09:30 UTC"),
        (_replica(isolation="unverified", verified_at=None), [], "private-1 is unverified: no clean audit yet"),
        (
            _replica(isolation="quarantined", verified_at=None),
            [_run(outcome="fail", reason="two_salts: shared")],
            "private-1 is quarantined: no clean audit yet; the newest audit, 2026-11-30 09:29 UTC, ended fail: two_salts: shared",
        ),
    ],
)
def test_a_line_says_what_was_proved_when_and_what_became_of_the_newest_order(replica: dict[str, Any], runs: list[dict[str, Any]], line: str) -> None:
    assert demo_isolation.told([replica], runs) == f"  Isolation  {line}"


def test_each_replica_has_a_line_and_no_replica_none() -> None:
    second = _replica(id="2", name="private-2", isolation="unverified", verified_at=None)
    first, other = demo_isolation.told([_replica(), second], [_run()]).splitlines()
    assert other.index("private-2") == first.index("private-1")
    assert demo_isolation.told([], []) == ""


def test_waiting_ends_with_isolation_or_with_a_refusal_of_this_start() -> None:
    unverified = _replica(isolation="unverified")
    assert demo_isolation.settled([_replica()], [], began=BEGAN)
    assert demo_isolation.settled([_replica(), unverified], [REFUSED], began=BEGAN)
    assert not demo_isolation.settled([_replica(), unverified], [RUNNING, REFUSED], began=BEGAN)
    assert not demo_isolation.settled([unverified], [{**REFUSED, "created_at": "2026-11-30T16:59:00Z"}], began=BEGAN)
    assert not demo_isolation.settled([_replica(), _replica(id="2", isolation="unverified")], [REFUSED], began=BEGAN)
