"""Objectives counted from records, alerts from what is the case, messages in the same transaction."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from routing.core import burn
from routing.models import Alert, DecisionRow, Endpoint, ReconciliationFinding, Replica, SloMinute, Webhook, WebhookDelivery
from routing.services import alerts, endpoints, slo
from tenants.core.api_key import Kind
from tenants.models import ApiKey
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_pool, a_replica, an_endpoint

NOW = datetime.fromisoformat("2026-11-30T12:00:30+00:00")


def with_slo(made: Made, **spec: Any) -> Endpoint:
    """An endpoint of a tenant with an objective; call it in the tenant's scope."""
    row = an_endpoint(made.id)
    return endpoints.update(tenant_id=made.id, actor=ACTOR, endpoint_id=row.id, slo={"ttft_p95_ms": 1000, **spec})


def minute(made: Made, endpoint: Endpoint, *, ago_s: float, total: int, bad: int, now: datetime = NOW, objective: str = "ttft_p95") -> None:
    at = (now - timedelta(seconds=ago_s)).replace(second=0, microsecond=0)
    SloMinute.objects.create(tenant_id=made.id, endpoint_id=endpoint.id, objective=objective, minute=at, total=total, bad=bad)


def hook(made: Made, kinds: list[str] | None = None, name: str = "ops", **more: Any) -> Webhook:
    return Webhook.objects.create(tenant_id=made.id, name=name, url="https://hooks.example.org/x", secret=b"sealed", kinds=kinds or [], **more)


def kinds_firing(made: Made) -> list[str]:
    return [row.kind for row in alerts.firing(made.id)]


def test_misses_of_both_windows_fire_once_and_end_after_a_calm_while(acorn: Made) -> None:
    """Fires when the hour and its last five minutes burn; each look keeps it; it ends five minutes after the short window is calm, and tells both."""
    with tenant_scope(acorn.id):
        endpoint = with_slo(acorn)
        hook(acorn)
        minute(acorn, endpoint, ago_s=120, total=100, bad=90)
        assert alerts.evaluate(acorn.id, NOW) == 2  # the slow rule burns as well: its windows hold nothing else
        assert alerts.evaluate(acorn.id, NOW + timedelta(seconds=30)) == 0
        rows = alerts.firing(acorn.id)
        assert [(row.aspect, row.severity) for row in rows] == [("ttft_p95 fast", "critical"), ("ttft_p95 slow", "warning")]
        assert "90 of 100 streamed or failed requests of the last hour missed ttft_p95 (1 s" in rows[0].explanation
        assert "refused, as for want of an audited replica, or failed count as misses; answers that were not streamed" in rows[0].explanation
        calm = NOW + timedelta(minutes=10)
        assert alerts.evaluate(acorn.id, calm) == 0
        assert alerts.evaluate(acorn.id, calm + timedelta(seconds=299)) == 0
        assert alerts.evaluate(acorn.id, calm + timedelta(seconds=300)) == 1
        assert [row.aspect for row in alerts.firing(acorn.id)] == ["ttft_p95 slow"]
        told = list(WebhookDelivery.objects.filter(tenant_id=acorn.id).order_by("created_at", "event").values_list("event", flat=True))
        assert sorted(told) == ["alert.firing", "alert.firing", "alert.resolved"]


def test_an_alert_of_the_whole_answer_counts_what_was_not_streamed(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        minute(acorn, with_slo(acorn, e2e_p95_ms=9000), ago_s=120, total=100, bad=90, objective="e2e_p95")
        (first, *_) = alerts.causes(acorn.id, NOW).values()
    assert first.explanation.startswith("90 of 100 requests of the last hour missed e2e_p95")
    assert first.explanation.endswith("failed count as misses.")


def test_what_burns_in_one_window_alone_is_no_alert(acorn: Made) -> None:
    """Over since half an hour, or just begun and few: neither."""
    with tenant_scope(acorn.id):
        endpoint = with_slo(acorn)
        minute(acorn, endpoint, ago_s=1800, total=100, bad=100)
        assert [one for one in alerts.causes(acorn.id, NOW) if one[3].endswith("fast")] == []
        SloMinute.objects.all().delete()
        minute(acorn, endpoint, ago_s=60, total=4, bad=4)
        assert alerts.causes(acorn.id, NOW) == {}


def test_windows_are_sums_of_minutes_of_this_tenant_and_endpoint(acorn: Made, birch: Made) -> None:
    with tenant_scope(birch.id):
        other = with_slo(birch)
        minute(birch, other, ago_s=60, total=1000, bad=1000)
    with tenant_scope(acorn.id):
        endpoint = with_slo(acorn, e2e_p99_ms=9000)
        minute(acorn, endpoint, ago_s=60, total=10, bad=1)
        minute(acorn, endpoint, ago_s=3000, total=10, bad=4)
        minute(acorn, endpoint, ago_s=20_000, total=10, bad=0)
        minute(acorn, endpoint, ago_s=22_000, total=10, bad=10)
        first, whole = slo.standings(acorn.id, NOW)
    assert first.windows == {300: burn.Counts(10, 1), 3600: burn.Counts(20, 5), 21_600: burn.Counts(30, 5)}
    assert first.burns[300] == pytest.approx(2.0)
    assert (whole.objective, whole.burns) == ("e2e_p99", {300: None, 3600: None, 21_600: None})


def test_a_quarantined_replica_a_critical_contradiction_and_an_expiring_key(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))
        now = timezone.now()
        assert alerts.causes(acorn.id, now) == {}
        Replica.objects.filter(id=replica.id).update(isolation_state="quarantined", isolation_reason="two namespaces shared")
        told = {"subject_kind": "router", "subject": "r1", "explanation": "It differs.", "first_seen_at": now, "last_seen_at": now}
        for severity, state, subject in (("critical", "open", "r1"), ("critical", "watching", "r2"), ("warning", "open", "r3")):
            ReconciliationFinding.objects.create(
                tenant_id=acorn.id, kind="snapshot_refused", severity=severity, state=state, subject_id=subject, **told
            )
        for days, name in ((3, "soon"), (30, "later"), (-1, "gone"), (1 / 96, "playground")):
            ApiKey.objects.create(
                tenant_id=acorn.id, kind=Kind.INFERENCE, name=name, shown="sk", digest=uuid4().bytes * 2, expires_at=now + timedelta(days=days)
            )
        found = alerts.causes(acorn.id, now)
        assert [(key[0], cause.subject) for key, cause in found.items()] == [
            ("reconciliation", "r1"),
            ("replica_quarantined", f"gpu/{replica.name}"),
            ("key_expiring", "soon"),
        ]
        assert alerts.evaluate(acorn.id, now) == 3
        Replica.objects.filter(id=replica.id).update(isolation_state="suspect")
        assert alerts.evaluate(acorn.id, now) == 1
        assert kinds_firing(acorn) == ["reconciliation", "key_expiring"]


def test_a_webhook_hears_of_the_kinds_that_it_wants_and_nothing_while_it_is_off(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))
        wants, other, off = hook(acorn, ["replica_quarantined"]), hook(acorn, ["key_expiring"], "other"), hook(acorn, name="off", enabled=False)
        Replica.objects.filter(id=replica.id).update(isolation_state="quarantined")
        alerts.evaluate(acorn.id, timezone.now())
        counts = {one.name: WebhookDelivery.objects.filter(webhook=one).count() for one in (wants, other, off)}
        assert counts == {"ops": 1, "other": 0, "off": 0}
        body = WebhookDelivery.objects.get(webhook=wants).body
        told = (body["event"], body["data"]["kind"], body["data"]["subject"]["name"])
        assert told == ("alert.firing", "replica_quarantined", f"gpu/{replica.name}")


def test_another_tenant_sees_and_fires_nothing(acorn: Made, birch: Made) -> None:
    with tenant_scope(acorn.id):
        replica = a_replica(a_pool(acorn.id))
        Replica.objects.filter(id=replica.id).update(isolation_state="quarantined")
        assert alerts.evaluate(acorn.id, timezone.now()) == 1
    with tenant_scope(birch.id):
        assert alerts.evaluate(birch.id, timezone.now()) == 0
        assert Alert.objects.count() == 0


def record(made: Made, endpoint: Endpoint, **fields: Any) -> None:
    """A decision record as ingest stores it."""
    given: dict[str, Any] = {"outcome": "ok", "status": 200, "key_id": uuid4(), "started_at": NOW - timedelta(seconds=60), **fields}
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
    DecisionRow.objects.bulk_create([DecisionRow(id=uuid4(), tenant_id=made.id, endpoint_id=endpoint.id, record={}, **given)], ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_app")


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"ttft_s": 0.9, "e2e_s": 3.0}, {"ttft_p95": (1, 0), "e2e_p99": (1, 0)}),
        ({"ttft_s": 1.1, "e2e_s": 3.0}, {"ttft_p95": (1, 1), "e2e_p99": (1, 0)}),
        ({"ttft_s": 0.9, "e2e_s": 31.0}, {"ttft_p95": (1, 0), "e2e_p99": (1, 1)}),
        ({"e2e_s": 3.0}, {"e2e_p99": (1, 0)}),  # no stream: it has no first token
        ({"outcome": "refused", "status": 429, "e2e_s": 0.1}, {"ttft_p95": (1, 1), "e2e_p99": (1, 1)}),
        ({"outcome": "refused", "status": 503}, {"ttft_p95": (1, 1), "e2e_p99": (1, 1)}),  # nobody ready, or nobody audited
        ({"outcome": "timeout", "status": 504}, {"ttft_p95": (1, 1), "e2e_p99": (1, 1)}),
        ({"outcome": "client_error", "status": 400, "e2e_s": 0.1}, {}),
        ({"outcome": "client_cancelled", "status": 499, "e2e_s": 0.5}, {}),
        ({"outcome": "client_cancelled", "status": 499, "e2e_s": 2.0}, {"ttft_p95": (1, 1)}),
        ({"ttft_s": 5.0, "key_id": None}, {}),  # an audit's
        ({"ttft_s": 5.0, "started_at": NOW - timedelta(minutes=20)}, {}),  # too late
        ({"ttft_s": 5.0, "started_at": NOW + timedelta(minutes=5)}, {}),  # a clock that is ahead
    ],
)
def test_what_counts_and_what_misses(acorn: Made, fields: dict[str, Any], counts: dict[str, tuple[int, int]]) -> None:
    with tenant_scope(acorn.id):
        endpoint = with_slo(acorn, e2e_p99_ms=30_000)
    record(acorn, endpoint, **fields)
    with tenant_scope(acorn.id):
        for _ in range(2):  # repeats change nothing
            slo.count(acorn.id, NOW)
        assert {row.objective: (row.total, row.bad) for row in SloMinute.objects.all()} == counts


def test_a_late_record_is_counted_and_old_minutes_are_forgotten(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        endpoint = with_slo(acorn)
        minute(acorn, endpoint, ago_s=slo.KEPT.total_seconds() + 120, total=1, bad=1)
    record(acorn, endpoint, ttft_s=0.1)
    with tenant_scope(acorn.id):
        slo.count(acorn.id, NOW)
    record(acorn, endpoint, ttft_s=3.0)
    with tenant_scope(acorn.id):
        slo.count(acorn.id, NOW + timedelta(minutes=10))
        assert [(row.total, row.bad) for row in SloMinute.objects.all()] == [(2, 1)]
