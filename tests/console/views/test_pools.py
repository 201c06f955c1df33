"""Pools and replicas in the console: state, load as routers report it, drain, pause and resume."""

from __future__ import annotations

import json
import uuid

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from routing.models import Endpoint, Pool, PoolGrant, Replica
from tenants.models import AuditEntry, Tenant
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import Made, Town

pytestmark = pytest.mark.django_db


def _platform_pool(grantee: Made) -> uuid.UUID:
    """A pool of the platform's with one replica, granted; returns the platform's tenant."""
    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        Tenant.objects.create(id=tenant_id, slug="platform", name="Platform")
        pool = Pool.objects.create(tenant_id=tenant_id, name="shared-pool", isolation="declared")
        PoolGrant.objects.create(tenant_id=tenant_id, pool=pool)
        Replica.objects.create(tenant_id=tenant_id, pool=pool, name="secret-name", url="http://127.0.0.1:9400")
    with tenant_scope(grantee.tenant_id):
        PoolGrant.objects.create(tenant_id=grantee.tenant_id, pool_id=pool.id)
    return tenant_id


@pytest.mark.parametrize(
    ("verb", "before", "after"), [("drain", "active", "draining"), ("pause", "active", "paused"), ("resume", "paused", "active")]
)
def test_a_replica_is_taken_out_and_back_after_a_question(town: Town, verb: str, before: str, after: str) -> None:
    replica_id = town.acorn.replica_ids[0]
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.filter(id=replica_id).update(state=before)
    url = f"/t/acorn/replicas/{replica_id}/{verb}"
    assert f"{verb.capitalize()} replica a?" in town.owner.get(url).content.decode()
    page = town.owner.post(url, {"reason": "new driver"}, follow=True).content.decode()
    assert f"Replica a is {after}." in page
    with tenant_scope(town.acorn.tenant_id):
        assert Replica.objects.get(id=replica_id).state == after
        entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason) == (f"replica.{verb}", "new driver")


def test_a_replica_is_removed_after_a_question(town: Town) -> None:
    """By whoever configures: an operator of the tenant is offered the other verbs alone. The question says what is left of the pool."""
    kept, gone = town.acorn.replica_ids
    page, url = f"/t/acorn/replicas/{gone}", f"/t/acorn/replicas/{gone}/remove"
    assert url in town.owner.get(page).content.decode()
    assert url not in town.viewer.get(page).content.decode()
    asked = town.owner.get(url).content.decode()
    assert "Remove replica b?" in asked
    assert "1 active replica left" in asked
    with tenant_scope(town.acorn.tenant_id):
        assert Replica.objects.filter(id=gone).exists()  # a question removes nothing
        Replica.objects.filter(id=kept).update(state="paused")
    assert "no active replica left" in town.owner.get(url).content.decode()
    assert town.viewer.post(url).status_code == 403
    assert town.stranger.post(url).status_code == 404
    said = town.owner.post(url, follow=True).content.decode()
    assert "Replica b is removed from pool" in said
    with tenant_scope(town.acorn.tenant_id):
        assert [row.id for row in Replica.objects.all()] == [kept]
        entry = AuditEntry.objects.get(action__startswith="replica.")
    assert (entry.action, entry.actor_label) == ("replica.delete", "owner@example.com")
    assert town.owner.get(url).status_code == 404


def test_an_unknown_verb_is_not_there(town: Town) -> None:
    assert town.owner.post(f"/t/acorn/replicas/{town.acorn.replica_ids[0]}/delete").status_code == 404


def test_the_platforms_replicas_are_counted_and_not_named(town: Town) -> None:
    _platform_pool(town.acorn)
    page = town.owner.get("/t/acorn/pools").content.decode()
    assert "shared-pool" in page
    assert "1 active" in page
    assert "secret-name" not in page
    assert "9400" not in page
    assert "secret-name" in town.operator.get("/t/platform/pools").content.decode()
    assert "shared-pool" not in town.stranger.get("/t/birch/pools").content.decode()


def test_load_and_applied_versions_come_from_routers(town: Town, valkey_url: str) -> None:
    url, applied = "http://127.0.0.1:9001/acorn", {str(town.acorn.tenant_id): 1}
    reports = {
        "r1": {"versions": applied, "state": "ready", "replicas": {url: {"condition": "ok", "in_flight": 3, "queued_tokens": 900}}},
        "r2": {"versions": applied, "state": "ready", "replicas": {url: "failing (passive)", "http://127.0.0.1:9001/birch": "ok"}},
        "r3": {"versions": {}, "state": "ready", "replicas": {}},
        "r4": "not a report",
    }
    with redis.Redis.from_url(valkey_url) as client:
        for name, report in reports.items():
            client.set(f"saltroute:router:{name}", json.dumps(report), ex=60)
    page = town.owner.get("/t/acorn/pools").content.decode()
    assert ">requests to it fail</a>" in page
    assert "unreachable" not in page  # one of the two that asked it reaches it
    assert '<td class="num" data-label="In flight">3</td>' in page
    assert '<td class="num" data-label="Queued tokens">900</td>' in page
    assert page.count("not reported") == 1
    assert '<span class="pill">KV events</span>' not in page  # they are named nowhere, and no router reads any
    with redis.Redis.from_url(valkey_url) as client:
        exact = {"versions": applied, "state": "ready", "replicas": {url: {"condition": "ok", "residency": "exact"}}}
        for name in ("r1", "r2"):
            client.set(f"saltroute:router:{name}", json.dumps(exact), ex=60)
    assert town.owner.get("/t/acorn/pools").content.decode().count('<span class="pill">KV events</span>') == 1
    assert "applied by 2 of 3 routers" in town.owner.get("/t/acorn/applied").content.decode()


def test_a_limit_of_requests_in_flight_stands_beside_them(town: Town) -> None:
    url = "/t/acorn/pools"
    assert 'class="muted small">of ' not in town.owner.get(url).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.filter(id=town.acorn.replica_ids[0]).update(max_concurrency=1200)
    assert '<span class="muted small">of 1,200</span>' in town.owner.get(url).content.decode()


def test_how_far_events_are_trusted_is_that_of_the_least_sure_router_and_changes_are_listed(town: Town, valkey_url: str) -> None:
    """Changes at replicas of others are not shown; nor is what is no report of a change."""
    url, other = "http://127.0.0.1:9001/acorn", "http://127.0.0.1:9001/birch"

    def change(at: float, after: str, where: str = url) -> dict[str, object]:
        return {"replica": where, "rank": 0, "before": "exact", "after": after, "reason": "late_join", "at": at}

    sure = {"condition": "ok", "residency": "exact", "residency_reason": "ok", "event_blocks": 1234}
    unsure = {"condition": "ok", "residency": "degraded", "residency_reason": "replay", "event_blocks": 7}
    odd = [change(3e9, "odd-other", other), "no change", {"replica": url}, change(1e300, "odd-time"), {**change(3e9, "odd-rank"), "rank": None}]
    reports = {
        "r1": {"replicas": {url: sure}, "residency_changes": [change(1_700_000_000.0, "older"), *odd]},
        "r2": {"replicas": {url: unsure}, "residency_changes": [change(1_700_000_100.0, "newer")]},
        "r3": {"replicas": {url: {**sure, "residency": None, "event_blocks": None}}, "residency_changes": "none"},
    }
    with redis.Redis.from_url(valkey_url) as client:
        for name, report in reports.items():
            client.set(f"saltroute:router:{name}", json.dumps(report), ex=60)
    page = town.owner.get("/t/acorn/pools").content.decode()
    assert ">degraded</a>" in page
    assert ">replay (catching up)</a>" in page
    assert "exact</a> to <strong>" in page  # as the router's log says it
    assert "1,234 blocks by events" in page
    assert "2023-11-14 22:15:00 UTC" in page
    assert 0 < page.index("<strong><span>newer</span></strong>") < page.index("<strong><span>older</span></strong>")
    assert "odd-" not in page
    assert "odd-other" in town.stranger.get("/t/birch/pools").content.decode()
    assert "newer" not in town.stranger.get("/t/birch/pools").content.decode()


def test_a_replica_that_nobody_reaches_is_said_to_be_so_since_when_and_holds_nothing(town: Town, valkey_url: str) -> None:
    """On the list, on its own page and in the overview; its neighbour, which answers, shows what it holds."""
    with tenant_scope(town.acorn.tenant_id):
        gone, there = [Replica.objects.get(id=one) for one in town.acorn.replica_ids]
    held = {"residency": "exact", "residency_reason": "ok", "event_blocks": 1234}
    away = {**held, "condition": "failing (active)"}
    reports = {
        "r1": {gone.url: {**away, "away_since": 1_700_000_100.0}, there.url: {**held, "condition": "ok", "event_blocks": 77}},
        "r2": {gone.url: {**away, "away_since": 1_700_000_000.0}},
        "r3": {gone.url: {"condition": "unknown"}},
    }
    with redis.Redis.from_url(valkey_url) as client:
        for name, replicas in reports.items():
            client.set(f"saltroute:router:{name}", json.dumps({"versions": {}, "replicas": replicas}), ex=60)
    page = town.owner.get("/t/acorn/pools").content.decode()
    assert page.count(">unreachable</a>") == 1
    assert page.count("since 2023-11-14 22:13:20 UTC") == 1
    assert "1,234 blocks" not in page
    assert "77 blocks by events" in page
    own = town.owner.get(f"/t/acorn/replicas/{gone.id}").content.decode()
    assert "No router reaches this replica since 2023-11-14 22:13:20 UTC" in own
    assert "1,234" not in own
    assert "No router reaches" not in town.owner.get(f"/t/acorn/replicas/{there.id}").content.decode()
    live = town.owner.get("/t/acorn/overview/replicas").content.decode()
    assert live.count(">unreachable</a>") == 1
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.filter(id=gone.id).update(state="paused")
    assert ">unreachable</a>" not in town.owner.get("/t/acorn/pools").content.decode()


@pytest.mark.usefixtures("valkey_url")
def test_no_router_is_said(town: Town) -> None:
    assert "no router reports" in town.owner.get("/t/acorn/applied").content.decode()


def test_a_page_opens_when_valkey_does_not(town: Town, settings: Settings) -> None:
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    assert "Valkey does not answer" in town.owner.get("/t/acorn/pools").content.decode()
    assert "routers unknown" in town.owner.get("/t/acorn/applied").content.decode()


def test_many_replicas_cost_no_more_queries(town: Town) -> None:
    town.owner.get("/t/acorn/pools")  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn/pools")
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.bulk_create(
            Replica(tenant_id=town.acorn.tenant_id, pool_id=town.acorn.pool_id, name=f"r{n}", url=f"http://127.0.0.1:{9500 + n}") for n in range(40)
        )
    with CaptureQueriesContext(connection) as many:
        assert "r39" in town.owner.get("/t/acorn/pools").content.decode()
    assert len(many) == len(few)


def test_a_tenant_without_pools_is_told_how_to_declare_one(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        for model in (Endpoint, Replica, PoolGrant, Pool):
            model.objects.all().delete()
    page = town.owner.get("/t/acorn/pools").content.decode()
    assert "No pool yet" in page
    assert "manage.py apply -f saltroute.yaml" in page


def test_a_viewer_is_offered_no_verb(town: Town) -> None:
    assert "/drain" in town.owner.get("/t/acorn/pools").content.decode()
    assert "/drain" not in town.viewer.get("/t/acorn/pools").content.decode()


def test_names_are_text() -> None:
    made = rows.tenant("cedar", replicas=("<img src=x onerror=alert(1)>",))
    owner = rows.person("cedar@example.com")
    rows.member(made.tenant_id, owner, "owner")
    from django.test import Client

    client = Client()
    client.force_login(owner)
    for path in ("/pools", f"/replicas/{made.replica_ids[0]}/drain"):
        page = client.get(f"/t/cedar{path}").content.decode()
        assert "<img" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page
