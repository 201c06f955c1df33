"""The audit log over the API."""

from __future__ import annotations

from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, House


def test_every_change_is_in_it_with_who_and_what(acorn: House) -> None:
    """One entry for each change, newest first, and nowhere a secret or a digest."""
    api = acorn.api(Role.ADMIN)
    secrets = [api.post("keys", {"name": "app"}).json()["secret"]]
    secrets.append(api.post("keys/app/rotate").json()["secret"])
    api.patch("keys/app", {"endpoints": ["llama"]})
    api.delete("keys/app", {"reason": "done"})
    secrets.append(api.post("tokens", {"name": "ci", "role": "viewer"}).json()["secret"])
    api.post("scopes", {"path": "support"})
    api.post("scopes/support/raise", {"reason": "leak"})
    api.delete("scopes/support")
    api.post("members", {"email": "p@oak.example", "role": "viewer"})
    rows = api.get("audit-log?limit=9").json()["results"]
    assert [row["action"] for row in rows] == [
        "member.add",
        "scope.delete",
        "scope.raise",
        "scope.create",
        "control_token.issue",
        "api_key.revoke",
        "api_key.update",
        "api_key.rotate",
        "api_key.issue",
    ]
    assert {(row["actor_kind"], row["actor"], row["actor_id"]) for row in rows} == {("token", "admin-token", str(acorn.token_ids[Role.ADMIN]))}
    text = str(rows)
    assert not any(secret[12:] in text for secret in secrets)
    assert "digest" not in text
    assert rows[6]["before"] == {"name": "app", "expires_at": None, "scope": "", "endpoints": None}
    assert rows[5]["reason"] == "done"


def test_it_filters_by_action_and_object(acorn: House) -> None:
    """A whole action, or its noun; a malformed id is refused."""
    api = acorn.api()
    key = acorn.key().key
    api.delete("keys/app")
    words = ("api_key", "api_key.revoke", "api")
    actions = {word: [row["action"] for row in api.get(f"audit-log?action={word}").json()["results"]] for word in words}
    assert actions == {"api_key": ["api_key.revoke", "api_key.issue"], "api_key.revoke": ["api_key.revoke"], "api": []}
    assert len(api.get(f"audit-log?object_id={key.id}").json()["results"]) == 2
    assert api.get(f"audit-log?object_id={ABSENT}").json()["results"] == []
    assert api.get("audit-log?object_id=app").json()["error"]["field"] == "object_id"
    assert api.get("audit-log?action=%00").json()["error"]["field"] == "action"


def test_a_stranger_and_the_weak_see_nothing_of_it(acorn: House, birch: House) -> None:
    """It needs the permission members, and holds one tenant's entries."""
    birch.key("theirs")
    assert [acorn.api(role).get("audit-log").status_code for role in Role] == [403, 403, 200, 200]
    assert "theirs" not in acorn.api().get("audit-log?limit=200").content.decode()
    assert "theirs" in birch.api().get("audit-log?limit=200").content.decode()


def test_nothing_can_change_it(acorn: House) -> None:
    """There is no method for it."""
    assert {acorn.api().call(method, "audit-log", {}).status_code for method in ("POST", "PUT", "PATCH", "DELETE")} == {405}
