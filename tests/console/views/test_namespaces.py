"""Namespaces in the console: the list, and one namespace with its components, what ended it, where it was found, and its audits."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.reads import namespaces
from namespaces.models import TenantKeyVersion
from routing.core.record import DecisionRecord
from routing.models import Endpoint, ModelSpec
from routing.services import catalogue, endpoints
from tenants.actor import system
from tenants.models import ApiKey, Scope
from tenants.scoping import tenant_scope
from tenants.services import scopes
from tests.console import rows
from tests.console.rows import AsOwner, Made, Town

pytestmark = pytest.mark.django_db
NS = "ns-1f2e3d"
EVIL = "<img src=x onerror=alert(1)>"


def _page(town: Town, namespace: str = NS, who: str = "owner") -> str:
    response = getattr(town, who).get(f"/t/acorn/namespaces/{namespace}")
    assert response.status_code == 200
    text: str = response.content.decode()
    return text


def _section(page: str, name: str) -> str:
    return page.split(f'id="{name}"')[1].partition("</section>")[0]


def _figures(page: str) -> dict[str, str]:
    return {name: re.sub(r"<[^>]+>", "", said) for name, said in re.findall(r"<dt>([^<]+)</dt><dd>(.*?)</dd>", page)}


def _component(page: str, name: str) -> str:
    """The row of one component."""
    (row,) = re.findall(rf'<th scope="row">{name}</th>.*?</tr>', _section(page, "identity"), re.S)
    return str(row)


def _seen(town: Town, as_owner: AsOwner, *records: DecisionRecord) -> None:
    rows.store(as_owner, town.acorn, *(records or (rows.record(town.acorn, started_at=rows.ago(minutes=5)),)))


def test_the_list_has_each_namespace_once_with_its_reuse(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    usual: dict[str, Any] = {"prompt_tokens": 1000, "matched_tokens": 800, "cached_tokens": 500}
    _seen(
        town,
        as_owner,
        rows.record(made, started_at=rows.ago(hours=2), **usual),
        rows.record(made, started_at=rows.ago(hours=1), **{**usual, "cached_tokens": 700}),
        rows.record(made, namespace="ns-b", started_at=rows.ago(minutes=1), endpoint_id=uuid.uuid4(), scope_id=uuid.uuid4()),
        rows.record(made, namespace="ns-probe", audit=True),
        rows.record(made, namespace=None, outcome="refused", status=404),
        rows.record(made, namespace="ns-old", started_at=rows.ago(days=8)),
    )
    rows.store(as_owner, town.birch, rows.record(town.birch, namespace="ns-theirs"))
    page = town.viewer.get("/t/acorn/namespaces").content.decode()
    assert re.findall(r"/t/acorn/namespaces/(ns-[\w-]+)", page) == ["ns-b", NS]
    first, second = re.findall(r"<tr><th.*?</tr>", page.split("<tbody>")[1], re.S)
    assert "a deleted endpoint" in first
    assert "a deleted scope" in first
    assert "llama-chat" in second
    assert "(root)" in second
    assert re.findall(r'class="num" data-label="\w+">([^<]+)<', second) == ["2", "80 %", "60 %"]
    narrowed = town.viewer.get(f"/t/acorn/namespaces?endpoint={made.endpoint_id}").content.decode()
    assert re.findall(r"/t/acorn/namespaces/(ns-[\w-]+)", narrowed) == [NS]
    assert "No request of this endpoint" in town.viewer.get(f"/t/acorn/namespaces?endpoint={town.birch.endpoint_id}").content.decode()


def test_a_tenant_without_requests_is_taught_what_a_namespace_is(town: Town) -> None:
    page = town.owner.get("/t/acorn/namespaces").content.decode()
    assert "No namespace yet" in page
    assert "curl -N" in page


def test_a_namespace_shows_its_traffic_of_its_own(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    usual: dict[str, Any] = {"prompt_tokens": 1000, "matched_tokens": 900, "cached_tokens": 600, "started_at": rows.ago(minutes=3)}
    _seen(
        town,
        as_owner,
        rows.record(made, ttft_s=0.2, **usual),
        rows.record(made, ttft_s=0.4, **usual),
        rows.record(made, ttft_s=None, outcome="upstream_error", status=502, **{**usual, "cached_tokens": None, "started_at": rows.ago(minutes=1)}),
        rows.record(made, namespace="ns-other", **{**usual, "cached_tokens": 0}),
    )
    figures = _figures(_page(town, who="viewer"))
    assert figures["Requests"] == "3"
    assert figures["Failed"] == "33.3 %"
    assert (figures["Predicted reuse"], figures["Realised reuse"]) == ("90 %", "60 %")
    assert figures["TTFT p50"] == "300 ms"
    assert figures["Seen"] == "60 s ago"


def test_its_components_are_told_with_versions_and_since_when(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    with tenant_scope(made.tenant_id):
        TenantKeyVersion.objects.create(tenant_id=made.tenant_id, version=4, wrapped=b"wrapped elsewhere")
        Endpoint.objects.update(created_at=timezone.now() - timedelta(days=3))
        support = Scope.objects.get(path="support")
        Scope.objects.filter(path="").update(version=2)
    _seen(town, as_owner, rows.record(made, scope_id=support.id))
    page = _page(town)
    assert re.findall(r'<th scope="row">([\w ]+)</th>', _section(page, "identity")) == [
        *("tenant key", "tenant", "sharing", "scope", "key", "request", "endpoint", "engine", "model", "tokenizer", "chat template", "adapter"),
        *("context", "multimodal", "data class", "epoch", "client"),
    ]
    for name, said in {
        "tenant key": "version 4",
        "scope": "(root) version 2, support version 1",
        "model": "m-7b at r1",
        "tokenizer": "revision t1, sha256 0101010101010101…",
        "context": "org_policy=v7",
        "epoch": "tenant 1, endpoint 1",
    }.items():
        assert said in _component(page, name)
    assert "3 d ago" in _component(page, "model")
    assert "in use" in page
    assert "comes here again" in _section(page, "through")
    assert "with <strong>app</strong>" in _section(page, "through")
    assert "its components are as the endpoint was made" in _section(page, "events")


def test_a_rotation_before_its_first_request_made_it_and_one_after_its_last_ended_it(town: Town, as_owner: AsOwner) -> None:
    """Who did it is told to those who may read the audit log; what it replaced, to everybody who may read."""
    made, ada = town.acorn, system("ada")
    with tenant_scope(made.tenant_id):
        model_id = ModelSpec.objects.get().id
        endpoints.rotate_epoch(tenant_id=made.tenant_id, actor=ada, endpoint_id=made.endpoint_id, reason="the first leak")
    _seen(town, as_owner, rows.record(made))
    page = _page(town)
    assert "in use" in page
    assert "endpoint.rotate_epoch" in _component(page, "epoch")
    assert "other in this namespace" not in page
    assert "“the first leak”" in _section(page, "events")
    with tenant_scope(made.tenant_id):
        catalogue.update_model(tenant_id=made.tenant_id, actor=ada, model_id=model_id, revision="r2", tokenizer_revision="t2")
        catalogue.update_model(tenant_id=made.tenant_id, actor=ada, model_id=model_id, revision="r3")
        endpoints.rotate_epoch(tenant_id=made.tenant_id, actor=ada, endpoint_id=made.endpoint_id, reason="the second leak")
    page = _page(town)
    assert '<span class="pill">ended</span>' in page
    assert "rotate-epoch" not in page
    assert "goes to another namespace since <code>model.update</code>" in _section(page, "through")
    assert "m-7b at r3" in _component(page, "model")
    assert "before: revision r1<" in _component(page, "model")
    assert "before: tokenizer_revision t1<" in _component(page, "tokenizer")
    assert "tenant 1, endpoint 3" in _component(page, "epoch")
    assert "before: epoch 2<" in _component(page, "epoch")
    assert "other in this namespace" not in _component(page, "context")
    events = _section(page, "events")
    assert events.index("the second leak") < events.index("the first leak")
    assert "ada" in events
    assert "ada" not in _section(_page(town, who="viewer"), "events")
    assert "the second leak" in _page(town, who="viewer")


def test_an_event_that_did_not_reach_it_is_not_its_own(town: Town, as_owner: AsOwner) -> None:
    """A scope beside it, another endpoint: neither ends it. Its own scope does."""
    made, ada = town.acorn, system("ada")
    with tenant_scope(made.tenant_id):
        other = Endpoint.objects.get()
        other.id, other.name = uuid.uuid4(), "second"
        other._state.adding = True
        other.save()
        support, billing = Scope.objects.get(path="support"), scopes.create(tenant_id=made.tenant_id, actor=ada, path="billing")
    _seen(town, as_owner, rows.record(made, scope_id=support.id))
    with tenant_scope(made.tenant_id):
        endpoints.rotate_epoch(tenant_id=made.tenant_id, actor=ada, endpoint_id=other.id, reason="elsewhere")
        scopes.raise_version(tenant_id=made.tenant_id, actor=ada, scope_id=billing.id, reason="elsewhere")
    page = _page(town)
    assert "in use" in page
    assert "elsewhere" not in page
    with tenant_scope(made.tenant_id):
        scopes.raise_version(tenant_id=made.tenant_id, actor=ada, scope_id=support.id, reason="left the company")
    page = _page(town)
    assert '<span class="pill">ended</span>' in page
    assert "left the company" in page
    assert "before: version 1<" in _component(page, "scope")


def test_of_two_endpoints_that_share_it_one_may_leave(town: Town, as_owner: AsOwner) -> None:
    """An alias has the same namespace; a rotated epoch takes one endpoint's requests away, and the other's still come."""
    made = town.acorn
    with tenant_scope(made.tenant_id):
        alias = Endpoint.objects.get()
        alias.id, alias.name = uuid.uuid4(), "alias"
        alias._state.adding = True
        alias.save()
    _seen(town, as_owner, rows.record(made, started_at=rows.ago(minutes=2)), rows.record(made, endpoint_id=alias.id, started_at=rows.ago(minutes=1)))
    with tenant_scope(made.tenant_id):
        endpoints.rotate_epoch(tenant_id=made.tenant_id, actor=system("ada"), endpoint_id=alias.id, reason="drill")
    page = _page(town)
    assert "in use" in page
    first, second = re.findall(r'<tr><th scope="row".*?</tr>', _section(page, "through"), re.S)
    assert "alias" in first
    assert "goes to another namespace" in first
    assert "llama-chat" in second
    assert "comes here again" in second
    assert f"/endpoints/{alias.id}/rotate-epoch" not in page
    assert f"/endpoints/{made.endpoint_id}/rotate-epoch" in page


def test_a_namespace_of_one_request_or_of_a_deleted_endpoint_says_so(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    _seen(town, as_owner, rows.record(made), rows.record(made, namespace="ns-gone", endpoint_id=uuid.uuid4(), scope_id=uuid.uuid4()))
    gone = _page(town, "ns-gone")
    for said in ("a deleted endpoint", "a deleted scope", "Its endpoint was deleted", '<span class="pill">ended</span>'):
        assert said in gone
    assert "rotate-epoch" not in gone
    with tenant_scope(made.tenant_id):
        Endpoint.objects.update(sharing="none")
    page = _page(town)
    assert "has a namespace of its own, as every request of this endpoint" in page
    assert '<span class="pill">ended</span>' in page


def test_where_it_was_found_names_own_replicas_and_sums_up_the_platforms(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    first, second = made.replica_ids
    shared = [str(uuid.uuid4()) for _ in range(2)]
    told: dict[str, Any] = {"prompt_tokens": 1000, "matched_tokens": 500, "candidates": (), "attempts": ()}
    _seen(
        town,
        as_owner,
        rows.record(made, started_at=rows.ago(minutes=9), replica_id=str(first), cached_tokens=0, **told),
        rows.record(made, started_at=rows.ago(minutes=3), replica_id=str(first), cached_tokens=640, **told),
        rows.record(made, started_at=rows.ago(minutes=4), replica_id=str(second), replica_name="b", cached_tokens=None, **told),
        rows.record(made, started_at=rows.ago(minutes=5), replica_id=shared[0], replica_name="h100-secret", cached_tokens=320, **told),
        rows.record(made, started_at=rows.ago(minutes=2), replica_id=shared[1], replica_name="h200-secret", cached_tokens=480, **told),
    )
    page = _page(town)
    found = re.findall(r'<tr><th scope="row".*?</tr>', _section(page, "replicas"), re.S)
    assert [re.findall(r'class="num" data-label="[\w ]+">([^<]+)<', row) for row in found] == [
        ["640 of 1,000 tokens", "2", "50 %", "32 %"],
        ["not said", "1", "–", "–"],  # noqa: RUF001 - the dash that the console prints
        ["480 of 1,000 tokens", "2", "50 %", "40 %"],
    ]
    assert f"/t/acorn/replicas/{first}" in found[0]
    assert "replicas of the platform" in found[2]
    for secret in ("h100-secret", "h200-secret", *shared):
        assert secret not in page


def test_its_audits_are_those_of_its_endpoint(town: Town, as_owner: AsOwner) -> None:
    _seen(town, as_owner)
    assert "No audit went through this endpoint yet" in _page(town)
    mine, other = rows.audit_run(town.acorn), rows.audit_run(town.acorn, endpoint_id=uuid.uuid4(), endpoint_name="other")
    audits = _section(_page(town), "audits")
    assert f"/isolation/audits/{mine.id}" in audits
    assert str(other.id) not in audits


def test_rotating_is_offered_to_those_who_may(town: Town, as_owner: AsOwner) -> None:
    _seen(town, as_owner)
    assert f"/t/acorn/endpoints/{town.acorn.endpoint_id}/rotate-epoch" in _page(town)
    assert "rotate-epoch" not in _page(town, who="viewer")


def test_another_tenants_namespace_is_answered_as_one_that_nobody_has(town: Town, as_owner: AsOwner) -> None:
    """The control: its own opens. An audit's, one too old, and one that is no id are absent too."""
    _seen(town, as_owner, rows.record(town.acorn), rows.record(town.acorn, namespace="ns-probe", audit=True))
    old = rows.record(town.birch, namespace="ns-old", started_at=rows.ago(days=8))
    rows.store(as_owner, town.birch, rows.record(town.birch, namespace="ns-birch"), old)

    def answer(namespace: str) -> tuple[int, bytes, dict[str, str]]:
        response = town.stranger.get(f"/t/birch/namespaces/{namespace}")
        return response.status_code, response.content, dict(response.headers)

    assert answer("ns-birch")[0] == 200
    assert answer(NS)[0] == 404
    assert answer(NS) == answer("ns-nobodys") == answer("ns-old")
    assert town.owner.get("/t/acorn/namespaces/ns-probe").status_code == 404
    assert town.owner.get("/t/acorn/namespaces/ns%3Cimg%3E").status_code == 404


def test_names_that_people_chose_are_text(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    with tenant_scope(made.tenant_id):
        Endpoint.objects.update(name=EVIL, context={EVIL: EVIL}, data_class=EVIL)
        ModelSpec.objects.update(name=EVIL)
        ApiKey.objects.update(name=EVIL)
    _seen(town, as_owner)
    for path in ("", f"/{NS}"):
        page = town.owner.get(f"/t/acorn/namespaces{path}").content.decode()
        assert "<img" not in page
        assert "&lt;img" in page


def test_what_takes_too_long_is_said_and_not_waited_for(town: Town, as_owner: AsOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    _seen(town, as_owner)
    monkeypatch.setattr(namespaces, "TIMEOUT_MS", 20)
    monkeypatch.setattr(namespaces, "_ONE", "SELECT pg_sleep(30), %s, %s, %s, %s::text[]")
    monkeypatch.setattr(namespaces, "_LIST", "SELECT pg_sleep(30), %s, %s, %s, %s, %s::text[], %s")
    assert "Too much to count in time" in _page(town)
    assert "too many decisions to count in time" in town.owner.get("/t/acorn/namespaces").content.decode()


def test_only_the_newest_decisions_are_read(town: Town, as_owner: AsOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    made = town.acorn
    _seen(town, as_owner, *(rows.record(made, started_at=rows.ago(minutes=number)) for number in range(1, 6)))
    assert _figures(_page(town))["Requests"] == "5"
    monkeypatch.setattr(namespaces, "MAX_DECISIONS", 3)
    assert _figures(_page(town))["Requests"] == "3"


def _queries(town: Town, path: str) -> int:
    with CaptureQueriesContext(connection) as counted:
        assert town.owner.get(path).status_code == 200
    return len(counted)


@pytest.mark.parametrize("path", ["/t/acorn/namespaces", f"/t/acorn/namespaces/{NS}"])
def test_many_requests_cost_no_more_queries(town: Town, as_owner: AsOwner, path: str) -> None:
    made: Made = town.acorn
    _seen(town, as_owner)
    town.owner.get(path)  # the session is noted once
    few = _queries(town, path)
    more = [rows.record(made, namespace=f"ns-{number}") for number in range(20)]
    _seen(town, as_owner, *more, *(rows.record(made, key_id=uuid.uuid4(), scope_id=uuid.uuid4(), started_at=rows.ago(hours=1)) for _ in range(10)))
    assert _queries(town, path) == few
