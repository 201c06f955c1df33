"""The API of explained identities and identity events."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from routing.models import Endpoint
from routing.services import endpoints
from tenants.core.roles import Role
from tenants.services import scopes
from tests.routing.services.rows import a_model, a_pool, an_endpoint
from tests.tenants.houses import ABSENT, ROOT, Api, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def chat(acorn: House) -> str:
    """An endpoint of acorn's and a key bound to a scope; returns the key's id."""
    with acorn.scope():
        scopes.create(tenant_id=acorn.id, actor=ROOT, path="support")
        an_endpoint(acorn.id, pool=a_pool(acorn.id), model=a_model(acorn.id), context={"org": "v7"}, request_context=["repo"])
    return str(acorn.key("app", scope_path="support").key.id)


def _explain(api: Api, **asked: str) -> tuple[int, dict[str, object]]:
    answer = api.get(f"namespaces/explain?{urlencode(asked)}")
    return answer.status_code, answer.json()


def test_an_identity_is_explained(acorn: House, chat: str) -> None:
    """By id or name of the key; a viewer may ask."""
    status, body = _explain(acorn.api(Role.VIEWER), key=chat, model="chat", context="repo=abc")
    assert status == 200
    components = {one["name"]: one for one in body["components"]}  # type: ignore[attr-defined]  # JSON
    assert components["context"]["value"] == [["org", "v7"], ["repo", "abc"]]
    assert components["client"]["absent"] is True
    assert (body["scope"], body["sharing"], body["schema_version"]) == ("support", "scope", 1)
    assert any(change["components"] == ["scope"] for change in body["changes"])  # type: ignore[attr-defined]  # JSON
    assert _explain(acorn.api(), key="app", model="chat", context="repo=abc")[1] == body


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"model": "chat"}, "key"),
        ({"key": "app"}, "model"),
        ({"key": "app", "model": "chat", "scope": "sales"}, "X-Saltroute-Scope"),
        ({"key": "app", "model": "chat", "context": "org=v8"}, "X-Saltroute-Context"),
        ({"key": "app", "model": "chat", "cache_salt": "x" * 129}, "cache_salt"),
        ({"key": "app\0", "model": "chat"}, "key"),
    ],
)
def test_what_the_router_would_refuse_is_named(acorn: House, chat: str, asked: dict[str, str], field: str) -> None:
    status, body = _explain(acorn.api(), **asked)
    assert (status, body["error"]["field"]) == (400, field)  # type: ignore[index]  # JSON


def test_strangers_get_the_answer_for_what_is_absent(acorn: House, birch: House, chat: str) -> None:
    answers = [birch.api().get(f"namespaces/explain?key={key}&model=chat").content for key in (chat, ABSENT, "app")]
    unknown = acorn.api().get("namespaces/explain?key=nobody&model=chat")
    assert answers == [unknown.content] * 3
    assert unknown.json()["error"]["field"] == "key"
    assert acorn.api().get("namespaces/explain?key=app&model=nothing").json()["error"]["field"] == "model"
    assert Api().get(f"namespaces/explain?key={chat}&model=chat").status_code == 401


def test_events_name_who_to_those_who_may_read_the_log(acorn: House, birch: House, chat: str) -> None:
    """Newest first, paged; a viewer sees everything but the name; a stranger sees nothing."""
    with acorn.scope():
        endpoint = Endpoint.objects.get(tenant_id=acorn.id)
        for reason in ("incident", "drill"):
            endpoints.rotate_epoch(tenant_id=acorn.id, actor=ROOT, endpoint_id=endpoint.id, reason=reason)
    body = acorn.api().get("identity-events?limit=1").json()
    (event,) = body["results"]
    assert (event["action"], event["reason"], event["actor"], event["components"]) == ("endpoint.rotate_epoch", "drill", "tests", ["epoch"])
    assert event["impact"] == {
        "namespaces": 0,
        "cold_tokens": 0,
        "cold_seconds": 0.0,
        "prefill_tokens_per_second": 8000.0,
        "rate_seen": False,
        "rate_from": "default",
    }
    (older,) = acorn.api().get(f"identity-events?limit=1&cursor={body['next']}").json()["results"]
    assert older["reason"] == "incident"
    seen = acorn.api(Role.VIEWER).get("identity-events").json()["results"]
    assert [(one["reason"], one["actor"]) for one in seen] == [("drill", None), ("incident", None)]
    assert birch.api().get("identity-events").json() == {"results": [], "next": None}
    assert Api().get("identity-events").status_code == 401
