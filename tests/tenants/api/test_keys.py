"""Inference keys over the API: each operation works, repeats, and refuses strangers, the weak, the malformed and the missing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.core.roles import Role
from tenants.models import ApiKey
from tenants.queries import snapshot_keys
from tenants.services import api_keys, scopes
from tests.tenants.houses import ABSENT, ROOT, House


def test_issue_shows_the_secret_once_and_stores_its_digest_only(acorn: House) -> None:
    """The answer holds the key; the row holds SHA-256 and the first characters; reading it again shows no secret."""
    answer = acorn.api(Role.ADMIN).post("keys", {"name": "app"})
    made = answer.json()
    assert answer.status_code == 201
    assert made["secret"].startswith("sk-sr-")
    assert made["scope"] == ""
    assert made["status"] == "active"
    with acorn.scope():
        row = ApiKey.objects.get(id=made["id"])
        assert bytes(row.digest) == api_key.digest(made["secret"])
        stored = [str(value) for value in ApiKey.objects.filter(id=row.id).values_list()[0]]
        assert not any(made["secret"][12:] in value for value in stored)
    read = acorn.api().get(f"keys/{made['id']}").json()
    assert "secret" not in read
    assert "digest" not in read
    assert read["shown"] == made["secret"][:12]
    assert acorn.api().get("keys/app").json() == read
    (entry,) = acorn.log("api_key.issue")
    assert entry.actor_label == "admin-token"
    assert made["secret"] not in str(entry.after)
    assert entry.config_version == made["config_version"]


def test_issue_needs_the_permission_and_reading_needs_less(acorn: House) -> None:
    """Viewer and operator read, admin and owner issue."""
    assert [acorn.api(role).post("keys", {"name": role.value}).status_code for role in Role] == [403, 403, 201, 201]
    assert [acorn.api(role).get("keys").status_code for role in Role] == [200, 200, 200, 200]


def test_issue_twice_with_one_name_is_refused_until_the_first_is_revoked(acorn: House) -> None:
    """The name is unique among keys that are not revoked; the refusal names the field."""
    api = acorn.api()
    first = api.post("keys", {"name": "app"}).json()
    again = api.post("keys", {"name": "app"})
    assert (again.status_code, again.json()["error"]["field"]) == (409, "name")
    assert api.delete(f"keys/{first['id']}").status_code == 200
    second = api.post("keys", {"name": "app"})
    assert second.status_code == 201
    assert api.get("keys/app").json()["id"] == second.json()["id"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\u0301"}, "name"),
        ({"name": "app", "scope": "nowhere"}, "scope"),
        ({"name": "app", "scope": "Bad Path"}, "scope"),
        ({"name": "app", "scopes": []}, "scopes"),
        ({"name": "app", "secret": "mine-mine-mine-mine-mine"}, "secret"),
        ({"name": "app", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "app", "expires_at": "2099-01-01T00:00:00"}, "expires_at"),
        ({"name": "app", "expires_at": "soon"}, "expires_at"),
        ({"name": "app", "endpoints": "llama"}, "endpoints"),
        ({"name": "app", "endpoints": ["llama", 3]}, "endpoints[1]"),
        ({"name": "app", "endpoints": ["llama", "sr1-salt"]}, "endpoints[1]"),
        ({"name": "app", "endpoints": ["a", "a"]}, "endpoints"),
        ({"name": "app", "endpoints": [str(n) for n in range(101)]}, "endpoints"),
    ],
)
def test_a_malformed_key_is_refused_by_the_name_of_its_field(acorn: House, body: dict[str, object], field: str) -> None:
    """400, the field, and nothing stored."""
    answer = acorn.api().post("keys", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    with acorn.scope():
        assert ApiKey.objects.filter(kind=Kind.INFERENCE.value).count() == 0


def test_the_limit_has_a_number_and_a_name(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit the next key is refused with the limit's name; a revoked key makes room."""
    monkeypatch.setattr(api_keys, "MAX_KEYS_PER_TENANT", 2)
    api = acorn.api()
    assert [api.post("keys", {"name": name}).status_code for name in "abc"] == [201, 201, 409]
    refused = api.post("keys", {"name": "c"}).json()["error"]
    assert refused["code"] == "limit_reached"
    assert "MAX_KEYS_PER_TENANT" in refused["message"]
    api.delete("keys/a")
    assert api.post("keys", {"name": "c"}).status_code == 201


def test_rotate_gives_a_new_secret_under_the_same_id(acorn: House) -> None:
    """The old digest is gone from what routers learn, the new one is there, the id stays; each rotation makes another."""
    first = acorn.key().secret or ""
    api = acorn.api(Role.ADMIN)
    rotated = api.post("keys/app/rotate")
    assert rotated.status_code == 200
    with acorn.scope():
        (entry,) = snapshot_keys(acorn.id, timezone.now())
    assert entry.digest == api_key.digest(rotated.json()["secret"]) != api_key.digest(first)
    assert str(entry.id) == rotated.json()["id"]
    assert api.post("keys/app/rotate").json()["secret"] != rotated.json()["secret"]
    assert acorn.api(Role.OPERATOR).post("keys/app/rotate").status_code == 403


def test_rotate_refuses_a_key_that_opens_nothing(acorn: House) -> None:
    """Revoked or expired: a new text would revive it."""
    revoked, expired = acorn.key("revoked").key, acorn.key("expired", expires_at=timezone.now() + timedelta(hours=1)).key
    with acorn.scope():
        ApiKey.objects.filter(id=expired.id).update(expires_at=timezone.now() - timedelta(hours=1))
    api = acorn.api()
    api.delete(f"keys/{revoked.id}")
    assert [api.post(f"keys/{row.id}/rotate").status_code for row in (revoked, expired)] == [409, 409]


def test_revoke_is_final_and_safe_to_repeat(acorn: House) -> None:
    """The first revocation counts; a repeat changes nothing and writes no second entry."""
    key = acorn.key().key
    api = acorn.api(Role.ADMIN)
    first, second = (api.delete(f"keys/{key.id}", {"reason": "left the company"}).json() for _ in range(2))
    assert first == second
    assert first["status"] == "revoked"
    (entry,) = acorn.log("api_key.revoke")
    assert entry.reason == "left the company"
    with acorn.scope():
        assert snapshot_keys(acorn.id, timezone.now()) == ()
    assert acorn.api(Role.OPERATOR).delete(f"keys/{key.id}").status_code == 403


def test_change_names_only_what_changes(acorn: House) -> None:
    """Absent fields stay, null is a value, a repeat writes nothing."""
    acorn.key(endpoints=["llama"])
    api = acorn.api(Role.ADMIN)
    renamed = api.patch("keys/app", {"name": "web"}).json()
    assert (renamed["name"], renamed["endpoints"]) == ("web", ["llama"])
    opened = api.patch("keys/web", {"endpoints": None, "expires_at": "2099-01-01T00:00:00Z"}).json()
    assert (opened["endpoints"], opened["expires_at"]) == (None, "2099-01-01T00:00:00Z")
    again = api.patch("keys/web", {"endpoints": None}).json()
    assert again["config_version"] == opened["config_version"]
    assert len(acorn.log("api_key.update")) == 2
    acorn.key("other")
    assert api.patch("keys/web", {"name": "other"}).status_code == 409
    assert api.patch("keys/web", {"scope": ""}).json()["error"]["field"] == "scope"
    assert acorn.api(Role.VIEWER).patch("keys/web", {"name": "x"}).status_code == 403


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    """Every method, another tenant's key and no key at all: 404, byte for byte, and the other's key is as it was."""
    foreign = birch.key().key
    api = acorn.api()
    answers = set()
    for method, path in [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")]:
        for reference in (foreign.id, ABSENT, "app", "no such name", "%00", "x" * 3000):
            answer = api.call(method, f"keys/{reference}{path}", {} if method != "GET" else None)
            answers.add((answer.status_code, answer.content, answer.headers["Content-Type"]))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    with birch.scope():
        row = ApiKey.objects.get(id=foreign.id)
        assert (bytes(row.digest), row.revoked_at, row.name) == (bytes(foreign.digest), None, "app")
    assert birch.api().get("keys/app").status_code == 200


def test_a_control_token_is_no_key(acorn: House) -> None:
    """The two kinds are apart in every list and under every id, and routers learn of inference keys alone."""
    key = acorn.key().key
    api = acorn.api()
    assert [row["name"] for row in api.get("keys").json()["results"]] == ["app"]
    assert "app" not in [row["name"] for row in api.get("tokens").json()["results"]]
    assert api.get(f"keys/{acorn.token_ids[Role.OWNER]}").status_code == 404
    assert api.delete(f"keys/{acorn.token_ids[Role.VIEWER]}").status_code == 404
    assert api.get(f"tokens/{key.id}").status_code == 404
    with acorn.scope():
        digests = {entry.digest for entry in snapshot_keys(acorn.id, timezone.now())}
    assert digests == {bytes(key.digest)}
    assert not digests & {api_key.digest(token) for token in acorn.tokens.values()}


def test_routers_do_not_learn_of_expired_keys(acorn: House) -> None:
    """The list for the snapshot ends with the key's time."""
    acorn.key(expires_at=timezone.now() + timedelta(hours=1))
    with acorn.scope():
        assert len(snapshot_keys(acorn.id, timezone.now())) == 1
        assert snapshot_keys(acorn.id, timezone.now() + timedelta(hours=2)) == ()


def test_list_filters_by_status(acorn: House) -> None:
    """``current``, ``revoked``, all; another word is refused."""
    acorn.key("old")
    acorn.key("new")
    api = acorn.api()
    api.delete("keys/old")
    names = {status: [row["name"] for row in api.get(f"keys?status={status}").json()["results"]] for status in ("current", "revoked")}
    assert names == {"current": ["new"], "revoked": ["old"]}
    assert len(api.get("keys").json()["results"]) == 2
    assert api.get("keys?status=lost").json()["error"]["field"] == "status"
    assert [row["name"] for row in api.get("keys?tenant=birch").json()["results"]] == ["new", "old"]


def test_a_name_may_hold_slashes(acorn: House) -> None:
    """It is still found, rotated and revoked by name."""
    api = acorn.api()
    made = api.post("keys", {"name": "team a/app"}).json()
    assert api.get("keys/team%20a/app").json()["id"] == made["id"]
    assert api.post("keys/team%20a/app/rotate").json()["id"] == made["id"]
    assert api.delete("keys/team%20a%2Fapp/").json()["status"] == "revoked"


def test_a_key_is_bound_to_its_scope(acorn: House) -> None:
    """By path when it is issued, shown by path and id."""
    with acorn.scope():
        scope = scopes.create(tenant_id=acorn.id, actor=ROOT, path="support")
    made = acorn.api().post("keys", {"name": "app", "scope": "support"}).json()
    assert (made["scope"], made["scope_id"]) == ("support", str(scope.id))
