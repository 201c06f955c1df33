"""Quotas over the API: who may do what, what is answered, and in whose words mistakes are told."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core import quota
from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db


def put(api: Api, **body: Any) -> Any:
    return api.call("PUT", "quotas", body)


def test_set_list_read_and_remove(acorn: House, valkey_url: str) -> None:
    """With what is used, left and until when; the answer to a change names the version that holds it."""
    acorn.key("app")
    api = acorn.api(Role.ADMIN)
    made = put(api, of="key", name="app", requests_per_minute=60, tokens_per_month=1_000)
    assert made.status_code == 200
    shown = made.json()
    assert shown.pop("config_version") > 1
    assert shown["requests_per_minute"] == {"limit": 60, "used": 0, "left": 60, "reset_s": 0.0}
    assert shown["tokens_per_minute"] is None
    assert {name: shown["tokens_per_month"][name] for name in ("limit", "used", "left")} == {"limit": 1_000, "used": 0, "left": 1_000}
    assert shown["tokens_per_month"]["reset_s"] > 0
    assert (shown["of"], shown["name"], shown["found"]) == ("key", "app", True)
    again = put(api, of="key", name="app", tokens_per_minute=5).json()
    assert (again["id"], again["requests_per_minute"], again["tokens_per_minute"]["limit"]) == (shown["id"], None, 5)
    (listed,) = acorn.api(Role.VIEWER).get("quotas").json()["results"]
    assert listed == {name: value for name, value in again.items() if name != "config_version"}
    assert acorn.api(Role.VIEWER).get(f"quotas/{shown['id']}").json() == listed
    assert acorn.api(Role.VIEWER).get("quotas/app").json() == listed
    assert api.delete(f"quotas/{shown['id']}").status_code == 200
    assert acorn.api().get("quotas").json() == {"results": [], "next": None}
    assert [entry.object_label for entry in acorn.log("quota.remove")] == ["key app"]


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_who_may_not_change_them(acorn: House, role: Role) -> None:
    """Everybody reads; admins and owners set and remove. The control is the owner."""
    made = put(acorn.api(), of="tenant", tokens_per_month=5)
    assert made.status_code == 200
    api = acorn.api(role)
    assert put(api, of="tenant", tokens_per_month=6).status_code == 403
    assert api.delete(f"quotas/{made.json()['id']}").status_code == 403
    assert api.get("quotas").json()["results"][0]["tokens_per_month"]["limit"] == 5
    assert acorn.api().delete(f"quotas/{made.json()['id']}").status_code == 200


def test_the_platforms_quota_is_seen_and_not_changed_by_the_tenant(acorn: House, platform: Api) -> None:
    made = platform.call("PUT", "quotas", {"of": "platform", "tokens_per_month": 7}, X_Saltroute_Tenant="acorn")
    assert made.status_code == 200
    assert acorn.api().get("quotas").json()["results"][0]["of"] == "platform"
    assert put(acorn.api(), of="platform", tokens_per_month=700).status_code == 403
    assert acorn.api().delete(f"quotas/{made.json()['id']}").status_code == 403
    assert platform.delete(f"quotas/{made.json()['id']}", X_Saltroute_Tenant="acorn").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "of"),
        ({"of": "planet", "tokens_per_month": 5}, "of"),
        ({"of": "tenant"}, "requests_per_minute"),
        ({"of": "tenant", "tokens_per_month": 0}, "tokens_per_month"),
        ({"of": "tenant", "tokens_per_month": "many"}, "tokens_per_month"),
        ({"of": "tenant", "tokens_per_minute": quota.MAX_LIMIT + 1}, "tokens_per_minute"),
        ({"of": "tenant", "tokens_per_day": 5}, "tokens_per_day"),
        ({"of": "key", "name": "nobody", "tokens_per_month": 5}, "name"),
    ],
)
def test_mistakes_name_the_field(acorn: House, body: dict[str, Any], field: str) -> None:
    answer = acorn.api().call("PUT", "quotas", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_anothers_quota_is_as_absent_as_none(acorn: House, birch: House) -> None:
    """Byte for byte, and another's key is as unknown as nobody's."""
    theirs = put(birch.api(), of="tenant", tokens_per_month=5).json()["id"]
    birch.key("their-key")
    for method in ("GET", "DELETE"):
        one, none = (acorn.api().call(method, f"quotas/{reference}") for reference in (theirs, ABSENT))
        assert (one.status_code, one.content) == (404, none.content)
    answers = [put(acorn.api(), of="key", name=name, tokens_per_month=5) for name in ("their-key", "nobodys-key")]
    assert answers[0].content == answers[1].content
    assert birch.api().get("quotas").json()["results"][0]["tokens_per_month"]["limit"] == 5
