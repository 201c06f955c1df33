"""Pools and grants over the API."""

from __future__ import annotations

import pytest

from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db


def test_create_read_change_delete(acorn: House) -> None:
    """By id and by name, with and without the trailing slash; every change answers the version that holds it."""
    api = acorn.api(Role.ADMIN)
    made = api.post("pools", {"name": "gpu"})
    assert made.status_code == 201
    row = made.json()
    assert (row["name"], row["owner"], row["isolation"], row["replicas"], row["grants"]) == ("gpu", "tenant", "audited", {}, 1)
    assert api.get("pools/gpu").json() == api.get(f"pools/{row['id']}/").json()
    renamed = api.patch("pools/gpu", {"name": "gpus"}).json()
    assert (renamed["id"], renamed["name"], renamed["config_version"]) == (row["id"], "gpus", row["config_version"] + 1)
    assert [one["name"] for one in api.get("pools").json()["results"]] == ["gpus"]
    assert api.delete("pools/gpus").status_code == 200
    assert api.get("pools/gpus").status_code == 404
    assert [entry.actor_label for entry in acorn.log("pool.create")] == ["admin-token"]


def test_roles(acorn: House) -> None:
    """Reading needs the least; pools are an admin's to make."""
    assert [acorn.api(role).get("pools").status_code for role in Role] == [200] * 4
    assert [acorn.api(role).post("pools", {"name": role.value}).status_code for role in Role] == [403, 403, 201, 201]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": 7}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x", "isolation": "none"}, "isolation"),
        ({"name": "x", "owner": "me"}, "owner"),
    ],
)
def test_malformed_bodies_name_the_field(acorn: House, body: object, field: str) -> None:
    answer = acorn.api().post("pools", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_declaring_isolation_is_the_operators(acorn: House, platform: Api) -> None:
    """An owner may not; a platform operator may, in the tenant it names."""
    refused = acorn.api().post("pools", {"name": "gpu", "isolation": "declared"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (403, "isolation")
    assert platform.post("pools", {"name": "gpu", "isolation": "declared"}, X_Saltroute_Tenant="acorn").status_code == 201
    assert acorn.api().get("pools/gpu").json()["isolation"] == "declared"


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    """Whatever the verb; the pool is as it was and the attempt is in the log."""
    made = birch.api().post("pools", {"name": "gpu"}).json()
    api, answers = acorn.api(), set()
    for reference in (made["id"], ABSENT, "gpu", "gpu/", "%00"):
        for method, path in (
            ("GET", f"pools/{reference}"),
            ("PATCH", f"pools/{reference}"),
            ("DELETE", f"pools/{reference}"),
        ):
            answer = api.call(method, path, {} if method == "PATCH" else None)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert birch.api().get("pools/gpu").json()["name"] == "gpu"
    assert acorn.log("request.denied")


def test_a_granted_pool_shows_no_more_than_it_must(acorn: House, platform: Api) -> None:
    """Name, isolation and replicas by state; no replica, no number of others; it cannot be changed."""
    pool = platform.post("pools", {"name": "shared", "isolation": "declared"}).json()
    platform.post("replicas", {"pool": "shared", "name": "secret", "url": "http://127.0.0.1:9001"})
    granted = platform.post("pools/shared/grants", {"tenant": "acorn"})
    assert (granted.status_code, granted.json()["tenant"]) == (201, "acorn")
    assert [one["tenant"] for one in platform.get("pools/shared/grants").json()["results"]] == ["acorn"]
    api = acorn.api()
    expected = {"id": pool["id"], "name": "shared", "owner": "platform", "isolation": "declared", "replicas": {"active": 1}, "grants": None}
    assert api.get("pools/shared").json() == expected
    assert api.get("pools").json() == {"results": [expected], "next": None}
    assert api.get("replicas").json()["results"] == []
    assert api.patch("pools/shared", {"name": "mine"}).status_code == 404
    assert api.delete(f"pools/{pool['id']}").status_code == 404
    assert platform.delete("pools/shared/grants/acorn").status_code == 200
    assert platform.delete("pools/shared/grants/acorn").status_code == 404
    assert api.get("pools/shared").status_code == 404


def test_grants_are_for_operators(acorn: House) -> None:
    """A tenant's owner may neither list nor give; the answers do not depend on what exists."""
    acorn.api().post("pools", {"name": "gpu"})
    api = acorn.api()
    assert api.get("pools/gpu/grants").status_code == 403
    assert api.post("pools/gpu/grants", {"tenant": "acorn"}).status_code == 403
    assert api.delete("pools/gpu/grants/acorn").status_code == 403


def test_an_unknown_tenant_cannot_be_granted(platform: Api) -> None:
    platform.post("pools", {"name": "shared"})
    answer = platform.post("pools/shared/grants", {"tenant": "nobody"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "tenant")


def test_pages(acorn: House) -> None:
    """Two pages by cursor; a bad limit and a bad cursor name the field."""
    api = acorn.api()
    for name in "abc":
        api.post("pools", {"name": name})
    first = api.get("pools?limit=2").json()
    assert [row["name"] for row in first["results"]] == ["a", "b"]
    second = api.get(f"pools?limit=2&cursor={first['next']}").json()
    assert ([row["name"] for row in second["results"]], second["next"]) == (["c"], None)
    assert api.get("pools?limit=0").json()["error"]["field"] == "limit"
    assert api.get("pools?cursor=x").json()["error"]["field"] == "cursor"


def test_wrong_methods_and_unknown_paths(acorn: House) -> None:
    """405 for a verb a resource does not have; one 404 in the API's shape for any other path."""
    api = acorn.api()
    assert api.call("PUT", "pools", {}).status_code == 405
    answer = api.get("nothing/here")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert Api().get("pools").status_code == 401
