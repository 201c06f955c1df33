"""Routing and SLO policies over the API."""

from __future__ import annotations

from typing import Any

import pytest

from routing.models import PolicyVersion
from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(acorn: House) -> Api:
    return acorn.api(Role.OPERATOR)


def test_versions_are_appended_and_never_changed(acorn: House, api: Api) -> None:
    """The same document again makes no version; what is stored stays."""
    made = api.post("slo-policies", {"name": "gold", "spec": {"ttft_p95_ms": 2000}})
    assert (made.status_code, made.json()["version"]) == (201, 1)
    assert api.post("slo-policies/gold/versions", {"spec": {"ttft_p95_ms": 2000}}).json()["version"] == 1
    assert api.post("slo-policies/gold/versions", {"spec": {"ttft_p95_ms": 1000}}).json()["version"] == 2
    found = api.get("slo-policies/gold/versions").json()["results"]
    assert [(row["version"], row["spec"]) for row in found] == [(2, {"ttft_p95_ms": 1000}), (1, {"ttft_p95_ms": 2000})]
    assert api.get("slo-policies/gold").json()["version"] == 2
    assert [row["name"] for row in api.get("slo-policies").json()["results"]] == ["gold"]
    assert api.get("routing-policies/gold").status_code == 404
    assert len(acorn.log("slo_policy.version")) == 1


def test_activating_moves_the_endpoints_in_the_same_version(acorn: House, api: Api) -> None:
    """With ``activate`` false nothing moves and nothing is published."""
    admin = acorn.api()
    admin.post("pools", {"name": "gpu"})
    admin.post("models", {"name": "m", "revision": "r1"})
    api.post("routing-policies", {"name": "p", "spec": {"policy": "ettft"}})
    before = admin.post("endpoints", {"name": "chat", "pool": "gpu", "model": "m", "routing_policy": "p"}).json()["config_version"]
    waiting = api.post("routing-policies/p/versions", {"spec": {"policy": "round_robin"}, "activate": False}).json()
    assert (waiting["version"], waiting["config_version"]) == (2, before)
    assert admin.get("endpoints/chat").json()["routing_policy"]["version"] == 1
    moved = api.post("routing-policies/p/versions", {"spec": {"policy": "round_robin"}}).json()
    assert (moved["version"], moved["config_version"]) == (2, before + 1)
    assert admin.get("endpoints/chat").json()["routing_policy"]["spec"] == {"policy": "round_robin"}
    assert api.delete("routing-policies/p").status_code == 409


def test_a_difference_is_what_routers_would_read(api: Api) -> None:
    """A default that is written out is none."""
    api.post("routing-policies", {"name": "p", "spec": {"policy": "ettft"}})
    api.post("routing-policies/p/versions", {"spec": {"policy": "ettft", "price_of_recomputation": 2.0}})
    assert api.get("routing-policies/p/diff").json() == {"old_version": 1, "new_version": 2, "differences": []}
    api.post("routing-policies/p/versions", {"spec": {"policy": "ettft", "price_of_recomputation": 3}})
    found = api.get("routing-policies/p/diff?from=1&to=3").json()["differences"]
    assert found == [{"field": "price_of_recomputation", "old": 2.0, "new": 3.0}]
    assert api.get("routing-policies/p/diff?from=9").status_code == 404
    assert api.get("routing-policies/p/diff?from=x").json()["error"]["field"] == "from"


@pytest.mark.parametrize(
    ("route", "spec", "field"),
    [
        ("routing-policies", {"policy": "magic"}, "spec.policy"),
        ("routing-policies", {"policy": "ettft", "pressure": -1}, "spec.pressure"),
        ("routing-policies", {"policy": "ettft", "pressure": "1"}, "spec.pressure"),
        ("routing-policies", {"policy": "weighted", "weights": {"luck": 1}}, "spec.weights.luck"),
        ("routing-policies", {"policy": "round_robin", "pressure": 1}, "spec.pressure"),
        ("slo-policies", {"ttft_p95_ms": 100, "ttft_p99_ms": 50}, "spec.ttft_p99_ms"),
        ("slo-policies", {"ttft_p95_ms": 1.5}, "spec.ttft_p95_ms"),
        ("slo-policies", {"ttft": 1}, "spec.ttft"),
        ("slo-policies", [], "spec"),
    ],
)
def test_what_cannot_run_cannot_be_stored(acorn: House, api: Api, route: str, spec: Any, field: str) -> None:
    """Compiled with the routers' own code; refused with the path inside the document."""
    answer = api.post(route, {"name": "p", "spec": spec})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    with acorn.scope():
        assert PolicyVersion.objects.count() == 0


def test_nan_is_no_number(api: Api) -> None:
    answer = api.call("POST", "routing-policies", raw=b'{"name": "p", "spec": {"policy": "ettft", "pressure": NaN}}')
    assert answer.status_code == 400


def test_names_are_taken_once_per_kind(api: Api) -> None:
    api.post("routing-policies", {"name": "p", "spec": {}})
    assert api.post("routing-policies", {"name": "p", "spec": {}}).json()["error"]["field"] == "name"
    assert api.post("slo-policies", {"name": "p", "spec": {}}).status_code == 201


def test_roles(acorn: House) -> None:
    """Operators change policies; viewers read them."""
    answers = [acorn.api(role).post("slo-policies", {"name": role.value, "spec": {}}).status_code for role in Role]
    assert answers == [403, 201, 201, 201]
    assert [acorn.api(role).get("slo-policies").status_code for role in Role] == [200] * 4


def test_deleting(api: Api) -> None:
    api.post("slo-policies", {"name": "p", "spec": {}})
    assert api.delete("slo-policies/p").status_code == 200
    assert api.delete("slo-policies/p").status_code == 404


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House, api: Api) -> None:
    made = api.post("routing-policies", {"name": "p", "spec": {}}).json()
    stranger, answers = birch.api(), set()
    for reference in (made["id"], ABSENT, "p"):
        for method, suffix, body in (("GET", "", None), ("DELETE", "", None), ("GET", "/versions", None), ("POST", "/versions", {"spec": {}})):
            answer = stranger.call(method, f"routing-policies/{reference}{suffix}", body)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404


def test_several_errors_of_an_objective_are_all_named(api: Api) -> None:
    """The first as the error itself, all of them as details; one error alone has no details."""
    error = api.post("slo-policies", {"name": "gold", "spec": {"ttft_p95_ms": 0, "e2e_p95_ms": "x"}}).json()["error"]
    assert (error["field"], [one["field"] for one in error["details"]]) == ("spec.ttft_p95_ms", ["spec.ttft_p95_ms", "spec.e2e_p95_ms"])
    assert "details" not in api.post("slo-policies", {"name": "gold", "spec": {"ttft_p95_ms": 0}}).json()["error"]
