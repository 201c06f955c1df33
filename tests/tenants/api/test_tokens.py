"""Control tokens over the API: issue, rotate, revoke; nobody rises above their own role by them."""

from __future__ import annotations

import pytest

from tenants.core import api_key
from tenants.core.roles import Role
from tenants.models import ApiKey
from tenants.services import api_keys
from tests.tenants.houses import ABSENT, Api, House


def test_issue_gives_a_token_that_works_and_is_shown_once(acorn: House) -> None:
    """The new token opens the API with its role; only its digest is stored, and the audit log has neither."""
    made = acorn.api(Role.ADMIN).post("tokens", {"name": "ci", "role": "operator"})
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith("srct-")
    assert Api(token=secret).get("keys").status_code == 200
    assert Api(token=secret).post("keys", {"name": "x"}).status_code == 403
    with acorn.scope():
        row = ApiKey.objects.get(id=made.json()["id"])
        assert bytes(row.digest) == api_key.digest(secret)
    assert "secret" not in acorn.api().get("tokens/ci").json()
    logged = [str(vars(entry)) for entry in acorn.log("control_token.issue")]
    assert not any(secret[12:] in line for line in logged)


@pytest.mark.parametrize(("issuer", "role", "status"), [(Role.ADMIN, "owner", 403), (Role.ADMIN, "admin", 201), (Role.OWNER, "owner", 201)])
def test_issue_gives_no_role_above_the_issuers(acorn: House, issuer: Role, role: str, status: int) -> None:
    """An admin cannot make an owner's token."""
    assert acorn.api(issuer).post("tokens", {"name": "new", "role": role}).status_code == status


def test_an_admin_cannot_take_over_an_owners_token(acorn: House) -> None:
    """Rotating it would show its secret, renaming and revoking it would be a way to lock the owner out."""
    api, token_id = acorn.api(Role.ADMIN), acorn.token_ids[Role.OWNER]
    assert api.post(f"tokens/{token_id}/rotate").status_code == 403
    assert api.patch(f"tokens/{token_id}", {"name": "mine"}).status_code == 403
    assert api.delete(f"tokens/{token_id}").status_code == 403
    assert acorn.api().get("me").status_code == 200


def test_every_operation_needs_the_members_permission(acorn: House) -> None:
    """Viewer and operator neither see nor make tokens."""
    token_id = acorn.token_ids[Role.VIEWER]
    for role, refused in ((Role.VIEWER, True), (Role.OPERATOR, True), (Role.ADMIN, False)):
        api = acorn.api(role)
        answers = [
            api.get("tokens"),
            api.post("tokens", {"name": f"by-{role.value}", "role": "viewer"}),
            api.get(f"tokens/{token_id}"),
            api.patch(f"tokens/{token_id}", {"expires_at": "2099-01-01T00:00:00Z"}),
            api.post(f"tokens/{token_id}/rotate"),
            api.delete(f"tokens/{token_id}"),
        ]
        assert [answer.status_code == 403 for answer in answers] == [refused] * 6


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "role"),
        ({"name": "x", "role": "king"}, "role"),
        ({"name": "x", "role": "viewer", "platform": True}, "platform"),
        ({"name": " x", "role": "viewer"}, "name"),
        ({"name": "x", "role": "viewer", "expires_at": "1999-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_a_malformed_token_is_refused_by_the_name_of_its_field(acorn: House, body: dict[str, object], field: str) -> None:
    """400 and the field; a tenant's own caller cannot even name ``platform``."""
    answer = acorn.api().post("tokens", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_rotation_and_revocation_hold_from_the_next_request(acorn: House) -> None:
    """A token that rotates or revokes itself is refused right after; both answers come through."""
    old = acorn.api()
    fresh = old.post(f"tokens/{acorn.token_ids[Role.OWNER]}/rotate").json()["secret"]
    assert old.get("me").status_code == 401
    api = Api(token=fresh)
    assert api.delete(f"tokens/{acorn.token_ids[Role.OWNER]}").json()["status"] == "revoked"
    assert api.get("me").status_code == 401


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    """404, byte for byte; the other tenant's token still works."""
    api, answers = acorn.api(), set()
    for reference in (birch.token_ids[Role.VIEWER], ABSENT, "none"):
        for method, path in [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")]:
            answer = api.call(method, f"tokens/{reference}{path}", {} if method != "GET" else None)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert birch.api(Role.VIEWER).get("me").status_code == 200


def test_the_limit_has_a_number_and_a_name(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The house has four tokens already."""
    monkeypatch.setattr(api_keys, "MAX_TOKENS_PER_TENANT", 4)
    refused = acorn.api().post("tokens", {"name": "fifth", "role": "viewer"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "limit_reached")


def test_tokens_of_the_platform_are_operators_tokens(platform: Api, acorn: House) -> None:
    """Issued by an operator, in the platform's tenant, with the role owner; they act in every tenant."""
    assert platform.post("tokens", {"name": "x", "role": "viewer"}).json()["error"]["field"] == "role"
    made = platform.post("tokens", {"name": "second", "role": "owner"})
    assert (made.status_code, made.json()["platform"]) == (201, True)
    other = Api(token=made.json()["secret"])
    assert other.get("keys", X_Saltroute_Tenant="acorn").status_code == 200
    assert other.post("keys", {"name": "x"}).json()["error"]["code"] == "invalid"
    ordinary = platform.post("tokens", {"name": "for-acorn", "role": "owner"}, X_Saltroute_Tenant="acorn")
    assert (ordinary.status_code, ordinary.json()["platform"]) == (201, False)
    assert Api(token=ordinary.json()["secret"]).post("tenants", {"slug": "elm", "name": "Elm"}).status_code == 403
