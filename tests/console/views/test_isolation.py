"""Isolation in the console: states, audits and their evidence, identity events, and rotating an epoch."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from namespaces.audit import evidence
from routing.models import AuditRun, Endpoint, Pool, PoolGrant, Replica
from routing.services import endpoints
from tenants.actor import system
from tenants.models import AuditEntry, Tenant
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Made, Town

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
EVIL = "<img src=x onerror=alert(1)>"


def _page(town: Town, who: str = "owner", path: str = "/t/acorn/isolation") -> str:
    response = getattr(town, who).get(path)
    assert response.status_code == 200
    text: str = response.content.decode()
    return text


def _platform_pool(grantee: Made) -> None:
    """A pool of the platform's with one replica, granted."""
    tenant_id = uuid.uuid4()
    with tenant_scope(tenant_id):
        Tenant.objects.create(id=tenant_id, slug="platform", name="Platform")
        pool = Pool.objects.create(tenant_id=tenant_id, name="shared-pool", isolation="audited")
        PoolGrant.objects.create(tenant_id=tenant_id, pool=pool)
        Replica.objects.create(tenant_id=tenant_id, pool=pool, name="secret-name", url="http://127.0.0.1:9400", isolation_state="isolated")
    with tenant_scope(grantee.tenant_id):
        PoolGrant.objects.create(tenant_id=grantee.tenant_id, pool_id=pool.id)


def test_a_replica_shows_state_since_reason_build_and_todays_tokens(town: Town) -> None:
    now = timezone.now()
    first, second = town.acorn.replica_ids
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.filter(id=first).update(
            isolation_state="quarantined",
            isolation_since=now - timedelta(hours=3),
            isolation_reason="seen twice",
            build="b1946ac92492d2347c62",
            audit_day=now.date(),
            audit_tokens=31_337,
            audit_busy_until=now + timedelta(minutes=5),
        )
        Replica.objects.filter(id=second).update(audit_day=now.date() - timedelta(days=1), audit_tokens=4711)
    page = _page(town)
    assert '>quarantined</a> <span class="pill">audit runs</span>' in page
    for said in ("3 h ago", "seen twice", "b1946ac92492…", "31,337", ">unverified</a>", "/repaired"):
        assert said in page
    assert "4,711" not in page  # yesterday's


def test_the_platforms_replicas_are_the_operators_to_see(town: Town) -> None:
    _platform_pool(town.acorn)
    page = _page(town)
    assert "Replicas of shared-pool are the platform" in page
    assert "secret-name" not in page
    everything = _page(town, "operator")
    assert re.search(r'secret-name <span class="pill">platform</span>', everything)
    assert "secret-name" in _page(town, "operator", "/t/platform/isolation")
    assert "secret-name" not in _page(town, "operator", "/t/birch/isolation")


def test_an_audit_is_ordered_for_every_replica_as_over_the_api(town: Town) -> None:
    page = town.owner.post("/t/acorn/isolation", {"endpoint": str(town.acorn.endpoint_id)}, follow=True).content.decode()
    assert "2 audits are ordered through llama-chat" in page
    assert page.count(">waits</a>") == 2
    with tenant_scope(town.acorn.tenant_id):
        runs = list(AuditRun.objects.order_by("replica_name"))
        assert [entry.actor_label for entry in AuditEntry.objects.filter(action="audit.order")] == ["owner@example.com"] * 2
    assert [(run.replica_name, run.trigger, run.requested_by) for run in runs] == [(name, "demand", "owner@example.com") for name in "ab"]


def test_audits_of_the_platforms_replicas_are_ordered_by_its_operators(town: Town) -> None:
    """They spend what all tenants of the pool live by. The page proposes an own audited pool; a tenant on granted pools only is offered none."""
    _platform_pool(town.acorn)
    with tenant_scope(town.acorn.tenant_id):
        own = Endpoint.objects.get(id=town.acorn.endpoint_id)
        grant = PoolGrant.objects.exclude(id=own.grant_id).get()
        copied = {name: getattr(own, name) for name in ("tenant_id", "model", "served_model", "routing_policy", "slo_policy", "context")}
        shared = Endpoint.objects.create(**copied, name="a-shared", grant=grant)
        Endpoint.objects.create(**copied, name="b-vouched", grant=own.grant)
        audited = Pool.objects.create(tenant_id=town.acorn.tenant_id, name="proved", isolation="audited")
        Endpoint.objects.create(**copied, name="z-proved", grant=PoolGrant.objects.create(tenant_id=town.acorn.tenant_id, pool=audited))
    offered = r'<option value="[^"]+">([^<]+)</option>'
    assert re.findall(offered, _page(town)) == ["z-proved", "b-vouched", "llama-chat"]
    assert re.findall(offered, _page(town, "operator")) == ["z-proved", "b-vouched", "llama-chat", "a-shared"]
    refused = town.owner.post("/t/acorn/isolation", {"endpoint": str(shared.id)})
    assert refused.status_code == 403
    assert "only a platform operator orders one there" in refused.content.decode()
    with tenant_scope(town.acorn.tenant_id):
        assert not AuditRun.objects.exists()
        Endpoint.objects.exclude(id=shared.id).delete()
    page = _page(town)
    assert "Run an audit now" not in page
    assert "whose audits the platform orders" in page
    ordered = town.operator.post("/t/acorn/isolation", {"endpoint": str(shared.id)}, follow=True)
    assert "One audit is ordered through a-shared" in ordered.content.decode()


@pytest.mark.parametrize("endpoint", ["", "llama-chat", str(uuid.UUID(int=7)), "birch's"])
def test_an_order_through_no_endpoint_of_the_tenant_is_absent(town: Town, endpoint: str) -> None:
    wanted = str(town.birch.endpoint_id) if endpoint == "birch's" else endpoint
    assert town.owner.post("/t/acorn/isolation", {"endpoint": wanted}).status_code == 404
    with tenant_scope(town.acorn.tenant_id):
        assert not AuditRun.objects.exists()


def test_an_order_without_a_replica_in_service_is_refused(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.update(state="paused")
    response = town.owner.post("/t/acorn/isolation", {"endpoint": str(town.acorn.endpoint_id)})
    assert response.status_code == 400
    assert "no such replica in service" in response.content.decode()


def test_a_run_shows_its_matrix_and_hands_out_its_report(town: Town) -> None:
    run = rows.audit_run(town.acorn)
    assert f"/isolation/audits/{run.id}" in _page(town, "viewer")
    page = _page(town, "viewer", f"/t/acorn/isolation/audits/{run.id}")
    for said in ("Same tokens under two identities", '<td data-label="Rows">14, 15</td>', "not tried", "no image model here", "41,337"):
        assert said in page
    assert re.search(r'Negatives">60</td>\s*<td class="num" data-label="Controls">58</td>\s*<td class="num" data-label="Bound">5 %</td>', page)
    assert "owner@example.com" not in page.partition("<main")[2]
    assert "by owner@example.com" in _page(town, "owner", f"/t/acorn/isolation/audits/{run.id}")
    report = town.viewer.get(f"/t/acorn/isolation/audits/{run.id}/report")
    assert evidence.verify(report.content) == {"format": "saltroute-audit/1", "outcome": "pass"}
    assert report.content == town.viewer.get(f"/api/v1/audits/{run.id}/export").content
    assert report.headers["Content-Disposition"] == f'attachment; filename="saltroute-audit-{run.id}.json"'
    assert report.headers["Cache-Control"] == "private, no-store"


def test_a_run_that_has_not_ended_has_no_report(town: Town) -> None:
    unsigned = dict.fromkeys(["evidence", "signature", "evidence_key", "failure_bound_ppm", "started_at", "finished_at"])
    run = rows.audit_run(town.acorn, state="queued", outcome="", cases=[], **unsigned)
    page = _page(town, "owner", f"/t/acorn/isolation/audits/{run.id}")
    assert "It waits for a worker" in page
    assert "/report" not in page
    assert town.owner.get(f"/t/acorn/isolation/audits/{run.id}/report").status_code == 404


def test_rotating_an_epoch_says_its_cost_wants_a_reason_and_becomes_an_event(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, *[rows.record(town.acorn, namespace=f"ns-{n}", prompt_tokens=1200, cached_tokens=200) for n in range(3)])
    url = f"/t/acorn/endpoints/{town.acorn.endpoint_id}/rotate-epoch"
    question = _page(town, "owner", url)
    assert "Rotate the epoch of llama-chat?" in question
    assert re.search(r"<dt>Namespaces</dt><dd>3 ", question)
    assert re.search(r"<dt>Computed again</dt><dd>3,000 tokens", question)
    assert "assumed: too few streamed answers were seen" in question
    for reason in ("", " ", "bad\u200breason"):
        wrong = town.owner.post(url, {"reason": reason})
        assert wrong.status_code == 400
        assert 'id="reason-wrong"' in wrong.content.decode()
    with tenant_scope(town.acorn.tenant_id):
        before = Endpoint.objects.get(id=town.acorn.endpoint_id).epoch
        assert not AuditEntry.objects.exists()
    page = town.owner.post(url, {"reason": "a leak"}, follow=True).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        assert Endpoint.objects.get(id=town.acorn.endpoint_id).epoch == before + 1
    assert f"Endpoint llama-chat is at epoch {before + 1}." in page
    assert "“a leak”" in page
    assert '<td class="num" data-label="Namespaces">3</td>' in page
    assert "3,000 tokens, at an assumed rate" in page
    assert 'data-label="Who">owner@example.com' in page


def test_a_viewer_reads_all_but_names_and_is_offered_nothing(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        endpoints.rotate_epoch(tenant_id=town.acorn.tenant_id, actor=system("night shift"), endpoint_id=town.acorn.endpoint_id, reason="an incident")
    page = _page(town, "viewer")
    assert "an incident" in page
    for hidden in ("night shift", "Run an audit now", 'rotate-epoch"'):
        assert hidden not in page
    full = _page(town)
    for offered in ("night shift", "Run an audit now", 'rotate-epoch"'):
        assert offered in full


def test_a_refresh_does_not_count_events(town: Town) -> None:
    with CaptureQueriesContext(connection) as whole:
        town.owner.get("/t/acorn/isolation")
    with CaptureQueriesContext(connection) as live:
        page = town.owner.get("/t/acorn/isolation", headers={"HX-Request": "true"}).content.decode()
    assert 'id="live"' in page
    assert any("endpoint.rotate_epoch" in one["sql"] for one in whole)
    assert not any("endpoint.rotate_epoch" in one["sql"] for one in live)


def test_long_lists_are_paged_in_a_fixed_number_of_queries(town: Town) -> None:
    def one_more(number: int) -> None:
        rows.audit_run(town.acorn, replica_name=f"replica-{number}")
        with tenant_scope(town.acorn.tenant_id):
            endpoints.rotate_epoch(
                tenant_id=town.acorn.tenant_id, actor=system("test"), endpoint_id=town.acorn.endpoint_id, reason=f"reason-{number}"
            )

    one_more(0)
    _page(town)  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        _page(town)
    for number in range(1, 25):
        one_more(number)
    with CaptureQueriesContext(connection) as many:
        page = _page(town)
    assert len(many) == len(few)
    for parameter, label in (("before", "replica"), ("events", "reason")):
        older = re.search(rf'href="(\?{parameter}=[^"]+)">Older', page)
        assert older
        second = _page(town, "owner", "/t/acorn/isolation" + older[1].replace("&amp;", "&").partition("#")[0])
        assert len(set(re.findall(rf"{label}-\d+", page))) == 20
        assert set(re.findall(rf"{label}-\d+", second)) == {f"{label}-{n}" for n in range(5)}


def test_empty_lists_teach(town: Town) -> None:
    page = _page(town)
    assert "No audit yet" in page
    assert "curl -X POST http://testserver/api/v1/audits" in page
    assert "No event yet" in page
    assert "curl" not in _page(town, "viewer")
    with tenant_scope(town.acorn.tenant_id):
        for model in (Endpoint, Replica, PoolGrant, Pool):
            model.objects.all().delete()
    bare = _page(town)
    assert "becomes <strong>isolated</strong> with its first clean audit" in bare
    assert "manage.py apply -f saltroute.yaml" in bare
    assert "Run an audit now" not in bare


def test_names_and_reasons_are_text(town: Town) -> None:
    case = {**rows.CASES[0], "title": EVIL, "name": EVIL, "reason": EVIL, "outcome": EVIL}
    evil = {"replica_name": EVIL, "pool_name": EVIL, "endpoint_name": EVIL, "reason": EVIL, "build": EVIL, "epochs": EVIL, "requested_by": EVIL}
    run = rows.audit_run(town.acorn, cases=[case], **evil)
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.update(isolation_reason=EVIL, build=EVIL)
        Endpoint.objects.update(name=EVIL)
        endpoints.rotate_epoch(tenant_id=town.acorn.tenant_id, actor=system(EVIL), endpoint_id=town.acorn.endpoint_id, reason=EVIL)
    for path in ("/isolation", f"/isolation/audits/{run.id}", f"/endpoints/{town.acorn.endpoint_id}/rotate-epoch"):
        page = _page(town, "owner", f"/t/acorn{path}")
        assert "<img" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page
        assert 'style="' not in page


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("earlier", "newest", "kept"),
    [
        ({}, {}, True),
        ({"outcome": "fail"}, {}, False),
        ({"outcome": "inconclusive"}, {}, False),
        ({"build": "another"}, {}, False),
        ({"build": ""}, {"build": ""}, False),
        ({"finished_at": timezone.now() - timedelta(days=8)}, {}, False),
        ({}, {"outcome": "fail"}, False),
        ({}, {"outcome": "inconclusive"}, False),  # of an older release, which did not say whether something was odd
        ({}, {"outcome": "inconclusive", "cases": []}, True),
        ({}, {"outcome": "inconclusive", "cases": [{**rows.CASES[0], "odd": False}]}, True),
        ({}, {"outcome": "inconclusive", "cases": [{**rows.CASES[0], "odd": False}, {**rows.CASES[0], "odd": True}]}, False),
        ({"outcome": "inconclusive", "cases": []}, {}, False),  # takes nothing back, and proves nothing itself
        ({"build": "another"}, {"outcome": "inconclusive", "cases": [{**rows.CASES[0], "odd": False}]}, False),
    ],
)
def test_a_shorter_audit_that_passes_does_not_weaken_the_proof_of_the_same_build(
    town: Town, earlier: dict[str, Any], newest: dict[str, Any], kept: bool
) -> None:
    long = rows.audit_run(town.acorn, **{"negative_probes": 61, "finished_at": timezone.now() - 3 * HOUR, **earlier})
    rows.audit_run(town.acorn, negative_probes=35, finished_at=timezone.now() - 2 * HOUR, replica_id=town.acorn.replica_ids[1])
    short = rows.audit_run(town.acorn, **{"negative_probes": 20, "finished_at": timezone.now() - HOUR, **newest})
    page = _page(town, "viewer")
    matrix = page[page.index('id="matrix"') : page.index("<h2>Audits</h2>")]
    shown, other = (long, short) if kept else (short, long)
    assert f"/audits/{shown.id}#case-two_salts" in matrix
    assert f"/audits/{other.id}#case-two_salts" not in matrix
    how = "" if short.outcome == "pass" else "inconclusive, "
    assert (f'/audits/{short.id}">newest</a>: {how}20 negative probes, <time' in matrix) == kept


@pytest.mark.parametrize(("odd", "kept"), [(False, True), (True, False)])
def test_an_audit_between_two_that_told_nothing_parts_them_no_more_than_none(town: Town, odd: bool, kept: bool) -> None:
    long = rows.audit_run(town.acorn, negative_probes=61, finished_at=timezone.now() - 3 * HOUR)
    unclear = [{**rows.CASES[0], "odd": odd}]
    rows.audit_run(town.acorn, outcome="inconclusive", negative_probes=2, cases=unclear, finished_at=timezone.now() - 2 * HOUR)
    rows.audit_run(town.acorn, negative_probes=20, finished_at=timezone.now() - HOUR)
    assert (f"/audits/{long.id}#case-two_salts" in _page(town, "viewer").partition("<h2>Audits</h2>")[0]) == kept


def test_the_matrix_is_a_grid_of_replicas_and_cases(town: Town) -> None:
    """Of each replica the newest audit that ended; each cell leads to its evidence, and to the signed report; a stranger's has no part in it."""
    old = rows.audit_run(town.acorn, outcome="fail", finished_at=timezone.now() - timedelta(hours=3))
    newest = rows.audit_run(town.acorn)
    routes = {**rows.CASES[0], "name": "routes", "negative_probes": 4, "controls_seen": 4}
    cases = [rows.CASES[0], routes]
    second = rows.audit_run(town.acorn, replica_id=town.acorn.replica_ids[1], replica_name="b", cases=cases)
    rows.audit_run(town.acorn, state="queued", outcome="", finished_at=None)
    rows.audit_run(town.birch)
    page = town.viewer.get("/t/acorn/isolation").content.decode()
    matrix = page[page.index('id="matrix"') : page.index("<h2>Audits</h2>")]
    assert f"/isolation/audits/{newest.id}#case-two_salts" in matrix
    assert "#case-images" not in matrix  # no probe could try it
    assert "in each report: images and prompt embeddings." in matrix
    assert f"/isolation/audits/{newest.id}/report" in matrix
    assert f"/isolation/audits/{second.id}#case-two_salts" in matrix
    assert (matrix.count("not tried"), matrix.count("60 / 58")) == (1, 2)
    assert str(old.id) not in matrix
    assert 'id="case-two_salts"' in town.viewer.get(f"/t/acorn/isolation/audits/{newest.id}").content.decode()
    assert 'id="matrix"' not in town.stranger.get("/t/birch/isolation").content.decode().replace('id="matrix"', "", 1)
