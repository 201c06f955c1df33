"""The overview: sums by endpoint over a range, and only of the tenant's own requests."""

from __future__ import annotations

import html
import io
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from deploy.local import demo
from routing.core.record import CauseRecord
from routing.core.replica_state import ReplicaState
from routing.models import Endpoint, RecordAccount
from routing.services import record_store, rollups
from tenants import changes
from tenants.actor import system
from tenants.models import Scope
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


def _seconds(shown: str) -> float:
    """Of ``1.2 s`` or ``990 ms``."""
    value, unit = shown.split(" ")
    return float(value) / {"s": 1, "ms": 1000}[unit]


def _figures(page: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))


def _section(page: str, name: str) -> str:
    return page.split(f'id="{name}"')[1].partition("</section>")[0]


def test_requests_errors_ttft_and_reuse_of_a_range(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    good = [rows.record(made, ttft_s=0.1 * n, prompt_tokens=1000, matched_tokens=800, cached_tokens=600) for n in range(1, 11)]
    bad = [
        rows.record(made, outcome="upstream_error", status=502, ttft_s=None, cached_tokens=None, prompt_tokens=None),
        rows.record(made, outcome="refused", status=503, ttft_s=None, cached_tokens=None, prompt_tokens=None),
    ]
    old = rows.record(made, started_at=rows.ago(hours=3))
    rows.store(as_owner, made, *good, *bad, old)
    rows.store(as_owner, town.birch, rows.record(town.birch))
    figures = _figures(town.owner.get("/t/acorn").content.decode())
    assert figures["Requests"] == "12"
    assert figures["Failed"] == "8.3 %"
    p50, p95 = (figures[name] for name in ("TTFT p50", "TTFT p95"))
    assert p50.endswith(" ms")
    assert float(p50[:-3]) == pytest.approx(500, rel=0.02)
    assert _seconds(p95) == pytest.approx(1.0, rel=0.02)
    assert figures["Cached tokens"] == "60 %"
    assert figures["Predicted reuse"] == "80 %"
    assert _figures(town.owner.get("/t/acorn?range=6h").content.decode())["Requests"] == "13"
    # an unknown range is the ordinary one
    assert _figures(town.owner.get("/t/acorn?range=%3Cimg%3E").content.decode())["Requests"] == "12"


def test_requests_that_named_no_endpoint_are_counted_apart(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, rows.record(town.acorn), rows.record(town.acorn, endpoint_id=None, outcome="client_error", status=404))
    page = town.owner.get("/t/acorn").content.decode()
    assert _figures(page)["Requests"] == "2"
    assert _figures(page)["Client errors"] == "1"
    assert sorted(re.findall(r'data-label="Client errors">(\d+)<', _section(page, "by-endpoint"))) == ["0", "1"]  # of the endpoint, and of none
    assert "before an endpoint was known" in page


def _document(page: str) -> dict[str, Any]:
    """What the browser draws."""
    found: dict[str, Any] = json.loads(html.unescape(re.findall(r'data-series="([^"]*)"', page)[0]))
    return found


def _lines(page: str, plot: str) -> dict[str, list[float | None]]:
    (one,) = [one for one in _document(page)["plots"] if one["id"] == plot]
    return {line["label"]: line["values"] for line in one["lines"]}


def test_reuse_is_shown_beside_its_ceiling_and_what_it_saved(town: Town, as_owner: AsOwner) -> None:
    """The ceiling is what the router knows to have been sent before, whether or not an engine still had it."""
    evicted = CauseRecord(parts_us={"missed_evicted": 1000}, missed_tokens={"evicted": 300, "never_seen": 90}, warm_tokens=990)
    usual: dict[str, Any] = {"prompt_tokens": 1000, "cached_tokens": 600, "prefill_tokens_per_s": 300.0}
    rows.store(as_owner, town.acorn, rows.record(town.acorn, cause=evicted, **usual), rows.record(town.acorn, **usual))
    page = town.owner.get("/t/acorn").content.decode()
    figures = _figures(page)
    assert figures["Ceiling of reuse"] == "75 %"  # (900 + 600) of 2,000
    assert figures["Cached tokens"] == "60 %"
    assert figures["GPU time saved"] == "4.00 s"
    assert [value for value in _lines(page, "reuse")["ceiling"] if value is not None] == [0.75]
    assert [value for value in _lines(page, "reuse")["realised"] if value is not None] == [0.6]
    assert ">75 %</td>" in page.split("The plots as a table")[1]


def test_tokens_and_gpu_time_saved_are_told_by_endpoint_and_by_scope(town: Town, as_owner: AsOwner) -> None:
    """With every other figure of the table; a tenant all of whose requests act in one scope has no table of scopes."""
    made = town.acorn
    with tenant_scope(made.tenant_id):
        support = Scope.objects.get(path="support").id
    told: dict[str, Any] = {"prompt_tokens": 1000, "matched_tokens": 800, "prefill_tokens_per_s": 300.0, "ttft_s": 0.5}
    rows.store(as_owner, made, rows.record(made, cached_tokens=600, **told))
    assert 'id="by-scope"' not in town.owner.get("/t/acorn").content.decode()
    deleted = {"endpoint_id": uuid.uuid4(), "scope_id": uuid.uuid4()}
    none = {"endpoint_id": None, "scope_id": None, "outcome": "refused", "status": 401, "ttft_s": None, "prompt_tokens": None, "cached_tokens": None}
    rows.store(
        as_owner,
        made,
        *(rows.record(made, cached_tokens=300, scope_id=support, **told) for _ in range(2)),
        rows.record(made, cached_tokens=900, **{**told, **deleted}),
        rows.record(made, **none),
    )
    rows.store(as_owner, town.birch, rows.record(town.birch, cached_tokens=900, **told))
    page = town.owner.get("/t/acorn").content.decode()

    def table(name: str) -> dict[str, list[str]]:
        found = re.findall(r'<th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', _section(page, name), re.S)
        return {re.sub(r"<[^>]+>", "", place).split(":")[0]: re.findall(r'<td class="num"[^>]*>([^<]*)<', cells) for place, cells in found}

    scopes, endpoints = table("by-scope"), table("by-endpoint")
    assert set(scopes) == {"support", "(root)", "a deleted scope", "before a scope was known"}
    assert set(endpoints) == {"llama-chat", "a deleted endpoint", "before an endpoint was known"}
    assert scopes["support"] == ["2", "0", "0", "0", scopes["support"][4], scopes["support"][4], "80 %", "30 %", "600", "2.00 s"]
    assert scopes["(root)"][-2:] == ["600", "2.00 s"]
    assert scopes["a deleted scope"][-2:] == endpoints["a deleted endpoint"][-2:] == ["900", "3.00 s"]
    assert scopes["before a scope was known"][:3] == ["1", "0", "1"]
    assert endpoints["llama-chat"][-2:] == ["1,200", "4.00 s"]
    assert f"?range=1h&amp;scope={support}" in page
    assert 'id="by-scope"' not in town.owner.get(f"/t/acorn?scope={support}").content.decode()


def test_objectives_are_drawn_and_late_answers_counted(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, ttft_s=ttft_s, slo_ttft_s=2.0) for ttft_s in (0.5, 1.0, 3.0, 4.0)))
    page = town.owner.get("/t/acorn").content.decode()
    assert "50 % after their objective" in page
    (ttft,) = [one for one in _document(page)["plots"] if one["id"] == "ttft"]
    assert ttft["limits"] == [{"label": "objective", "value": 2.0}]
    assert set(_lines(page, "ttft")) == {"p50", "p95", "p99"}


def test_a_range_is_narrowed_to_an_endpoint_and_a_scope(town: Town, as_owner: AsOwner) -> None:
    """By id or by name; an id of another tenant narrows to nothing that is not the caller's."""
    made = town.acorn
    with tenant_scope(made.tenant_id):
        one = Endpoint.objects.get()
        first = one.id
        one.id, one.name = uuid.uuid4(), "second"
        one._state.adding = True
        one.save()
        scope_id = uuid.UUID(str(one.grant_id))  # any id that is no scope
    records = [rows.record(made), rows.record(made, scope_id=scope_id), rows.record(made, endpoint_id=one.id)]
    rows.store(as_owner, made, *records)
    rows.store(as_owner, town.birch, rows.record(town.birch))

    def requests(query: str) -> str:
        return _figures(town.owner.get(f"/t/acorn?{query}").content.decode())["Requests"]

    assert requests("") == "3"
    assert requests(f"endpoint={first}") == "2"
    assert requests("endpoint=second") == "1"
    assert requests(f"scope={made.root_scope_id}") == "2"
    assert requests(f"endpoint={first}&scope={made.root_scope_id}") == "1"
    assert requests(f"endpoint={town.birch.endpoint_id}") == "3"
    narrowed = town.owner.get(f"/t/acorn?endpoint={first}&range=6h").content.decode()
    assert f"?range=24h&amp;endpoint={first}" in narrowed
    assert len(re.findall(r'id="endpoint-', narrowed)) == 1


@pytest.mark.parametrize("name", ["15m", "1h", "6h", "24h", "7d"])
def test_a_range_holds_its_requests_before_and_after_folding(town: Town, as_owner: AsOwner, name: str) -> None:
    """Of every age, in the sums of all, of each endpoint and of the points; what is older than the range is not in it."""
    minutes = {"15m": 15, "1h": 60, "6h": 360, "24h": 1440, "7d": 10_080}
    inside = [rows.record(town.acorn, started_at=rows.ago(minutes=minutes[name] * share / 100)) for share in range(0, 100, 7)]
    outside = rows.record(town.acorn, started_at=rows.ago(minutes=minutes[name] * 1.4 + 2))
    rows.store(as_owner, town.acorn, *inside, outside)
    for _ in range(2):
        page = town.owner.get(f"/t/acorn?range={name}").content.decode()
        assert _figures(page)["Requests"] == str(len(inside))
        assert re.findall(r'data-label="Requests">(\d+)<', _section(page, "by-endpoint")) == [str(len(inside))]
        narrowed = town.owner.get(f"/t/acorn?range={name}&endpoint={town.acorn.endpoint_id}").content.decode()
        assert _figures(narrowed)["Requests"] == str(len(inside))
        with tenant_scope(town.acorn.tenant_id), as_owner():
            rollups.fold(town.acorn.tenant_id, timezone.now())


def test_what_changed_is_marked_and_says_not_who(town: Town, as_owner: AsOwner) -> None:
    """Changes of policies, epochs and replicas, and starts of routers; a member's removal is none of these."""
    made = town.acorn
    rows.store(as_owner, made, rows.record(made))
    with tenant_scope(made.tenant_id):
        for action, label in (("endpoint.rotate_epoch", "llama-chat"), ("replica.drain", "a"), ("member.remove", "secret@example.com")):
            changes.record(tenant_id=made.tenant_id, actor=system("ada"), action=action, object_id=made.endpoint_id, object_label=label)
    with tenant_scope(town.birch.tenant_id):
        changes.record(tenant_id=town.birch.tenant_id, actor=system("bob"), action="replica.drain", object_label="birches")
    RecordAccount.objects.create(at=timezone.now(), router_id="router-7", boot_ms=int(rows.ago(minutes=5) * 1000), highest=1, stored=1, refused=0)
    page = town.viewer.get("/t/acorn").content.decode()
    assert [one["text"] for one in _document(page)["markers"]] == ["router started: router-7", "epoch rotated: llama-chat", "replica drained: a"]
    assert "What changed: 3 marks" in page
    for word in ("secret@example.com", "birches", "ada"):
        assert word not in page.split("<main")[1]


def _state(tenant_id: uuid.UUID, replica_id: uuid.UUID, **fields: Any) -> ReplicaState:
    usual: dict[str, Any] = {"router_id": "r1", "started_at": rows.ago(minutes=3), "observed_us": 10_000_000}
    return ReplicaState(id=uuid.uuid4(), tenant_id=tenant_id, replica_id=replica_id, **{**usual, **fields})


def test_replicas_show_what_they_did_and_none_of_another_pool(town: Town, as_owner: AsOwner) -> None:
    made, (first, second) = town.acorn, town.acorn.replica_ids
    held = {"event_us": 10_000_000, "evicted_blocks": 25, "kv_used_ppm": 400_000, "resident_blocks": 100, "distinct_blocks": 75}
    with tenant_scope(made.tenant_id), as_owner():
        states = [
            _state(made.tenant_id, first, busy_us=5_000_000, **held),
            _state(made.tenant_id, first, busy_us=5_000_000, router_id="r2"),
            _state(made.tenant_id, second, resident_blocks=100, distinct_blocks=75),
        ]
        assert record_store.store_states(states).stored == 3
    page = town.viewer.get("/t/acorn").content.decode()
    row = page.split('href="/t/acorn/replicas/' + str(first))[1].split("</tr>")[0]
    assert re.findall(r">([^<>]+)</td>", row)[:5] == ["75 %", "40 %", "2.5", "100", "1.33"]
    assert _figures(page)["Duplication"] == "1.33"  # 200 resident over 150 distinct
    other = town.stranger.get("/t/birch").content.decode()
    assert "75 %" not in other
    live = town.viewer.get("/t/acorn/overview/replicas?range=1h").content.decode()
    assert "not reported" in live  # no router speaks here
    assert "75 %" in live
    assert town.stranger.get("/t/acorn/overview/replicas").status_code == 404
    assert town.viewer.get("/t/acorn?range=15m").status_code == 200


def test_many_endpoints_cost_no_more_queries(town: Town, as_owner: AsOwner) -> None:
    town.owner.get("/t/acorn")  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn")
    with tenant_scope(town.acorn.tenant_id):
        one = Endpoint.objects.get()
        for number in range(30):
            one.id, one.name = uuid.uuid4(), f"endpoint-{number}"
            one._state.adding = True
            one.save()
            rows.store(as_owner, town.acorn, rows.record(town.acorn, endpoint_id=one.id))
    with CaptureQueriesContext(connection) as many:
        assert "endpoint-29" in town.owner.get("/t/acorn").content.decode()
    assert len(many) == len(few)


def test_a_new_tenant_is_told_what_to_run(town: Town) -> None:
    page = town.owner.get("/t/acorn").content.decode()
    assert "No requests in this range" in page
    assert "curl -N" in page
    with tenant_scope(town.birch.tenant_id):
        Endpoint.objects.all().delete()
    assert "manage.py apply" in town.stranger.get("/t/birch").content.decode()


def test_the_declaration_of_an_empty_page_can_be_tried_as_printed(town: Town, tmp_path: Path) -> None:
    """With the interpreter of the README, and beside a running demo, whose replicas have addresses of their own."""
    with tenant_scope(town.birch.tenant_id):
        Endpoint.objects.all().delete()
    page = html.unescape(town.stranger.get("/t/birch").content.decode())
    shown = re.search(r"<code id=\"declare\">cat > saltroute.yaml <<'END'\n(.+)\nEND\n(.+)</code>", page, re.DOTALL)
    assert shown
    assert shown[2] == ".venv/bin/python manage.py apply -f saltroute.yaml --dry-run"
    file = tmp_path / "saltroute.yaml"
    file.write_text(shown[1])
    url = yaml.safe_load(shown[1])["tenants"][0]["endpoints"][0]["replicas"][0]["url"]
    assert url not in demo.DECLARATION.read_text()
    assert "http://127.0.0.1:9001" in demo.DECLARATION.read_text()
    out = io.StringIO()
    call_command("apply", "-f", str(file), "--dry-run", stdout=out)
    assert "my-model" in out.getvalue()
