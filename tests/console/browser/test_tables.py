"""Tables that are full, on the screen of a laptop: no word is broken in two, no button is out of sight. On a telephone they are cards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.utils import timezone

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.console.rows import AsOwner, Town

WHY = (
    "No router has reached acorn-pool/a since 2026-11-30 21:04:07 UTC: does not answer health checks. Nothing is sent there, and what its cache "
    "holds is unknown until it answers."
)
PAGES = ("pools", "reconciliation", "alerts", "decisions")


@pytest.fixture
def troubled(town: Town, as_owner: AsOwner, valkey_url: str) -> Town:
    """A tenant of which everything can be told: a replica that nobody reaches beside one that warms up, findings, alerts, refused requests."""
    from routing.core.findings import KINDS
    from routing.models import Alert, ReconciliationFinding, Replica
    from tenants.scoping import tenant_scope
    from tests.console import rows

    made, now = town.acorn, timezone.now()
    with tenant_scope(made.tenant_id):
        gone, warm = [Replica.objects.get(id=one) for one in made.replica_ids]
        Replica.objects.filter(id=gone.id).update(max_concurrency=64, isolation_state="quarantined")
        for number, (kind, rule) in enumerate(KINDS.items()):
            about = {"subject_kind": "replica", "subject": "p/a"} if number % 2 else {"subject_kind": "endpoint", "subject": "chat"}
            told = {"first_seen_at": now, "last_seen_at": now, "severity": rule.severity, "explanation": WHY, "done": "published again"}
            for state in ("open", "resolved"):
                resolved = {"resolved_at": now} if state == "resolved" else {}
                ReconciliationFinding.objects.create(
                    tenant_id=made.tenant_id, kind=kind, state=state, subject_id=f"{number}", **about, **told, **resolved
                )
        for kind, subject_kind, subject, aspect in (
            ("replica_unreachable", "replica", "p/a", ""),
            ("slo_burn", "endpoint", "chat", "ttft_p95"),
            ("reconciliation", "endpoint", "chat", "model_not_served"),
        ):
            for state in ("firing", "resolved"):
                told = {"began_at": now, "last_seen_at": now, "severity": "critical", "explanation": WHY}
                about = {"subject_kind": subject_kind, "subject_id": kind, "subject": subject, "aspect": aspect}
                resolved = {"resolved_at": now} if state == "resolved" else {}
                Alert.objects.create(tenant_id=made.tenant_id, kind=kind, state=state, **about, **told, **resolved)
    away = {"condition": "failing (active)", "away_since": 1_700_000_000.0}
    warming = {"condition": "returning", "residency": "degraded", "residency_reason": "unknown_spec_kind", "event_blocks": 123_456}
    report = {"versions": {}, "replicas": {gone.url: away, warm.url: {**warming, "in_flight": 64, "queued_tokens": 1_234_567}}}
    with redis.Redis.from_url(valkey_url) as client:
        client.set("saltroute:router:r1", json.dumps(report), ex=600)
    refused: dict[str, Any] = {"outcome": "refused", "status": 503, "error_code": "isolation_unavailable", "replica_id": None, "ttft_s": None}
    rows.store(as_owner, made, rows.record(made, started_at=rows.ago(minutes=1), **refused), rows.record(made, started_at=rows.ago(minutes=2)))
    return town


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_full_table_is_whole_on_a_laptop_and_readable_on_a_telephone(
    troubled: Town, signed_in: Callable[..., BrowserContext], page: str, scheme: str
) -> None:
    visit = Visit.of(signed_in(troubled.owner, viewport={"width": 1280, "height": 900}, color_scheme=scheme))
    assert visit.open(f"/t/acorn/{page}") == 200
    assert visit.page.locator("main table").count() > 0
    wide = visit.broken() + visit.beyond()
    visit.page.set_viewport_size({"width": 400, "height": 860})
    visit.open(f"/t/acorn/{page}")
    assert {"wide": wide, "narrow": visit.broken() + visit.sideways()} == {"wide": [], "narrow": []}


def test_the_code_of_a_lone_finding_stays_in_one_piece(town: Town, signed_in: Callable[..., BrowserContext]) -> None:
    """Beside a long sentence there is little room for the first column, whose title alone may break."""
    from routing.models import ReconciliationFinding
    from tenants.scoping import tenant_scope

    now = timezone.now()
    with tenant_scope(town.acorn.tenant_id):
        about = {"kind": "replica_unreachable", "subject_kind": "replica", "subject_id": "1", "subject": "p/a"}
        told = {"severity": "critical", "state": "open", "explanation": 3 * WHY, "first_seen_at": now, "last_seen_at": now}
        ReconciliationFinding.objects.create(tenant_id=town.acorn.tenant_id, **about, **told)
    visit = Visit.of(signed_in(town.owner, viewport={"width": 1280, "height": 900}))
    visit.open("/t/acorn/reconciliation")
    assert visit.page.get_by_text("replica_unreachable", exact=True).count() == 1
    assert visit.broken() + visit.beyond() == []


def test_what_is_looked_for_is_found(signed_in: Callable[..., BrowserContext]) -> None:
    """The control: a word that finds no room, and a table wider than its card."""
    visit = Visit.of(signed_in(None))
    visit.open("/login")
    visit.page.evaluate(
        """() => { document.body.innerHTML = '<main><div class="scroll"><table><tbody><tr><td class="break">endpoint</td><td>whole</td></tr></tbody>'
            + '</table></div></main>';
            Object.assign(document.querySelector('td').style, {display: 'block', minWidth: 0, width: '3rem'}); }"""
    )
    assert visit.broken() == ["broken word: endpoint"]
    assert visit.beyond() == []
    visit.page.evaluate("() => { document.querySelector('td + td').innerHTML = '<p>wide</p>'; document.querySelector('p').style.width = '3000px'; }")
    assert visit.beyond() == ["beyond the edge: endpoint wide"]
