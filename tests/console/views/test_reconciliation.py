"""Reconciliation in the console: an empty state that teaches, findings in words, history, and starting a run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from routing.models import ReconciliationFinding, ReconciliationRun
from routing.services.reconciliation import running
from tenants.scoping import tenant_scope
from tests.console.rows import Made, Town

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
EVIL = "<img src=x onerror=alert(1)>"


def _page(town: Town, who: str = "owner", path: str = "/t/acorn/reconciliation") -> str:
    response = getattr(town, who).get(path)
    assert response.status_code == 200
    text: str = response.content.decode()
    return text


def _run(made: Made, **fields: Any) -> ReconciliationRun:
    now = timezone.now()
    with tenant_scope(made.tenant_id):
        given = {"state": "finished", "trigger": "beat", "started_at": now, "finished_at": now, "routers": 2, **fields}
        return ReconciliationRun.objects.create(tenant_id=made.tenant_id, **given)


def _finding(made: Made, **fields: Any) -> ReconciliationFinding:
    now = timezone.now()
    given: dict[str, Any] = {
        "kind": "model_not_served",
        "severity": "critical",
        "state": "open",
        "subject_kind": "endpoint",
        "subject_id": "x",
        "subject": "chat",
    }
    given |= {"explanation": "chat asks for the model m", "first_seen_at": now - timedelta(hours=3), "last_seen_at": now, **fields}
    with tenant_scope(made.tenant_id):
        return ReconciliationFinding.objects.create(tenant_id=made.tenant_id, **given)


def test_before_the_first_run_the_page_teaches(town: Town) -> None:
    page = _page(town)
    for said in ("No run yet", "once a minute", "/api/v1/reconciliation", "Reconcile now", "None so far."):
        assert said in page
    viewer = _page(town, "viewer")
    assert "No run yet" in viewer
    assert "Reconcile now" not in viewer


def test_a_run_without_findings_says_so(town: Town) -> None:
    _run(town.acorn)
    page = _page(town)
    assert "Nothing contradicts anything" in page
    assert "2 routers heard" in page
    assert "may be old" not in page
    with tenant_scope(town.acorn.tenant_id):
        ReconciliationRun.objects.update(finished_at=timezone.now() - timedelta(minutes=6))
    assert "may be old" in _page(town)


def test_findings_are_shown_in_words_with_what_was_done(town: Town) -> None:
    _run(town.acorn, routers=None)
    _finding(town.acorn, done="published version 7", repaired_at=timezone.now())
    _finding(town.acorn, state="watching", aspect="1")
    _finding(town.acorn, kind="of_old", severity="info", state="resolved", resolved_at=timezone.now(), explanation="it was", subject="gone")
    page = _page(town)
    for said in ("The engine does not serve the endpoint&#x27;s model", "chat asks for the model m", "published version 7", "3 h ago"):
        assert said in page
    assert '<span class="pill bad">critical</span>' in page
    assert page.count('data-label="What it would mean">') == 1
    assert "Valkey did not answer" in page
    assert "Of old" in page


def test_what_is_watched_is_named_and_nothing_is_said_to_agree(town: Town) -> None:
    """A run that saw something for the first time; the control is the run that saw nothing."""
    _run(town.acorn)
    assert "Nothing contradicts anything" in _page(town)
    _finding(town.acorn, kind="replica_unreachable", state="watching", subject="gpu/a", explanation="No router reaches gpu/a")
    page = _page(town)
    assert "Nothing contradicts anything" not in page
    for said in ("A replica cannot be reached", ">replica_unreachable</div>", "No router reaches gpu/a"):
        assert said in page
    assert '<span class="pill bad">critical</span>' not in page


def test_names_are_text_and_nothing_of_another_tenant_is_here(town: Town) -> None:
    _run(town.acorn, reason=EVIL, requested_by=EVIL, trigger="demand")
    _finding(town.acorn, subject=EVIL, explanation=EVIL, done=EVIL)
    _finding(town.acorn, state="watching", aspect="1", subject=EVIL, explanation=EVIL)
    _finding(town.birch, explanation="of birch alone")
    page = _page(town)
    assert EVIL not in page
    assert "of birch alone" not in page
    assert "of birch alone" in _page(town, "operator", "/t/birch/reconciliation")


def test_a_run_is_started_as_over_the_api(town: Town) -> None:
    page = town.owner.post("/t/acorn/reconciliation", follow=True).content.decode()
    assert "A run is ordered" in page
    assert "a run waits" in page
    ended = running.run(town.acorn.tenant_id, trigger="beat")
    assert ended is not None
    assert (ended.run.trigger, ended.run.requested_by) == ("demand", "owner@example.com")
    assert "a run waits" not in _page(town)


def test_history_has_pages(town: Town) -> None:
    for number in range(25):
        _run(town.acorn, requested_by=f"person-{number}", trigger="demand")
        _finding(town.acorn, state="resolved", resolved_at=timezone.now(), explanation=f"story {number}.")
    first = _page(town)
    assert "person-24" in first
    assert "person-4<" not in first
    cursor = first.split("?before=")[1].split('"')[0]
    assert "person-4<" in _page(town, path=f"/t/acorn/reconciliation?before={cursor}")
    cursor = first.split("?resolved=")[1].split('"')[0]
    assert "story 4." in _page(town, path=f"/t/acorn/reconciliation?resolved={cursor}")


def test_the_number_of_queries_does_not_grow(town: Town) -> None:
    _run(town.acorn)
    _page(town)  # the session is noted once
    counts = []
    for number in range(2):
        for other in range(20):
            _finding(town.acorn, subject_id=f"{number}-{other}")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            _page(town)
        counts.append(len(queries))
    assert counts[0] == counts[1]
