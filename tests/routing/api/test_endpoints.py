"""Endpoints over the API."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def ready(acorn: House) -> Api:
    """A tenant with a pool, a model and an adapter."""
    api = acorn.api(Role.ADMIN)
    api.post("pools", {"name": "gpu"})
    api.post("models", {"name": "m-7b", "revision": "r1"})
    api.post("models", {"name": "other", "revision": "r1"})
    api.post("adapters", {"model": "m-7b", "name": "lora-1", "revision": "a1"})
    return api


def new(api: Api, **fields: Any) -> Any:
    return api.post("endpoints", {"name": "chat", "pool": "gpu", "model": "m-7b", **fields})


def test_create_with_defaults(acorn: House, ready: Api) -> None:
    """The default policy becomes one named after the endpoint; the engine's name for it is the model's."""
    made = new(ready)
    assert made.status_code == 201
    row = made.json()
    assert (row["pool"], row["model"], row["model_revision"], row["served_model"], row["sharing"]) == ("gpu", "m-7b", "r1", "m-7b", "scope")
    assert row["routing_policy"] == {"name": "chat", "version": 1, "spec": {"policy": "ettft"}}
    assert (row["slo"], row["epoch"], row["enabled"], row["context"]) == (None, 1, True, {})
    assert ready.get("endpoints/chat").json() == ready.get(f"endpoints/{row['id']}/").json()
    assert ready.get("routing-policies/chat").json()["version"] == 1
    assert acorn.log("endpoint.create")[0].config_version == row["config_version"]


def test_names_with_slashes(ready: Api) -> None:
    """Clients send names such as meta/llama; they work in every URL."""
    new(ready, name="meta/llama:8b")
    assert ready.get("endpoints/meta/llama:8b").json()["name"] == "meta/llama:8b"
    assert ready.post("endpoints/meta/llama:8b/rotate-epoch", {"reason": "leak"}).json()["epoch"] == 2
    assert ready.patch("endpoints/meta/llama:8b/", {"enabled": False}).json()["enabled"] is False


def test_the_served_model_follows_the_adapter_unless_it_was_chosen(ready: Api) -> None:
    new(ready)
    assert ready.patch("endpoints/chat", {"adapter": "lora-1"}).json()["served_model"] == "lora-1"
    assert ready.patch("endpoints/chat", {"served_model": "mine"}).json()["served_model"] == "mine"
    assert ready.patch("endpoints/chat", {"adapter": None}).json()["served_model"] == "mine"
    assert ready.patch("endpoints/chat", {"served_model": None}).json()["served_model"] == "m-7b"


def test_an_inline_policy_makes_a_version_only_when_it_differs(ready: Api) -> None:
    new(ready, slo={"ttft_p95_ms": 2000})
    same = ready.patch("endpoints/chat", {"slo": {"ttft_p95_ms": 2000}}).json()
    assert same["slo"]["version"] == 1
    other = ready.patch("endpoints/chat", {"slo": {"ttft_p95_ms": 1000}}).json()
    assert (other["slo"]["version"], other["config_version"]) == (2, same["config_version"] + 1)
    assert ready.patch("endpoints/chat", {"slo": None}).json()["slo"] is None
    assert [row["version"] for row in ready.get("slo-policies/chat/versions").json()["results"]] == [2, 1]


def test_policies_by_reference(ready: Api) -> None:
    ready.post("routing-policies", {"name": "spread", "spec": {"policy": "least_outstanding"}})
    ready.post("routing-policies/spread/versions", {"spec": {"policy": "round_robin"}})
    assert new(ready, routing_policy="spread").json()["routing_policy"]["version"] == 2
    pinned = ready.patch("endpoints/chat", {"routing_policy": {"name": "spread", "version": 1}}).json()
    assert pinned["routing_policy"]["spec"] == {"policy": "least_outstanding"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "SR1-abc"}, "name"),
        ({"pool": "nowhere"}, "pool"),
        ({"model": "nothing"}, "model"),
        ({"adapter": "nothing"}, "adapter"),
        ({"model": "other", "adapter": "lora-1"}, "adapter"),
        ({"engine": "vllm2"}, "engine"),
        ({"served_model": "sr1-x"}, "served_model"),
        ({"context": {"a b": "1"}}, "context"),
        ({"context": {"a": ""}}, "context.a"),
        ({"context": {"a": 7}}, "context"),
        ({"context": {f"n{number}": "1" for number in range(17)}}, "context"),
        ({"request_context": ["a=b"]}, "request_context"),
        ({"sharing": "all"}, "sharing"),
        ({"routing_policy": "nothing"}, "routing_policy"),
        ({"routing_policy": {"policy": "magic"}}, "routing_policy.policy"),
        ({"routing_policy": {"policy": "weighted", "weights": {"wait": -1}}}, "routing_policy.weights.wait"),
        ({"routing_policy": {"name": "chat", "version": 9}}, "routing_policy"),
        ({"slo": {"ttft_p95_ms": 0}}, "slo.ttft_p95_ms"),
        ({"slo": {"name": "x", "other": 1}}, "slo.other"),
        ({"enabled": "yes"}, "enabled"),
        ({"salt": "mine"}, "salt"),
    ],
)
def test_bad_input_names_the_field_and_stores_nothing(ready: Api, fields: dict[str, Any], field: str) -> None:
    """Neither the endpoint nor a policy that was made on the way."""
    answer = new(ready, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["field"].startswith(field)
    assert ready.get("endpoints").json()["results"] == []
    assert ready.get("routing-policies").json()["results"] == []


def test_a_name_is_taken_once(ready: Api) -> None:
    new(ready)
    again = new(ready)
    assert (again.status_code, again.json()["error"]["field"]) == (409, "name")


def test_rotate_needs_a_reason_and_counts_up(acorn: House, ready: Api) -> None:
    new(ready)
    operator = acorn.api(Role.OPERATOR)
    assert operator.post("endpoints/chat/rotate-epoch", {}).json()["error"]["field"] == "reason"
    assert [operator.post("endpoints/chat/rotate-epoch", {"reason": "leak"}).json()["epoch"] for _ in range(2)] == [2, 3]
    entry = acorn.log("endpoint.rotate_epoch")[0]
    assert (entry.reason, entry.before, entry.after) == ("leak", {"epoch": 1}, {"epoch": 2})
    assert acorn.api(Role.VIEWER).post("endpoints/chat/rotate-epoch", {"reason": "x"}).status_code == 403


def test_an_endpoint_on_a_granted_pool(acorn: House, ready: Api, platform: Api) -> None:
    """It shows the pool's name; the platform cannot take the pool away under it."""
    platform.post("pools", {"name": "shared"})
    platform.post("pools/shared/grants", {"tenant": "acorn"})
    assert new(ready, pool="shared").json()["pool"] == "shared"
    assert platform.delete("pools/shared/grants/acorn").status_code == 409
    assert ready.delete("endpoints/chat").status_code == 200
    assert platform.delete("pools/shared/grants/acorn").status_code == 200


def test_another_tenants_rows_cannot_be_named(acorn: House, birch: House, ready: Api) -> None:
    """By id, in every place that takes one: as if they were not there."""
    birch.api().post("pools", {"name": "theirs"})
    birch.api().post("models", {"name": "theirs", "revision": "r"})
    ids = {"pool": birch.api().get("pools/theirs").json()["id"], "model": birch.api().get("models/theirs").json()["id"]}
    for field, row_id in ids.items():
        foreign, absent = new(ready, **{field: row_id}), new(ready, **{field: ABSENT})
        assert (foreign.status_code, foreign.content) == (400, absent.content)


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House, ready: Api) -> None:
    made = new(ready).json()
    api, answers = birch.api(), set()
    for reference in (made["id"], ABSENT, "chat"):
        for method, suffix in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate-epoch")):
            body = {"reason": "x"} if suffix else {}
            answer = api.call(method, f"endpoints/{reference}{suffix}", None if method == "GET" else body)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert ready.get("endpoints/chat").json()["epoch"] == 1


def test_lists_take_the_same_queries_however_long(ready: Api, django_assert_max_num_queries: Any) -> None:
    """No query for each row."""
    for number in range(5):
        new(ready, name=f"e{number}")
    with django_assert_max_num_queries(20):
        assert len(ready.get("endpoints").json()["results"]) == 5
