"""Auth scopes over the API."""

from __future__ import annotations

import pytest

from tenants.core.roles import Role
from tenants.models import ApiKey, Scope
from tenants.queries import snapshot_scopes
from tenants.services import scopes
from tests.tenants.houses import ABSENT, House


def test_create_builds_the_tree_from_the_root(acorn: House) -> None:
    """Every tenant has its root; a scope is created below one that exists; lists come by path."""
    api = acorn.api(Role.ADMIN)
    orphan = api.post("scopes", {"path": "support/emea"})
    assert (orphan.status_code, orphan.json()["error"]["field"]) == (400, "path")
    assert api.post("scopes", {"path": "support"}).status_code == 201
    made = api.post("scopes", {"path": "support/emea"})
    assert (made.status_code, made.json()["version"]) == (201, 1)
    assert [row["path"] for row in api.get("scopes").json()["results"]] == ["", "support", "support/emea"]
    assert api.get("scopes/support").json() == api.get(f"scopes/{api.get('scopes/support').json()['id']}").json()
    assert api.get("scopes/support/emea").json()["id"] == made.json()["id"]
    assert api.post("scopes", {"path": "support"}).status_code == 409
    assert acorn.log("scope.create")[-1].config_version == made.json()["config_version"]


@pytest.mark.parametrize("path", ["", "Upper", "a//b", "/a", "a/", "a b", "ä", "/".join("abcdefghi"), 7, None])
def test_a_malformed_path_is_refused(acorn: House, path: object) -> None:
    """400, field path."""
    answer = acorn.api().post("scopes", {"path": path})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "path")


def test_raise_counts_up_and_needs_a_reason(acorn: House) -> None:
    """Each call is one version; the log says why, from and to; operators may, viewers may not; routers learn of it."""
    api = acorn.api(Role.OPERATOR)
    acorn.api().post("scopes", {"path": "support"})
    assert api.post("scopes/support/raise", {}).json()["error"]["field"] == "reason"
    assert api.post("scopes/support/raise", {"reason": ""}).json()["error"]["field"] == "reason"
    versions = [api.post("scopes/support/raise", {"reason": "leak"}).json()["version"] for _ in range(2)]
    assert versions == [2, 3]
    entry = acorn.log("scope.raise")[0]
    assert (entry.reason, entry.before, entry.after) == ("leak", {"version": 1}, {"version": 2})
    assert acorn.api(Role.VIEWER).post("scopes/support/raise", {"reason": "no"}).status_code == 403
    with acorn.scope():
        assert {entry.path: entry.version for entry in snapshot_scopes(acorn.id)} == {"": 1, "support": 3}


def test_delete_is_refused_while_anything_uses_the_scope(acorn: House) -> None:
    """The root, a scope with children, a scope with a living key; a revoked key lets go of it and stays."""
    api = acorn.api(Role.ADMIN)
    for path in ("support", "support/emea"):
        api.post("scopes", {"path": path})
    emea = next(row["id"] for row in api.get("scopes").json()["results"] if row["path"] == "support/emea")
    root = next(row["id"] for row in api.get("scopes").json()["results"] if row["path"] == "")
    key = acorn.key(scope_path="support/emea").key
    assert [api.delete(f"scopes/{reference}").status_code for reference in (root, "support", emea)] == [409, 409, 409]
    api.delete(f"keys/{key.id}")
    assert acorn.api(Role.OPERATOR).delete(f"scopes/{emea}").status_code == 403
    assert api.delete(f"scopes/{emea}").status_code == 200
    assert api.delete(f"scopes/{emea}").status_code == 404
    with acorn.scope():
        assert ApiKey.objects.get(id=key.id).scope_id is None
    again = api.post("scopes", {"path": "support/emea"}).json()
    assert again["id"] != emea


def test_reading_needs_the_least_and_creating_more(acorn: House) -> None:
    """The roles, in order."""
    assert [acorn.api(role).get("scopes").status_code for role in Role] == [200] * 4
    assert [acorn.api(role).post("scopes", {"path": role.value}).status_code for role in Role] == [403, 403, 201, 201]


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    """404, byte for byte; the other tenant's scope is as it was."""
    birch.api().post("scopes", {"path": "support"})
    foreign = birch.api().get("scopes/support").json()["id"]
    api, answers = acorn.api(), set()
    for reference in (foreign, ABSENT, "support"):
        answers |= {(answer.status_code, answer.content) for answer in (api.get(f"scopes/{reference}"), api.delete(f"scopes/{reference}"))}
        raised = api.post(f"scopes/{reference}/raise", {"reason": "x"})
        answers.add((raised.status_code, raised.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    with birch.scope():
        assert Scope.objects.get(id=foreign).version == 1


def test_the_limit_has_a_number_and_a_name(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root counts."""
    monkeypatch.setattr(scopes, "MAX_SCOPES_PER_TENANT", 2)
    assert [acorn.api().post("scopes", {"path": path}).status_code for path in ("a", "b")] == [201, 409]
    assert "MAX_SCOPES_PER_TENANT" in acorn.api().post("scopes", {"path": "b"}).json()["error"]["message"]
